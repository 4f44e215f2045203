"""A policy that decides in order as a placer; needs the base install."""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tfplace.core.problem import Problem
from tfplace.core.protocols import Budget, Evaluator, Result
from tfplace.errors import PlacementError
from tfplace.learned import exported
from tfplace.learned.decisions import Decisions, decisions_at
from tfplace.learned.gdp import features
from tfplace.learned.gdp.decoding import SEEN, SLOWER, Head, decode
from tfplace.learned.gdp.partial import PartialTables, partial_tables
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_like
from tfplace.placers.tracker import Tracker

SIZES = (512,)  # decisions of a pass, where the policy does not say
# Of the draws, one after the other: hot draws differ more.
TEMPERATURES = (0.2, 0.5, 1.0)
WINDOWS = (0.02, 0.05, 0.1, 0.25)  # of the decisions, that are decided anew
_NEVER_SLOW = 100.0  # nats for a device that is e times as slow


@dataclasses.dataclass(frozen=True, eq=False)
class OrderedPlacer:
  """Decides clusters one after the other, and keeps the best of its draws.

  Attributes:
    policy: directory of an exported policy; None is the one that ships.
    samples: most draws per size, besides the most probable placement; at
      44,000 ops, 256 of them take 3 s.
    whole: so many of them decide everything; the others leave most decisions
      as the best so far has them (learned large-neighborhood search, Wu et al.,
      arXiv 2302.01578, where a network proposes what to decide anew).
  """

  policy: str | None = None
  samples: int = 256
  whole: int = 256
  name: ClassVar[str] = "ordered"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """The best of the most probable placements, then of draws at each size in
    turn.

    Raises:
      TrainingError: no policy is there, or it cannot be loaded.
      InfeasibleError: nothing that it tried fits in memory.
    """
    policy = exported.load_placers_policy(self.name, self.policy)
    sizes = [n for n in policy.decisions() if n is not None] or SIZES
    return self.draws(problem, evaluator, budget, seed, policy, sizes)

  def draws(
    self,
    problem: Problem,
    evaluator: Evaluator,
    budget: Budget,
    seed: int,
    policy: exported.Policy | None,
    sizes: Sequence[int],
  ) -> Result:
    """As `place`, with so many decisions; no policy draws any devices."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    groups = GroupGraph(problem)
    rng = np.random.default_rng(seed)
    passes = [
      Pass(decisions, policy_head(policy, decisions))
      for decisions in decisions_at(problem, sizes)
    ]
    for one in passes:
      offer_like(tracker, groups, one.greedy())
    for draw in range(self.samples):
      temperature = TEMPERATURES[draw % len(TEMPERATURES)]
      for one in passes:
        if tracker.is_done:
          return tracker.result()
        one.draw(tracker, rng, temperature, draw < self.whole)
    return tracker.result()


def policy_head(policy: exported.Policy | None, decisions: Decisions) -> Head:
  """What a policy says of a problem, before anything is decided; without one,
  that all devices are as good."""
  if policy is None:
    return uniform_head(decisions.num_decisions)
  seen = features.extract(decisions, policy.axes)
  told = policy.run("contexts", seen.tensors().values())
  return Head(*told, *policy.run("head", ()))


class Pass:
  """Draws of one policy at one number of decisions."""

  def __init__(self, decisions: Decisions, head: Head) -> None:
    self.decisions = decisions
    self.tables: PartialTables = partial_tables(decisions)
    self.head = head
    self._best: np.ndarray | None = None
    self._best_us = math.inf

  @property
  def _shape(self) -> tuple[int, int]:
    return self.tables.allowed.shape[0], self.tables.allowed.shape[1]

  def greedy(self) -> np.ndarray:
    """[num_ops] devices, the most probable one at each decision."""
    noise = np.zeros((1, *self._shape), np.float32)
    return self.decisions.to_devices(decode_all(self.tables, self.head, noise))[
      0
    ]

  def draw(
    self,
    tracker: Tracker,
    rng: np.random.Generator,
    temperature: float,
    whole: bool = True,
  ) -> None:
    """Offers a draw: of all decisions, or of some beside the best so far."""
    noise = rng.gumbel(size=(1, *self._shape)) * temperature
    forced = np.full((1, self._shape[0]), -1, np.int32)
    if self._best is not None and not whole:
      forced[0] = np.where(self._some(rng), -1, self._best)
    choices = decode(
      self.tables, self.head, noise.astype(np.float32), forced, False
    ).choices[0]
    with contextlib.suppress(PlacementError):
      found = tracker.offer(self.decisions.to_devices(choices))
      if found.feasible and found.step_time_us < self._best_us:
        self._best, self._best_us = choices, found.step_time_us

  def _some(self, rng: np.random.Generator) -> np.ndarray:
    """[N] bool: decisions that are near each other in time, of one layer, or
    of one microbatch in some layers."""
    count, tables = self._shape[0], self.tables
    if rng.random() < 0.5:
      length = int(count * rng.choice(WINDOWS)) + 1
      start = rng.integers(0, max(1, count - length + 1))
      by_start = np.argsort(tables.position, kind="stable")
      result = np.zeros(count, bool)
      result[by_start[start : start + length]] = True
      return result
    chosen = rng.integers(0, count)
    labels = (tables.layer, tables.pair)[rng.integers(0, 2)]
    return labels == labels[chosen]


def decode_all(
  tables: PartialTables, head: Head, noise: np.ndarray
) -> np.ndarray:
  """[B, N, D] noise -> [B, N] devices."""
  free = np.full(noise.shape[:2], -1, np.int32)
  return decode(tables, head, noise, free, False).choices


def uniform_head(num_decisions: int) -> Head:
  """Of a policy that knows nothing but which devices are slow: all others are
  as good."""
  shapes = ((num_decisions, 1), (num_decisions, SEEN), (SEEN, 1), (1, 1))
  weights = [np.zeros(shape, np.float32) for shape in (*shapes, (1,), (1,))]
  weights[1][:, SLOWER] = -_NEVER_SLOW
  return Head(*weights)
