"""Splits a model along its axes: layers, time steps, segments, stacks.

What a model repeats it numbers in its ops' names (`segment_3`, `decode_17`,
`transformer_layer_5`). Each such family of numbers is an axis to split along,
as pipelines split layers and data parallelism splits examples; two axes make
a grid of devices, or one splits what the other leaves. There are few such
placements: all are simulated, and the best is kept. Nothing is searched, and
no family of models is known by name, other than in `expert`. (Ours; the
papers have no such baseline.)
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tfplace.core.problem import Problem
from tfplace.core.protocols import Budget, Evaluator, Result
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_repaired
from tfplace.placers.rules.single import main_devices
from tfplace.placers.scopes import UNKNOWN, Scopes, read_scopes, spread
from tfplace.placers.tracker import Tracker

MAX_AXES = 4
LEAST_SHARE = 0.02


@dataclasses.dataclass(frozen=True)
class AxesPlacer:
  """The best split along one or two axes.

  Attributes:
    max_axes: axes that are tried, those with the most work in them.
    least_share: of all work, what must be numbered by an axis.
  """

  max_axes: int = MAX_AXES
  least_share: float = LEAST_SHARE
  name: ClassVar[str] = "axes"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Tries every split; without any axis, one device has it all."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    groups = GroupGraph(problem)
    devices = main_devices(groups)
    scopes = read_scopes(groups)
    axes = find_axes(groups, scopes, self.max_axes, self.least_share)
    best, best_us = None, np.inf
    for part in splits(axes, len(devices)):
      placed = _placed(groups, part[scopes.of], devices)
      found_us = tracker.offer(groups.expand(placed)).step_time_us
      if best is None or found_us < best_us:
        best, best_us = placed, found_us
      if budget.left_s <= 0:
        break
    if best is None:
      best = _placed(groups, np.zeros(groups.num_groups, int), devices)
    if tracker.best is None:
      offer_repaired(tracker, groups, best)
    return tracker.result()


def find_axes(
  groups: GroupGraph,
  scopes: Scopes,
  max_axes: int = MAX_AXES,
  least_share: float = LEAST_SHARE,
) -> list[np.ndarray]:
  """The axes of a model, the one with the most work in it first.

  Args:
    groups: of the problem.
    scopes: of these groups.
    max_axes: how many to find at most.
    least_share: of all work, what must be numbered by an axis.

  Returns:
    Per axis, [num_scopes] rank of each scope's number among those of the axis,
    UNKNOWN where it has none.
  """
  work = np.bincount(scopes.of, groups.fastest_us, len(scopes.paths))
  families: dict[str, dict[int, int]] = {}
  for scope, path in enumerate(scopes.paths):
    for base, number in reversed(path):  # the outermost number counts
      if number != UNKNOWN:
        families.setdefault(base, {})[scope] = number
  total = max(float(work.sum()), 1e-300)
  shares = {
    base: float(work[list(numbers)].sum()) / total
    for base, numbers in families.items()
  }
  ranked = [
    _ranks(families[base], len(scopes.paths))
    for base in sorted(families, key=lambda base: (-shares[base], base))
    if shares[base] >= least_share and len(families[base]) > 1
  ]
  return [axis for axis in ranked if axis.max() > 0][:max_axes]


def splits(axes: list[np.ndarray], num_parts: int) -> Iterator[np.ndarray]:
  """Per split, [num_scopes] part of each scope, UNKNOWN where it says nothing.

  Args:
    axes: [num_scopes] rank on each axis.
    num_parts: devices.
  """
  for deal in (_blocks, _in_turn):
    for axis in axes:
      yield deal(axis, num_parts)
  for deal in (_blocks, _in_turn):
    for outer, inner in itertools.permutations(axes, 2):
      for count in range(2, num_parts):
        if num_parts % count == 0:
          yield _grid(deal(outer, count), deal(inner, num_parts // count))
      first = deal(outer, num_parts)
      rest = deal(inner, num_parts)
      if ((first == UNKNOWN) & (rest != UNKNOWN)).any():
        yield np.where(first == UNKNOWN, rest, first)


def _grid(outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
  known = (outer != UNKNOWN) & (inner != UNKNOWN)
  return np.where(known, outer * (inner.max() + 1) + inner, UNKNOWN)


def _blocks(ranks: np.ndarray, num_parts: int) -> np.ndarray:
  """Neighbours on an axis stay together."""
  part = ranks * num_parts // (ranks.max() + 1)
  return np.where(ranks == UNKNOWN, UNKNOWN, part)


def _in_turn(ranks: np.ndarray, num_parts: int) -> np.ndarray:
  """One after the other, as cards are dealt."""
  return np.where(ranks == UNKNOWN, UNKNOWN, ranks % num_parts)


def _ranks(numbers: dict[int, int], num_scopes: int) -> np.ndarray:
  """[num_scopes]: numbers -> 0, 1, ... without gaps; UNKNOWN without one."""
  result = np.full(num_scopes, UNKNOWN)
  values = np.array(list(numbers.values()))
  result[list(numbers)] = np.unique(values, return_inverse=True)[1]
  return result


def _placed(
  groups: GroupGraph, part: np.ndarray, devices: np.ndarray
) -> np.ndarray:
  """[num_groups] parts -> devices; what has no part goes with neighbours."""
  wanted = devices[np.maximum(spread(groups, part), 0)]
  return groups.nearest(wanted)
