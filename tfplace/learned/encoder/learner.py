"""Base of the learners of encoder policies, and their moving average."""

import abc
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.learned.encoder import features
from tfplace.learned.encoder.agent import PlacementActor, make_ppo
from tfplace.learned.sampling import Drawn
from tfplace.learned.train import policy_step, trajectory
from tfplace.learned.train import time_step as ts
from tfplace.learned.train.config import PPOConfig, TrainConfig
from tfplace.learned.train.learner import Learner, Step
from tfplace.learned.train.objectives import mean_entropy
from tfplace.learned.train.ppo import GraphBank
from tfplace.learned.train.tasks import Task, log_rewards


class EncoderLearner(Learner):
  """Learner of a policy with a graph encoder: imitation and PPO.

  A PPO iteration is a batch of one-step episodes on one graph. One sample is
  the best placement so far (self-imitation, Oh et al. 2018, with the clipped
  objective), so that a rare success is not lost in the noise of thousands of
  decisions. The moving average of the network is exported.
  """

  method_type: ClassVar[type] = PPOConfig

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(tasks, config)
    signature = features.signature(self.sizes.axes)
    self._bank = GraphBank(self.inputs, signature)
    self.policy = self._make_network()
    self._ppo = make_ppo(self._make_actor(), self._method)
    self.imitation_optimizer = self._adam(config.imitation.learning_rate)
    self._averaged = self._make_network()
    self._average = MovingAverage(
      self.policy.variables, self._averaged.variables, self._method.averaging
    )
    self._imitate = tf.function(self._imitation_step, autograph=False)

  # Methods in which the policies differ.

  network_class: ClassVar[type]

  @abc.abstractmethod
  def _make_actor(self) -> PlacementActor:
    """Builds the actor around `policy`."""

  @abc.abstractmethod
  def _sample(
    self, graph: int, rng: np.random.Generator
  ) -> tuple[Drawn, ts.TimeStep, dict[str, Any]]:
    """Returns 1 + B evaluated samples and the results of `_look` on B.

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

  def tracked(self) -> dict[str, Any]:
    return {
      **super().tracked(),
      **self._ppo.tracked(),
      "averaged": self._averaged,
      "average": self._average,
    }

  def set_weights(self, weights: Any) -> None:
    """See `Learner`; restarts the average."""
    super().set_weights(weights)
    self._average.restart()

  def improve(self, graph: int, rng: np.random.Generator) -> Step:
    """Runs one PPO iteration: samples and evaluates placements, updates."""
    task, ppo = self._tasks[graph], self._method
    drawn, first, info = self._sample(graph, rng)
    greedy_us, *sample_us = drawn.step_us
    sampled = drawn.choices[1:]
    rewards = log_rewards(
      np.array(sample_us), task.baseline_us, ppo.infeasible_reward
    )
    last = ts.termination(first.observation, rewards)
    count = task.decisions.num_decisions
    actions = np.zeros((len(sampled), self._bank.max_decisions), np.int32)
    actions[:, :count] = sampled
    experience = trajectory_of(first, last, actions, info)
    for _ in range(ppo.epochs):
      loss = self._ppo.train(experience).extra
      if loss.clip_fraction > ppo.max_clip_fraction:
        break
    self._average.step()
    logits = logits_of(info)[:, :count]
    return Step(
      reward=float(rewards.mean()),
      greedy_us=float(greedy_us),
      sample_us=task.baseline_us * float(np.exp(-np.median(rewards))),
      entropy=mean_entropy(logits.reshape(-1, logits.shape[-1])),
      clip_fraction=float(loss.clip_fraction),
      policy_loss=float(loss.policy_gradient_loss),
    )

  def _look(
    self, observation: dict[str, np.ndarray]
  ) -> tuple[ts.TimeStep, dict[str, Any]]:
    """Returns the first step of B episodes and what PPO stores of it."""
    first = ts.restart(observation, batch_size=self._method.samples)
    return first, self._ppo.look(first)

  def _imitation_step(self, graph: tf.Tensor, *given: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
      loss = self._imitation_loss(graph, *given)
    norm = self._method.max_gradient_norm
    self._descend(tape, loss, self.imitation_optimizer, norm)
    return loss


class MovingAverage(tf.Module):
  """Moving average of the weights of a policy in training.

  Each step trains on one graph and biases the policy toward it. The average is
  better on all graphs, including holdout graphs (Polyak and Juditsky 1992).

  Args:
    average: Variables of the same shapes; they are initialized to `weights`.
    decay: Decay per step. After n steps it is at most (1 + n) / (10 + n), as in
      `tf.train.ExponentialMovingAverage`.
  """

  def __init__(self, weights: Any, average: Any, decay: float) -> None:
    super().__init__(name="moving_average")
    self._pairs = list(zip(average, weights, strict=True))
    self._decay = decay
    self._steps = tf.Variable(0.0, trainable=False, name="steps")
    self.step = tf.function(self._step, autograph=False)
    self.restart()

  def restart(self) -> None:
    """Sets the average to the current weights."""
    self._steps.assign(0.0)
    for average, weight in self._pairs:
      average.assign(weight)

  def _step(self) -> None:
    steps = self._steps.assign_add(1.0)
    keep = tf.minimum(self._decay, (1.0 + steps) / (10.0 + steps))
    for average, weight in self._pairs:
      average.assign(weight + keep * (average - weight))


def logits_of(info: dict[str, Any]) -> np.ndarray:
  """Returns the [B, max_decisions, max_devices] logits of `_look`."""
  return info["dist_params"]["distribution"]["logits"].numpy()


def trajectory_of(
  first: ts.TimeStep, last: ts.TimeStep, actions: np.ndarray, info: dict
) -> trajectory.Trajectory:
  """Builds [B, 2] steps: a one-step episode and its masked boundary."""
  step = policy_step.PolicyStep(actions, (), info)
  pair = (
    trajectory.from_transition(first, step, last),
    trajectory.from_transition(last, step, first),
  )
  return tf.nest.map_structure(lambda *parts: tf.stack(parts, axis=1), *pair)
