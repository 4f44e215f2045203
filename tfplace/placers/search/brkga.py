"""BRKGA: a biased random-key genetic algorithm.

Goncalves and Resende, "Biased random-key genetic algorithms for combinatorial
optimization" (2011); the baseline of REGAL (arXiv 1905.02494). A group has one
key per device, its preference, and one for its turn.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from tfplace.graph.budget import Budget
from tfplace.graph.evaluation import Evaluation, Result
from tfplace.graph.problem import Problem
from tfplace.graph.protocols import Evaluator
from tfplace.placers.groups import GroupGraph
from tfplace.placers.list_scheduling.co_placement import GROUPINGS, co_placed
from tfplace.placers.list_scheduling.placers import held_bytes, preferred
from tfplace.placers.repair import offer_repaired
from tfplace.placers.tracker import Tracker, excess
from tfplace.simulate.jit import kernel

_UNFIT = 1e30  # more than any step time of a placement that fits


# Within the ranges that the authors recommend: vectors of keys in all, copied
# as the elite, and random. They yield over 100 generations in 10,000
# evaluations.
_POPULATION, _ELITE, _MUTANTS = 100, 20, 15
_BIAS = 0.7  # Probability that a child takes a key from its elite parent.
# Number of groups above which groups are co-placed, by the first rules that
# reach it, else by all rules.
_MAX_GROUPS = 1500
_BATCH = 20  # Evaluations between two checks of the budget.


@dataclasses.dataclass(frozen=True)
class BrkgaPlacer:
  """Biased random-key genetic algorithm."""

  name: ClassVar[str] = "brkga"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Evolves until the budget is spent.

    If no placement fits by then, the closest one is repaired, which takes some
    extra evaluations.
    """
    tracker = Tracker(self.name, problem, evaluator, budget)
    decoder = Decoder(GroupGraph(_coarse(problem)))
    rng = np.random.default_rng(seed)
    keys = rng.random((_POPULATION, *decoder.shape), np.float32)
    cost = np.full(_POPULATION, np.inf)
    first = 0  # Vectors before `first` have been evaluated.
    while _evaluate(tracker, decoder, keys[first:], cost[first:]):
      if not decoder.has_choice:
        break
      order = np.argsort(cost, kind="stable")
      keys, cost = keys[order], cost[order]
      evolve(keys, rng)
      first = _ELITE
      cost[first:] = np.inf
    if tracker.best is None:
      groups = GroupGraph(problem)
      nearest = decoder.decode(keys[int(cost.argmin())])
      devices = groups.contract(decoder.groups.expand(nearest))
      offer_repaired(tracker, groups, devices)
    return tracker.result()


def _coarse(problem: Problem) -> Problem:
  coarse = problem
  for rules in GROUPINGS:
    if coarse.num_groups > _MAX_GROUPS:
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
    devices = np.empty(len(order), np.int32)
    _decode(keys, order, self._allowed, self._held, room, devices)
    return devices


@kernel
def _decode(
  keys: np.ndarray,
  order: np.ndarray,
  allowed: np.ndarray,
  held: np.ndarray,
  room: np.ndarray,
  result: np.ndarray,
) -> None:
  """Picks the preferred device with room, else the one with most room."""
  num_devices = allowed.shape[1]
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


def _evaluate(
  tracker: Tracker, decoder: Decoder, keys: np.ndarray, cost: np.ndarray
) -> bool:
  """Evaluates [count, *shape] key vectors and fills [count] costs.

  A cost is the step time, or above 1e30 by the missing bytes. The first vector
  is evaluated regardless of the budget. Returns False if the budget ended early
  or an optimum was found.
  """
  for first in range(0, len(keys), _BATCH):
    count = min(_BATCH, len(keys) - first)
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
  return _UNFIT * (1.0 + max(excess(problem, evaluation).values(), default=0.0))


def evolve(keys: np.ndarray, rng: np.random.Generator) -> None:
  """Replaces all but the elite of [population, ...] sorted vectors."""
  num_children = len(keys) - _ELITE - _MUTANTS
  better = rng.integers(0, _ELITE, num_children)
  worse = rng.integers(_ELITE, len(keys), num_children)
  children = []
  for a, b in zip(better, worse, strict=True):
    takes = rng.random(keys.shape[1:], np.float32) < _BIAS
    children.append(np.where(takes, keys[a], keys[b]))
  keys[_ELITE:-_MUTANTS] = children
  mutants = keys[-_MUTANTS:]
  mutants[:] = rng.random(mutants.shape, np.float32)
