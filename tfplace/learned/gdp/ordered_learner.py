"""Learner of policies that decide in order: imitation, then PPO."""

from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.learned.exported import Exportable
from tfplace.learned.gdp import features
from tfplace.learned.gdp.decoding import Draws, Head, decode
from tfplace.learned.gdp.learner import MovingAverage, trajectory_of
from tfplace.learned.gdp.ordered import (
  OrderedConfig,
  OrderedNetwork,
  exportable,
)
from tfplace.learned.gdp.ordered_agent import make_ppo, observed
from tfplace.learned.gdp.partial import partial_tables
from tfplace.learned.train import time_step as ts
from tfplace.learned.train.config import PPOConfig, TrainConfig
from tfplace.learned.train.learner import Learner, Step
from tfplace.learned.train.objectives import mean_entropy
from tfplace.learned.train.ppo import GraphBank
from tfplace.learned.train.tasks import Task, log_rewards

# Fraction of the decisions on an imitated path that the policy makes itself, in
# every second pass. The policy thus learns how to continue after a mistake.
OWN_SHARE = 0.1
SAME = 1e-5  # Devices that differ less are equivalent imitation targets.


class OrderedLearner(Learner):
  """Learner of a policy that modifies a placement in order.

  Imitation is teacher-forced: decisions follow the target. The loss accepts the
  target device or any device with the same features, because the order of equal
  empty devices has no meaning. A PPO iteration is a batch of samples of one
  graph, one of which is the best placement so far (self-labeling, SLIM, arXiv
  2401.11849).
  """

  network_type: ClassVar[type] = OrderedConfig
  method_type: ClassVar[type] = PPOConfig
  changes: ClassVar[bool] = True

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(tasks, config)
    self._bank = GraphBank(self.inputs, features.signature(self.sizes.axes))
    self._tables = [partial_tables(task.decisions) for task in tasks]
    self.policy = OrderedNetwork(self.sizes)
    self.policy.prepare(self._bank.get(tf.constant(0)))
    self._ppo = make_ppo(self._bank, self.policy, self._method)
    self.imitation_optimizer = self._adam(config.imitation.learning_rate)
    self._averaged = OrderedNetwork(self.sizes)
    self._averaged.prepare(self._bank.get(tf.constant(0)))
    self._average = MovingAverage(
      self.policy.variables, self._averaged.variables, self._method.averaging
    )
    self._imitate = tf.function(self._imitation_step, autograph=False)
    self._look = tf.function(
      lambda graph: (*self.policy(self._bank.get(graph)), *self.policy.head()),
      autograph=False,
    )

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

  def exportable(self) -> Exportable:
    """Returns the averaged network and its head."""
    return exportable(self._averaged)

  def imitate(self, graph: int) -> float:
    """See `Learner`; samples depend on the number of completed steps."""
    step = int(self.imitation_optimizer.iterations)
    rng = np.random.default_rng([self._config.seed, step])
    target = self._tasks[graph].target
    forced = target.copy()
    noise = rng.gumbel(size=self._shape(graph)).astype(np.float32)
    if step % 2:
      forced[rng.random(len(target)) < OWN_SHARE] = -1
    draws = self._decode(graph, noise[None], forced[None])
    seen, may = draws.seen[0], draws.may[0]
    at = np.arange(len(target))
    wanted = seen[at, target][:, None]
    same = may & (np.abs(seen - wanted).max(axis=-1) <= SAME)
    known = same.any(axis=1)  # Off its path, the target may have no room.
    loss = self._imitate(
      tf.constant(graph), *map(tf.constant, (seen, may, same, known))
    )
    self._average.step()
    return float(loss)

  def improve(self, graph: int, rng: np.random.Generator) -> Step:
    """Runs one PPO iteration: samples and evaluates placements, updates."""
    task, ppo = self._tasks[graph], self._method
    draws = self._draw(graph, rng)
    greedy_us = float(task.evaluate(draws.choices[:1])[0])
    draws = Draws(*(part[1:] for part in draws))
    rewards = log_rewards(
      task.evaluate(draws.choices), task.baseline_us, ppo.infeasible_reward
    )
    observation = observed(self._bank, graph, draws)
    first = ts.restart(observation, batch_size=ppo.samples)
    info = self._ppo.look(first)
    logits = info["dist_params"]["distribution"]["logits"].numpy()
    last = ts.termination(observation, rewards)
    count = task.decisions.num_decisions
    actions = np.zeros((ppo.samples, self._bank.max_decisions), np.int32)
    actions[:, :count] = draws.choices
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
      entropy=mean_entropy(logits[:, :count].reshape(-1, logits.shape[-1])),
      clip_fraction=float(loss.clip_fraction),
      policy_loss=float(loss.policy_gradient_loss),
      value_loss=float(loss.value_estimation_loss),
    )

  def _draw(self, graph: int, rng: np.random.Generator) -> Draws:
    """Returns the most probable placement, samples, and the best so far."""
    task, number = self._tasks[graph], 1 + self._method.samples
    shape = (number, *self._shape(graph))
    noise = rng.gumbel(size=shape).astype(np.float32)
    noise *= np.float32(self._method.temperature)
    noise[0] = 0.0
    forced = np.full(shape[:2], -1, np.int32)
    if task.best is not None:
      forced[-1] = task.best
    return self._decode(graph, noise, forced)

  def _told(self, graph: int) -> Head:
    return Head(*(part.numpy() for part in self._look(tf.constant(graph))))

  def _shape(self, graph: int) -> tuple[int, ...]:
    return self._tables[graph].allowed.shape

  def _decode(self, graph: int, noise: np.ndarray, forced: np.ndarray) -> Draws:
    head = self._told(graph)
    return decode(self._tables[graph], head, noise, forced, True)

  def _imitation_step(
    self,
    graph: tf.Tensor,
    seen: tf.Tensor,
    may: tf.Tensor,
    same: tf.Tensor,
    known: tf.Tensor,
  ) -> tf.Tensor:
    with tf.GradientTape() as tape:
      told = self.policy(self._bank.get(graph))
      log_probs = tf.nn.log_softmax(self.policy.logits(told, seen, may))
      loss = shared_loss(
        log_probs, may, same, known, self._config.imitation.smoothing
      )
    norm = self._method.max_gradient_norm
    self._descend(tape, loss, self.imitation_optimizer, norm)
    return loss


def shared_loss(
  log_probs: tf.Tensor,
  may: tf.Tensor,
  same: tf.Tensor,
  known: tf.Tensor,
  smoothing: float,
) -> tf.Tensor:
  """Computes the cross-entropy with a set of equivalent targets.

  Args:
    log_probs: [N, D].
    may: [N, D] bool devices to choose from.
    same: [N, D] bool target and its equivalents.
    known: [N] bool decisions with a target.
    smoothing: Weight of the mean over all devices to choose from.
  """
  log_probs = tf.maximum(log_probs, -30.0)
  wanted = tf.reduce_logsumexp(tf.where(same, log_probs, -1e9), axis=1)
  number = tf.reduce_sum(tf.cast(may, tf.float32), axis=1)
  every = tf.reduce_sum(tf.where(may, log_probs, 0.0), axis=1)
  every /= tf.maximum(number, 1.0)
  mixed = (1.0 - smoothing) * wanted + smoothing * every
  weight = tf.cast(known, tf.float32)
  total = tf.maximum(tf.reduce_sum(weight), 1.0)
  return -tf.reduce_sum(tf.where(known, mixed, 0.0)) / total
