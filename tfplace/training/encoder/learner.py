"""Base of the learners of encoder policies."""

import abc
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.learned import features
from tfplace.learned.policy_format import Exportable
from tfplace.training.config import TrainConfig
from tfplace.training.encoder import agent
from tfplace.training.learner import (
  IMITATION_RATE,
  Learner,
  Step,
  mean_entropy,
)
from tfplace.training.tasks import Task, log_rewards

# Decisions of a graph above which gradients recompute activations.
_RECOMPUTE_ABOVE = 8192
# Decay of the average of weights per step. After n steps it is at most
# (1 + n) / (10 + n).
_DECAY = 0.998


class EncoderLearner(Learner):
  """Learner of a policy with a graph encoder: imitation and PPO.

  A PPO iteration is a batch of placements of one graph. One of them is the
  best placement so far (self-imitation, Oh et al. 2018, with the clipped
  objective), so that a rare success is not lost in the noise of thousands of
  decisions.

  Each step trains on one graph and biases the policy toward it. The moving
  average of the weights is better on all graphs, including holdout graphs
  (Polyak and Juditsky 1992), and is exported.
  """

  network_class: ClassVar[type]
  actor_class: ClassVar[type]  # A `PlacementActor`.

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(tasks, config)
    signature = features.signature(self.sizes.axes)
    self._bank = agent.GraphBank(self.inputs, signature)
    self.policy = self._make_network()
    most = max(seen.num_decisions for seen in self.inputs)
    self.policy.recomputes = most > _RECOMPUTE_ABOVE
    actor = self.actor_class(self._bank, self.policy)
    self._ppo = agent.PlacementAgent(self._bank, actor, config)
    self.imitation_optimizer = self._adam(IMITATION_RATE)
    self._updates = tf.Variable(0, name="updates")
    self._average = tf.train.ExponentialMovingAverage(_DECAY, self._updates)
    self._average.apply(self.policy.variables)
    self._train, self._logits, self._imitate, self._add_to_average = (
      # Graphs differ in their numbers of decisions.
      tf.function(function, autograph=False, reduce_retracing=True)
      for function in (
        self._ppo.train,
        actor.logits,
        self._imitation_step,
        self._averaging_step,
      )
    )

  # Methods in which the policies differ.

  @abc.abstractmethod
  def _sample(
    self, graph: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, dict[str, np.ndarray], tf.Tensor]:
    """Samples placements.

    Returns:
      [1 + B, N] choices, of which the first row has the most probable ones,
      which PPO does not use, and the last row the best placement so far, if
      there is one; observations [B, N, ...] of the other rows; and their
      [B, N, max_devices] logits.
    """

  @abc.abstractmethod
  def _imitation_loss(self, graph: tf.Tensor, *given: tf.Tensor) -> tf.Tensor:
    """Computes the loss of a graph, given the other arguments of `_imitate`."""

  # Methods of the learner.

  def _make_network(self) -> Any:
    made = self.network_class(self.sizes)
    made.prepare(self._bank.get(tf.constant(0)))
    return made

  def _extract(self, task: Task) -> features.Features:
    return features.extract(task.decisions, self.sizes.axes)

  @property
  def _averages(self) -> list[tf.Variable]:
    return [self._average.average(weight) for weight in self.policy.variables]

  def tracked(self) -> dict[str, Any]:
    return {
      **super().tracked(),
      "optimizer": self._ppo.adam,
      "train_step": self._ppo.train_step_counter,
      "averages": self._averages,
      "updates": self._updates,
    }

  def set_weights(self, weights: Any) -> None:
    """See `Learner`; restarts the average."""
    super().set_weights(weights)
    self._updates.assign(0)
    for average, weight in zip(
      self._averages, self.policy.variables, strict=True
    ):
      average.assign(weight)

  def exportable(self) -> Exportable:
    """Returns a network with the averaged weights."""
    averaged = self._make_network()
    for weight, average in zip(averaged.variables, self._averages, strict=True):
      weight.assign(average)
    return self._exported(averaged)

  def improve(self, graph: int, rng: np.random.Generator) -> Step:
    """Runs one PPO iteration: samples and evaluates placements, updates."""
    task = self._tasks[graph]
    choices, observation, logits = self._sample(graph, rng)
    greedy_us, *sample_us = task.evaluate(choices)
    rewards = log_rewards(np.array(sample_us), task.baseline_us)
    experience = agent.episodes(observation, logits, choices[1:], rewards)
    for _ in range(agent.EPOCHS):
      loss = self._train(experience).extra
      if loss.clip_fraction > agent.MAX_CLIP_FRACTION:
        break
    self._add_to_average()
    return Step(
      reward=float(rewards.mean()),
      greedy_us=float(greedy_us),
      sample_us=task.baseline_us * float(np.exp(-np.median(rewards))),
      entropy=mean_entropy(logits.numpy().reshape(-1, logits.shape[-1])),
      clip_fraction=float(loss.clip_fraction),
      policy_loss=float(loss.policy_gradient_loss),
    )

  def _indices(self, graph: int) -> dict[str, np.ndarray]:
    """Returns [B, N] observations `GRAPH` and `DECISION`."""
    shape = self._config.samples, self.inputs[graph].num_decisions
    decision = np.arange(shape[1], dtype=np.int32)
    return {
      agent.GRAPH: np.full(shape, graph, np.int32),
      agent.DECISION: np.broadcast_to(decision, shape),
    }

  def _imitation_step(self, graph: tf.Tensor, *given: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
      loss = self._imitation_loss(graph, *given)
    self._descend(tape, loss, self.imitation_optimizer)
    return loss

  def _averaging_step(self) -> None:
    self._updates.assign_add(1)
    self._average.apply(self.policy.variables)
