"""Base of the learners of encoder policies."""

import abc
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.learned.config import TrainConfig
from tfplace.learned.encoder import agent, features
from tfplace.learned.policy_format import Exportable
from tfplace.learned.train import policy_step, trajectory
from tfplace.learned.train import time_step as ts
from tfplace.learned.train.learner import (
  IMITATION_RATE,
  Learner,
  Step,
  mean_entropy,
)
from tfplace.learned.train.tasks import Task, log_rewards

# Decisions of a graph above which gradients recompute activations.
_RECOMPUTE_ABOVE = 8192
# Decay of the average of weights per step. After n steps it is at most
# (1 + n) / (10 + n).
_DECAY = 0.998


class EncoderLearner(Learner):
  """Learner of a policy with a graph encoder: imitation and PPO.

  A PPO iteration is a batch of one-step episodes on one graph. One sample is
  the best placement so far (self-imitation, Oh et al. 2018, with the clipped
  objective), so that a rare success is not lost in the noise of thousands of
  decisions.

  Each step trains on one graph and biases the policy toward it. The moving
  average of the weights is better on all graphs, including holdout graphs
  (Polyak and Juditsky 1992), and is exported.
  """

  network_class: ClassVar[type]

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(tasks, config)
    signature = features.signature(self.sizes.axes)
    self._bank = agent.GraphBank(self.inputs, signature)
    self.policy = self._make_network()
    recomputes = self._bank.max_decisions > _RECOMPUTE_ABOVE
    self.policy.recomputes = recomputes
    self._ppo = agent.PerDecisionPPOAgent(self._make_actor(), config)
    self.imitation_optimizer = self._adam(IMITATION_RATE)
    self._updates = tf.Variable(0, name="updates")
    self._average = tf.train.ExponentialMovingAverage(_DECAY, self._updates)
    self._average.apply(self.policy.variables)
    self._train = tf.function(self._ppo.train, autograph=False)
    self._look = tf.function(self._distribution, autograph=False)
    self._imitate = tf.function(self._imitation_step, autograph=False)
    self._add_to_average = tf.function(self._averaging_step, autograph=False)

  # Methods in which the policies differ.

  @abc.abstractmethod
  def _make_actor(self) -> agent.PlacementActor:
    """Builds the actor around `policy`."""

  @abc.abstractmethod
  def _export(self, network: Any) -> Exportable:
    """Returns a network as plain TensorFlow functions."""

  @abc.abstractmethod
  def _sample(
    self, graph: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, np.ndarray, ts.TimeStep, dict[str, Any]]:
    """Returns [1 + B, N] choices, their step times and `_episodes` of B.

    The first row contains the most probable choices, which PPO does not use.
    The last row is the best placement so far, if there is one.
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
    return self._export(averaged)

  def improve(self, graph: int, rng: np.random.Generator) -> Step:
    """Runs one PPO iteration: samples and evaluates placements, updates."""
    task = self._tasks[graph]
    choices, (greedy_us, *sample_us), first, info = self._sample(graph, rng)
    rewards = log_rewards(np.array(sample_us), task.baseline_us)
    last = ts.termination(first.observation, rewards)
    count = task.decisions.num_decisions
    actions = np.zeros((len(rewards), self._bank.max_decisions), np.int32)
    actions[:, :count] = choices[1:]
    experience = _trajectory(first, last, actions, info)
    for _ in range(agent.EPOCHS):
      loss = self._train(experience).extra
      if loss.clip_fraction > agent.MAX_CLIP_FRACTION:
        break
    self._add_to_average()
    logits = logits_of(info)[:, :count]
    return Step(
      reward=float(rewards.mean()),
      greedy_us=float(greedy_us),
      sample_us=task.baseline_us * float(np.exp(-np.median(rewards))),
      entropy=mean_entropy(logits.reshape(-1, logits.shape[-1])),
      clip_fraction=float(loss.clip_fraction),
      policy_loss=float(loss.policy_gradient_loss),
    )

  def _episodes(
    self, observation: dict[str, np.ndarray]
  ) -> tuple[ts.TimeStep, dict[str, Any]]:
    """Returns the first step of B episodes and its `dist_params`."""
    first = ts.restart(observation, batch_size=self._config.samples)
    return first, self._look(tf.nest.map_structure(tf.convert_to_tensor, first))

  def _distribution(self, time_step: ts.TimeStep) -> dict[str, Any]:
    return self._ppo.collect_policy.distribution(time_step).info

  def _imitation_step(self, graph: tf.Tensor, *given: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
      loss = self._imitation_loss(graph, *given)
    self._descend(tape, loss, self.imitation_optimizer)
    return loss

  def _averaging_step(self) -> None:
    self._updates.assign_add(1)
    self._average.apply(self.policy.variables)


def logits_of(info: dict[str, Any]) -> np.ndarray:
  """Returns the [B, max_decisions, max_devices] logits of `_episodes`."""
  return info["dist_params"]["distribution"]["logits"].numpy()


def _trajectory(
  first: ts.TimeStep, last: ts.TimeStep, actions: np.ndarray, info: dict
) -> trajectory.Trajectory:
  """Builds [B, 2] steps: a one-step episode and its masked boundary."""
  step = policy_step.PolicyStep(actions, (), info)
  pair = (
    trajectory.from_transition(first, step, last),
    trajectory.from_transition(last, step, first),
  )
  return tf.nest.map_structure(lambda *parts: tf.stack(parts, axis=1), *pair)
