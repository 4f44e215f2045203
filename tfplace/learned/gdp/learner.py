"""Learner of GDP: imitation and PPO in one pass per graph."""

from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.core import symmetry
from tfplace.learned.decisions import sample
from tfplace.learned.exported import Exportable
from tfplace.learned.gdp import features
from tfplace.learned.gdp.agent import is_large, make_ppo
from tfplace.learned.gdp.network import (
  NetworkConfig,
  PlacementNetwork,
  exportable,
)
from tfplace.learned.train import policy_step, trajectory
from tfplace.learned.train import time_step as ts
from tfplace.learned.train.config import PPOConfig, TrainConfig
from tfplace.learned.train.learner import Learner, Step
from tfplace.learned.train.objectives import imitation_loss, mean_entropy
from tfplace.learned.train.ppo import GraphBank
from tfplace.learned.train.tasks import Task, log_rewards


class GdpLearner(Learner):
  """Learner of a GDP policy.

  An iteration is a batch of one-step episodes on one graph. One sample is the
  best placement so far (self-imitation, Oh et al. 2018, with the clipped
  objective), so that a rare success is not lost in the noise of thousands of
  decisions.
  """

  network_type: ClassVar[type] = NetworkConfig
  method_type: ClassVar[type] = PPOConfig

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(tasks, config)
    self._bank = bank = GraphBank(
      self.inputs, features.signature(self.sizes.axes)
    )
    self._recomputes = is_large(bank)
    self.policy = PlacementNetwork(self.sizes)
    if self._recomputes:
      self.policy.prepare(bank.get(tf.constant(0)))
    self._ppo = make_ppo(bank, self.policy, self._method)
    self.imitation_optimizer = self._adam(config.imitation.learning_rate)
    self._averaged = PlacementNetwork(self.sizes)
    self._averaged.prepare(bank.get(tf.constant(0)))
    self._average = MovingAverage(
      self.policy.variables, self._averaged.variables, self._method.averaging
    )
    self._imitate = tf.function(self._imitation_step, autograph=False)

  def _extract(self, task: Task) -> features.Features:
    return features.extract(task.decisions, self.sizes.axes)

  def tracked(self) -> dict[str, Any]:
    """See `Learner`."""
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

  def fingerprint(self) -> dict[str, Any]:
    """See `Learner`; includes the number of weights."""
    weights = {"weights": len(self.policy.variables)}
    return {**super().fingerprint(), **weights}

  def exportable(self) -> Exportable:
    """Returns the averaged network as a function of features."""
    return exportable(self._averaged)

  def imitate(self, graph: int) -> float:
    """See `Learner`."""
    target = np.zeros(self._bank.max_decisions, np.int32)
    task = self._tasks[graph]
    target[: len(task.target)] = task.target
    loss = float(self._imitate(tf.constant(graph), tf.constant(target)))
    self._average.step()
    return loss

  def improve(self, graph: int, rng: np.random.Generator) -> Step:
    """Runs one PPO iteration: samples and evaluates placements, updates."""
    task, ppo = self._tasks[graph], self._method
    count = task.decisions.num_decisions
    observed = np.full(ppo.samples, graph, np.int32)
    first = ts.restart(observed, batch_size=ppo.samples)
    info = self._ppo.look(first)
    logits = info["dist_params"]["distribution"]["logits"].numpy()[0, :count]
    actions = np.zeros((ppo.samples, self._bank.max_decisions), np.int32)
    actions[:, :count] = self._draw(task, logits, rng)
    rewards = log_rewards(
      task.evaluate(actions[:, :count]), task.baseline_us, ppo.infeasible_reward
    )
    last = ts.termination(observed, rewards)
    greedy = logits.argmax(axis=1).astype(np.int32)
    greedy_us = float(task.evaluate(greedy[None])[0])
    experience = trajectory_of(first, last, actions, info)
    for _ in range(ppo.epochs):
      loss = self._ppo.train(experience).extra
      if loss.clip_fraction > ppo.max_clip_fraction:
        break
    self._average.step()
    return Step(
      reward=float(rewards.mean()),
      greedy_us=greedy_us,
      sample_us=task.baseline_us * float(np.exp(-np.median(rewards))),
      entropy=mean_entropy(logits),
      clip_fraction=float(loss.clip_fraction),
      policy_loss=float(loss.policy_gradient_loss),
    )

  def _draw(
    self, task: Task, logits: np.ndarray, rng: np.random.Generator
  ) -> np.ndarray:
    mine = logits[:, : len(task.classes)]
    drawn = sample(mine, self._method.samples, rng, task.clusterings)
    if task.best is not None:
      drawn[-1] = task.best
    return symmetry.likeliest(drawn, mine, task.classes)

  def _imitation_step(self, graph: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
      inputs = self._bank.get(graph)
      logits = self.policy(inputs, recomputes=self._recomputes)
      loss = imitation_loss(
        logits,
        inputs["allowed"],
        target[: tf.shape(logits)[0]],
        self._config.imitation.smoothing,
      )
    norm = self._method.max_gradient_norm
    self._descend(tape, loss, self.imitation_optimizer, norm)
    return loss


class MovingAverage(tf.Module):
  """Moving average of the weights of a policy in training.

  Each step trains on one graph and biases the policy toward it. The average is
  better on all graphs, including holdout graphs (Polyak and Juditsky 1992).

  Args:
    weights: Variables to average.
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
