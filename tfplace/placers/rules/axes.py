"""Axis splits: layers, time steps, segments or stacks, from op names.

`decode_37/lstm_layer_1` is number 37 and 1 of two axes (see `graph.op_names`).
Devices split one or two axes, and the best split is kept. Specific to tfplace.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tfplace.graph.budget import Budget
from tfplace.graph.op_names import UNKNOWN, Part, numbered_parts, scope_of
from tfplace.placers.groups import GroupGraph, main_devices
from tfplace.placers.one_shot import Batches
from tfplace.simulate.jit import kernel


@dataclasses.dataclass(frozen=True, eq=False)
class Scopes:
  """The scope of every group.

  Attributes:
    of: [num_groups] scope of each group, 0, 1, ...
    paths: [num_scopes] parts of each scope, outermost first; () if names give
      no scope.
  """

  of: np.ndarray
  paths: tuple[tuple[Part, ...], ...]


def read_scopes(
  groups: GroupGraph, names: Sequence[str] | None = None
) -> Scopes:
  """Reads scopes from the name of each group's longest op.

  A group without a scope takes the scope of a neighbor.

  Args:
    names: [num_ops] names to read; by default the names of the ops.
  """
  if names is None:
    names = groups.problem.graph.names
  known: dict[str, int] = {}
  of = np.full(groups.num_groups, UNKNOWN)
  for group, op in enumerate(longest_ops(groups).tolist()):
    scope = scope_of(names[op])
    if scope is not None:
      of[group] = known.setdefault(scope, len(known))
  of = spread(groups, of)
  if (of == UNKNOWN).any():
    of[of == UNKNOWN] = known.setdefault("", len(known))
  return Scopes(of, tuple(map(numbered_parts, known)))


def spread(groups: GroupGraph, wanted: np.ndarray) -> np.ndarray:
  """Fills in unknown [num_groups] values from neighboring groups.

  Among the neighbors with a value, the one with the most traffic counts. Three
  sweeps go forward, backward and forward through the groups' order.
  """
  offsets, entries, size = groups.neighbors
  result = wanted.astype(np.int64)
  back = np.ascontiguousarray(groups.order[::-1])
  for order in (groups.order, back, groups.order):
    _sweep(result, offsets, entries, size, order)
  return result


@kernel
def _sweep(
  values: np.ndarray,
  offsets: np.ndarray,
  entries: np.ndarray,
  size: np.ndarray,
  order: np.ndarray,
) -> None:
  """Fills in [num_groups] values in order; ties go to the first neighbor."""
  for group in order:
    if values[group] != UNKNOWN:
      continue
    heaviest = -1.0
    for i in range(offsets[group], offsets[group + 1]):
      other = entries[i] if entries[i] >= 0 else -1 - entries[i]
      if values[other] != UNKNOWN and size[i] > heaviest:
        heaviest, values[group] = size[i], values[other]


def longest_ops(groups: GroupGraph) -> np.ndarray:
  """Returns [num_groups] longest op of each group; ties go to the first."""
  problem = groups.problem
  order = np.lexsort((-problem.fastest_us, problem.group_of))
  offsets, _ = problem.group_ops
  return order[offsets[:-1]]


def axes(groups: GroupGraph, seed: int, budget: Budget) -> Batches:
  """Proposes every split; without an axis, one device runs everything."""
  devices, scopes = main_devices(groups), read_scopes(groups)
  ranks = find_axes(groups, scopes)
  parts: Iterable[np.ndarray] = splits(ranks, len(devices))
  if not ranks:
    parts = [np.zeros(len(scopes.paths), int)]
  yield (_placed(groups, part[scopes.of], devices) for part in parts)


def find_axes(
  groups: GroupGraph,
  scopes: Scopes,
  max_axes: int = 4,
  least_share: float = 0.02,
) -> list[np.ndarray]:
  """Finds the axes of a model, ordered by decreasing work.

  Args:
    least_share: share of the work that an axis must number; both by trial.

  Returns:
    For each axis, the [num_scopes] rank of each scope's number, UNKNOWN without
    one.
  """
  work = np.bincount(scopes.of, groups.fastest_us, len(scopes.paths))
  families: dict[str, dict[int, int]] = {}
  for scope, path in enumerate(scopes.paths):
    for base, number in reversed(path):  # The outermost number counts.
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
  """Yields the [num_scopes] part of each scope per split, or UNKNOWN."""
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
  """Divides an axis into contiguous blocks."""
  part = ranks * num_parts // (ranks.max() + 1)
  return np.where(ranks == UNKNOWN, UNKNOWN, part)


def _in_turn(ranks: np.ndarray, num_parts: int) -> np.ndarray:
  """Deals the ranks of an axis to parts in turn."""
  return np.where(ranks == UNKNOWN, UNKNOWN, ranks % num_parts)


def _ranks(numbers: dict[int, int], num_scopes: int) -> np.ndarray:
  result = np.full(num_scopes, UNKNOWN)
  values = np.array(list(numbers.values()))
  result[list(numbers)] = np.unique(values, return_inverse=True)[1]
  return result


def _placed(
  groups: GroupGraph, part: np.ndarray, devices: np.ndarray
) -> np.ndarray:
  """Converts [num_groups] parts to devices; unknown parts follow neighbors."""
  wanted = devices[np.maximum(spread(groups, part), 0)]
  return groups.nearest(wanted)
