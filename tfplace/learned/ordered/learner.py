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
from tfplace.learned.sampling import Drawn, Given, step_times
from tfplace.learned.train import time_step as ts
from tfplace.learned.train.config import PPOConfig, TrainConfig
from tfplace.learned.train.tasks import Task
from tfplace.simulate import Simulator


@dataclasses.dataclass(frozen=True)
class OrderedPPOConfig(PPOConfig):
  """Settings in addition to `PPOConfig`, and other defaults than its.

  Attributes:
    temperature: Temperature of the logits in training.
    singles: Changes of one decision that an imitation step learns from.
    draws: Draws of these changes per task, after which they come again: their
      simulation takes longer than the gradient.
    gain: Gain, as the log of the speedup, that makes such a change e times as
      likely as keeping the decision.
    neighborhoods: Fraction of the iterations whose samples change only the
      decisions of one of `Neighborhoods`, as most samples of the placer do.
      Their rewards differ by fewer decisions. The default was not tuned.
  """

  entropy: float = 0.003
  averaging: float = 0.998
  elite: float = 0.25
  temperature: float = 1.0
  singles: int = 128
  draws: int = 4
  gain: float = 1e-3
  neighborhoods: float = 0.75


class OrderedLearner(EncoderLearner):
  """Learner of a policy that modifies a placement in order.

  Imitation learns from simulated changes of single decisions. The odds of a
  change are those of the best policy with an entropy bonus, exp(log speedup /
  `gain`). PPO then learns changes of several decisions, and uses the best
  placement so far as in SLIM (self-labeling, arXiv 2401.11849).
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
    self._changes: dict[tuple[int, int], tuple[np.ndarray, ...]] = {}
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
    """See `Learner`; the changes depend on the number of completed steps."""
    kept = self._tasks[graph].decisions.base_choices
    step = int(self.imitation_optimizer.iterations)
    draw = step // len(self._tasks) % self._method.draws
    if (graph, draw) not in self._changes:
      self._changes[graph, draw] = self._simulated_changes(graph, draw)
    samples = self._decode(
      graph, np.zeros((1, *self._shape(graph)), np.float32), kept[None]
    )
    given = samples.observed[0], samples.candidates[0], kept
    changes = self._changes[graph, draw]
    loss = self._imitate(
      tf.constant(graph), *map(tf.constant, (*given, *changes))
    )
    self._average.step()
    return float(loss)

  def _simulated_changes(
    self, graph: int, draw: int
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws changes: decisions, devices, and wanted probabilities."""
    task, method = self._tasks[graph], self._method
    rng = np.random.default_rng([self._config.seed, graph, draw])
    kept = task.decisions.base_choices
    decision, device = _singles(self._tables[graph].allowed, kept, rng, method)
    choices = kept[None].repeat(1 + len(decision), 0)
    choices[np.arange(len(decision)), decision] = device
    *step_us, base_us = self._simulated(task, choices)
    with np.errstate(divide="ignore"):
      gain = np.log(base_us / np.array(step_us)) / method.gain
    right = 1.0 / (1.0 + np.exp(-np.clip(gain, -30.0, 30.0)))
    return decision, device, right.astype(np.float32)

  def _simulated(self, task: Task, choices: np.ndarray) -> np.ndarray:
    """Simulates [B, N] choices, whatever rewards are: gains are exact.

    The task does not count them: a resumed run simulates them again.
    """
    if isinstance(task.evaluator, Simulator):
      return task.compute(Given(choices)).step_us
    simulator = Simulator(task.decisions.problem)
    return step_times(simulator, task.decisions.to_devices(choices))

  def _imitation_loss(self, graph: tf.Tensor, *given: tf.Tensor) -> tf.Tensor:
    observed, candidates, kept, decision, device, right = given
    contexts = self.policy(self._bank.get(graph))
    logits = self.policy.logits(contexts, observed, candidates)
    logits = tf.gather(logits, decision)
    kept = tf.gather(kept, decision)
    change = tf.gather(logits, device, batch_dims=1)
    change -= tf.gather(logits, kept, batch_dims=1)
    each = tf.nn.sigmoid_cross_entropy_with_logits(right, change)
    possible = tf.gather(tf.gather(candidates, decision), device, batch_dims=1)
    weight = tf.cast(possible, tf.float32)
    total = tf.maximum(tf.reduce_sum(weight), 1.0)
    return tf.reduce_sum(tf.where(possible, each, 0.0)) / total

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
    observed, candidates = drawn.observed[1:], drawn.candidates[1:].copy()
    # Fixed decisions get one candidate, so they have no gradient.
    candidates[:, ~free] = kept[~free, None] == np.arange(shape[2])
    seen = observations(self._bank, graph, observed, candidates)
    first, info = self._look(seen)
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


def _singles(
  allowed: np.ndarray,
  kept: np.ndarray,
  rng: np.random.Generator,
  method: OrderedPPOConfig,
) -> tuple[np.ndarray, np.ndarray]:
  """Draws changes of single decisions: their numbers and devices."""
  possible = allowed.copy()
  possible[np.arange(len(kept)), kept] = False
  pairs = np.argwhere(possible).astype(np.int32)
  if len(pairs) > method.singles:
    pairs = pairs[rng.choice(len(pairs), method.singles, replace=False)]
  return pairs[:, 0], pairs[:, 1]
