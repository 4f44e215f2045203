"""BRKGA: a biased random-key genetic algorithm.

Goncalves and Resende, "Biased random-key genetic algorithms for combinatorial
optimization" (2011); the baseline of REGAL (arXiv 1905.02494). A group has one
key per device, its preference, and one for its turn.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from tfplace.core.budget import Budget
from tfplace.core.evaluation import Evaluation, Result
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator
from tfplace.placers.groups import GroupGraph
from tfplace.placers.list_scheduling.co_placement import GROUPINGS, co_placed
from tfplace.placers.list_scheduling.placers import held_bytes, preferred
from tfplace.placers.repair import offer_repaired
from tfplace.placers.tracker import Tracker, overflow
from tfplace.simulate.jit import allocating

_UNFIT = 1e30  # more than any step time of a placement that fits


@dataclasses.dataclass(frozen=True)
class BrkgaConfig:
  """Settings of BRKGA, within the ranges that its authors recommend.

  The population yields over 100 generations in 10,000 evaluations.

  Attributes:
    population: Number of key vectors.
    elite: Fraction of the population that is copied.
    mutants: Fraction of the population that is random.
    bias: Probability that a child takes a key from its elite parent.
    max_groups: Number of groups above which groups are co-placed, by the first
      rules that reach it, else by all rules.
    batch: Number of evaluations between two checks of the budget.
  """

  population: int = 100
  elite: float = 0.2
  mutants: float = 0.15
  bias: float = 0.7
  max_groups: int = 1500
  batch: int = 20

  @property
  def num_elite(self) -> int:
    return max(1, int(self.elite * self.population))

  @property
  def num_mutants(self) -> int:
    return max(1, int(self.mutants * self.population))


@dataclasses.dataclass(frozen=True)
class BrkgaPlacer:
  """Biased random-key genetic algorithm."""

  config: BrkgaConfig = dataclasses.field(default_factory=BrkgaConfig)
  name: ClassVar[str] = "brkga"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Evolves until the budget is spent.

    If no placement fits by then, the closest one is repaired, which takes some
    extra evaluations.
    """
    tracker = Tracker(self.name, problem, evaluator, budget)
    decoder = Decoder(GroupGraph(_coarse(problem, self.config.max_groups)))
    rng = np.random.default_rng(seed)
    config = self.config
    keys = rng.random((config.population, *decoder.shape), np.float32)
    cost = np.full(config.population, np.inf)
    first = 0  # Vectors before `first` have been evaluated.
    while evaluate(tracker, decoder, keys[first:], cost[first:], config.batch):
      if not decoder.has_choice:
        break
      order = np.argsort(cost, kind="stable")
      keys, cost = keys[order], cost[order]
      evolve(keys, config, rng)
      first = config.num_elite
      cost[first:] = np.inf
    if tracker.best is None:
      groups = GroupGraph(problem)
      nearest = decoder.decode(keys[int(cost.argmin())])
      devices = groups.contract(decoder.groups.expand(nearest))
      offer_repaired(tracker, groups, devices)
    return tracker.result()


def _coarse(problem: Problem, max_groups: int) -> Problem:
  coarse = problem
  for rules in GROUPINGS.values():
    if coarse.num_groups > max_groups:
      coarse = co_placed(problem, *rules)
  return coarse


class Decoder:
  """Decodes keys into placements of groups.

  Attributes:
    groups: Groups of the problem.
    shape: (num_groups, num_devices + 1) of a key vector. The last column
      contains the turns; the largest goes first.
    has_choice: True if some group can be on several devices.
  """

  def __init__(self, groups: GroupGraph) -> None:
    self.groups = groups
    self.shape = groups.num_groups, groups.num_devices + 1
    self._allowed = preferred(groups)
    self._held = held_bytes(groups)
    self.has_choice = bool((self._allowed.sum(axis=1) > 1).any())

  def decode(self, keys: np.ndarray) -> np.ndarray:
    """Decodes keys of `shape` into [num_groups] int32 devices."""
    order = np.argsort(-keys[:, -1], kind="stable")
    room = self.groups.problem.cluster.memory_bytes.copy()
    return _decode(keys, order, self._allowed, self._held, room)


@allocating
def _decode(
  keys: np.ndarray,
  order: np.ndarray,
  allowed: np.ndarray,
  held: np.ndarray,
  room: np.ndarray,
) -> np.ndarray:
  """Picks the preferred device with room, else the one with most room."""
  num_groups, num_devices = allowed.shape
  result = np.empty(num_groups, np.int32)
  for group in order:
    best, roomiest = -1, -1
    for device in range(num_devices):
      if not allowed[group, device]:
        continue
      if roomiest < 0 or room[device] > room[roomiest]:
        roomiest = device
      if room[device] >= held[group] and (
        best < 0 or keys[group, device] > keys[group, best]
      ):
        best = device
    result[group] = best if best >= 0 else roomiest
    room[result[group]] -= held[group]
  return result


def evaluate(
  tracker: Tracker,
  decoder: Decoder,
  keys: np.ndarray,
  cost: np.ndarray,
  batch: int,
) -> bool:
  """Evaluates [count, *shape] key vectors and fills [count] costs.

  A cost is the step time, or above 1e30 by the missing bytes. The first vector
  is evaluated regardless of the budget. Returns False if the budget ended early
  or an optimum was found.
  """
  for first in range(0, len(keys), batch):
    count = min(batch, len(keys) - first)
    left = tracker.left.max_evaluations
    if left is not None:
      count = min(count, left)
    if tracker.evaluations and tracker.is_done:
      return False
    chosen = slice(first, first + max(count, 1))
    rows = [decoder.groups.expand(decoder.decode(k)) for k in keys[chosen]]
    evaluations = tracker.offer_all(np.stack(rows))
    cost[chosen] = [_cost(tracker.problem, e) for e in evaluations]
  return True


def _cost(problem: Problem, evaluation: Evaluation) -> float:
  if evaluation.feasible or not np.isfinite(evaluation.step_time_us):
    return evaluation.step_time_us
  return _UNFIT * (1.0 + overflow(problem, evaluation)[0])


def evolve(
  keys: np.ndarray, config: BrkgaConfig, rng: np.random.Generator
) -> None:
  """Replaces all but the elite of [population, ...] sorted vectors."""
  elite, size = config.num_elite, len(keys)
  num_children = max(0, size - elite - config.num_mutants)
  better = rng.integers(0, elite, num_children)
  worse = rng.integers(min(elite, size - 1), size, num_children)
  children = []
  for a, b in zip(better, worse, strict=True):
    takes = rng.random(keys.shape[1:], np.float32) < config.bias
    children.append(np.where(takes, keys[a], keys[b]))
  keys[elite : elite + num_children] = children
  mutants = keys[elite + num_children :]
  mutants[:] = rng.random(mutants.shape, np.float32)
