"""Learner of policies that decide in order: imitation, then PPO."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.learned.encoder.learner import EncoderLearner
from tfplace.learned.ordered.agent import OrderedActor, observations
from tfplace.learned.ordered.decoding import Head, Samples, decode
from tfplace.learned.ordered.neighborhoods import Neighborhoods
from tfplace.learned.ordered.network import (
  OrderedConfig,
  OrderedNetwork,
  exportable,
)
from tfplace.learned.ordered.placer import SIZES
from tfplace.learned.ordered.sampling import OrderedDraws, tables_of
from tfplace.learned.policy_format import Exportable
from tfplace.learned.sampling import Drawn
from tfplace.learned.train import time_step as ts
from tfplace.learned.train.config import PPOConfig, TrainConfig
from tfplace.learned.train.tasks import Task


@dataclasses.dataclass(frozen=True)
class OrderedPPOConfig(PPOConfig):
  """Settings in addition to `PPOConfig`, and other defaults than its.

  Attributes:
    temperature: Temperature of the logits in training.
    own_choices: Fraction of the decisions on an imitated path that the policy
      makes itself, in every second pass. The policy thus learns how to continue
      after a mistake.
    neighborhoods: Fraction of the iterations whose samples change only the
      decisions of one of `Neighborhoods`, as most samples of the placer do.
      Their rewards differ by fewer decisions. The default was not tuned.
    same_features: Devices whose features differ less are equivalent imitation
      targets.
  """

  entropy: float = 0.003
  averaging: float = 0.998
  elite: float = 0.25
  temperature: float = 1.0
  own_choices: float = 0.1
  neighborhoods: float = 0.75
  same_features: float = 1e-5


class OrderedLearner(EncoderLearner):
  """Learner of a policy that modifies a placement in order.

  Imitation is teacher-forced: decisions follow the target. The loss accepts the
  target device or any device with the same features, because the order of equal
  empty devices has no meaning. PPO uses the best placement so far as in SLIM
  (self-labeling, arXiv 2401.11849).
  """

  network_type: ClassVar[type] = OrderedConfig
  method_type: ClassVar[type] = OrderedPPOConfig
  network_class: ClassVar[type] = OrderedNetwork
  changes: ClassVar[bool] = True
  imitation_steps: ClassVar[int] = 10
  default_decisions: ClassVar[tuple[int | None, ...]] = SIZES

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(tasks, config)
    self._tables = [task.context.derived(tables_of) for task in tasks]
    self._neighborhoods = [Neighborhoods(tables) for tables in self._tables]
    self._tell = tf.function(
      lambda graph: (*self.policy(self._bank.get(graph)), *self.policy.head()),
      autograph=False,
    )

  def _make_actor(self) -> OrderedActor:
    temperature = self._method.temperature
    return OrderedActor(self._bank, self.policy, temperature)

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
      forced[rng.random(len(target)) < self._method.own_choices] = -1
    samples = self._decode(graph, noise[None], forced[None])
    observed, candidates = samples.observed[0], samples.candidates[0]
    at = np.arange(len(target))
    wanted = observed[at, target][:, None]
    off = np.abs(observed - wanted).max(axis=-1)
    same = candidates & (off <= self._method.same_features)
    known = same.any(axis=1)  # Off its path, the target may have no room.
    loss = self._imitate(
      tf.constant(graph), *map(tf.constant, (observed, candidates, same, known))
    )
    self._average.step()
    return float(loss)

  def _imitation_loss(self, graph: tf.Tensor, *given: tf.Tensor) -> tf.Tensor:
    observed, candidates, same, known = given
    contexts = self.policy(self._bank.get(graph))
    logits = self.policy.logits(contexts, observed, candidates)
    log_probs = tf.nn.log_softmax(logits)
    smoothing = self._config.imitation.smoothing
    return shared_loss(log_probs, candidates, same, known, smoothing)

  def _sample(
    self, graph: int, rng: np.random.Generator
  ) -> tuple[Drawn, ts.TimeStep, dict[str, Any]]:
    shape = 1 + self._method.samples, *self._shape(graph)
    noise = rng.gumbel(size=shape).astype(np.float32)
    noise *= np.float32(self._method.temperature)
    noise[0] = 0.0
    task = self._tasks[graph]
    kept = task.decisions.base_choices
    free = self._free(graph, rng)
    forced = np.where(free, -1, kept)[None].repeat(shape[0], 0).astype(np.int32)
    if task.best is not None:
      forced[-1] = np.where(free, task.best, kept)
    drawn = task.draw(OrderedDraws(self._head(graph), noise, forced))
    others = Samples(
      drawn.choices[1:], drawn.observed[1:], drawn.candidates[1:]
    )
    # What is not free has one choice, and so teaches nothing.
    others.candidates[:, ~free] = kept[~free, None] == np.arange(shape[2])
    first, info = self._look(observations(self._bank, graph, others))
    return Drawn(drawn.choices, drawn.step_us), first, info

  def _free(self, graph: int, rng: np.random.Generator) -> np.ndarray:
    """Draws the [N] bool decisions that samples of an iteration may change."""
    known = self._tasks[graph].decisions.base is not None
    if known and rng.random() < self._method.neighborhoods:
      return self._neighborhoods[graph].some(rng)
    return np.ones(self._shape(graph)[0], bool)

  def _head(self, graph: int) -> Head:
    return Head(*(part.numpy() for part in self._tell(tf.constant(graph))))

  def _shape(self, graph: int) -> tuple[int, ...]:
    return self._tables[graph].allowed.shape

  def _decode(
    self, graph: int, noise: np.ndarray, forced: np.ndarray
  ) -> Samples:
    tables = self._tables[graph]
    return decode(tables, self._head(graph), noise, forced, True)


def shared_loss(
  log_probs: tf.Tensor,
  candidates: tf.Tensor,
  same: tf.Tensor,
  known: tf.Tensor,
  smoothing: float,
) -> tf.Tensor:
  """Computes the cross-entropy with a set of equivalent targets.

  Args:
    log_probs: [N, D].
    candidates: [N, D] bool devices to choose from.
    same: [N, D] bool target and its equivalents.
    known: [N] bool decisions with a target.
    smoothing: Weight of the mean over all devices to choose from.
  """
  log_probs = tf.maximum(log_probs, -30.0)
  wanted = tf.reduce_logsumexp(tf.where(same, log_probs, -1e9), axis=1)
  number = tf.reduce_sum(tf.cast(candidates, tf.float32), axis=1)
  every = tf.reduce_sum(tf.where(candidates, log_probs, 0.0), axis=1)
  every /= tf.maximum(number, 1.0)
  mixed = (1.0 - smoothing) * wanted + smoothing * every
  weight = tf.cast(known, tf.float32)
  total = tf.maximum(tf.reduce_sum(weight), 1.0)
  return -tf.reduce_sum(tf.where(known, mixed, 0.0)) / total
