"""Splits a model along its axes: layers, time steps, segments, stacks.

TensorFlow names an op by the layers around it, and its gradient after it:
`gradient_tape/model/decode_37/lstm_layer_1/MatMul/MatMul_1` is a gradient in
the scope `model/decode_37/lstm_layer_1`, whose parts `decode` and `lstm_layer`
have the numbers 37 and 1. Each such family of numbers is an axis to split
along, as pipelines split layers and data parallelism splits examples; two axes
make a grid of devices, or one splits what the other leaves. All of these few
placements are simulated, and the best is kept. (Ours; the papers have no such
baseline.)
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from tfplace.core.problem import Problem
from tfplace.core.protocols import Budget, Evaluator, Result
from tfplace.placers.groups import GroupGraph, main_devices
from tfplace.placers.repair import offer_repaired
from tfplace.placers.tracker import Tracker
from tfplace.simulate.jit import allocating

UNKNOWN = -1
Part = tuple[str, int]  # a component of a name, and its number or UNKNOWN

_GRADIENT = re.compile(r"^(gradient_tape|gradients|Gradients)/")
# More digits are a hash, which numbers nothing.
_NUMBERED = re.compile(r"^(.*?)_?(?<!\d)(\d{1,9})$")
# A name of fewer parts (`AddN_3`, `adam/Mul_2`) tells no scope.
_LEAST_PARTS = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Scopes:
  """The scope of every group.

  Attributes:
    of: [num_groups] scope of each group, 0, 1, ...
    paths: per scope, its parts from the outside in; () where names tell none.
  """

  of: np.ndarray
  paths: tuple[tuple[Part, ...], ...]


def forward_name(name: str) -> str:
  """The name of a gradient's forward op; other names as they are."""
  return _GRADIENT.sub("", name)


def read_scopes(
  groups: GroupGraph, names: Sequence[str] | None = None
) -> Scopes:
  """Scopes by the name of each group's longest op.

  A group whose name tells none is of the scope of a neighbour.

  Args:
    groups: of the problem.
    names: [num_ops] to read them from; the ops' own by default.
  """
  if names is None:
    names = groups.problem.graph.names
  known: dict[str, int] = {}
  of = np.full(groups.num_groups, UNKNOWN)
  for group, op in enumerate(longest_ops(groups).tolist()):
    scope = _scope(names[op])
    if scope is not None:
      of[group] = known.setdefault(scope, len(known))
  of = spread(groups, of)
  if (of == UNKNOWN).any():
    of[of == UNKNOWN] = known.setdefault("", len(known))
  return Scopes(of, tuple(_parts(path) for path in known))


def spread(groups: GroupGraph, wanted: np.ndarray) -> np.ndarray:
  """[num_groups]: what is unknown takes the value of a neighbour.

  Of the neighbours with a value, that with the most traffic, in three sweeps
  forth, back and forth through the groups' order.
  """
  offsets, entries, size = groups.neighbours
  result = wanted.astype(np.int64)
  back = np.ascontiguousarray(groups.order[::-1])
  for order in (groups.order, back, groups.order):
    _sweep(result, offsets, entries, size, order)
  return result


@allocating
def _sweep(
  values: np.ndarray,
  offsets: np.ndarray,
  entries: np.ndarray,
  size: np.ndarray,
  order: np.ndarray,
) -> None:
  """Fills in [num_groups] values, in order; of equals the first counts."""
  for group in order:
    if values[group] != UNKNOWN:
      continue
    heaviest = -1.0
    for i in range(offsets[group], offsets[group + 1]):
      other = entries[i] if entries[i] >= 0 else -1 - entries[i]
      if values[other] != UNKNOWN and size[i] > heaviest:
        heaviest, values[group] = size[i], values[other]


def longest_ops(groups: GroupGraph) -> np.ndarray:
  """[num_groups] op of each group that takes longest; the first of equals."""
  problem = groups.problem
  order = np.lexsort((-problem.fastest_us, problem.group_of))
  offsets, _ = problem.group_ops
  return order[offsets[:-1]]


def _scope(name: str) -> str | None:
  """A name's scope, that of its forward op; None if it tells none."""
  forward = forward_name(name)
  parts = forward.split("/")
  if len(parts) < _LEAST_PARTS:
    return None
  # A gradient's name is that of the forward op, and its own.
  own = 2 if forward != name and len(parts) > _LEAST_PARTS else 1
  return "/".join(parts[:-own])


def _parts(path: str) -> tuple[Part, ...]:
  return tuple(_part(text) for text in path.split("/")) if path else ()


def _part(text: str) -> Part:
  match = _NUMBERED.match(text)
  return (match[1], int(match[2])) if match else (text, UNKNOWN)


_LEAST_SHARE = 0.02  # of all work, what must be numbered by an axis


@dataclasses.dataclass(frozen=True)
class AxesPlacer:
  """The best split along one or two axes."""

  name: ClassVar[str] = "axes"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Tries every split; without any axis, one device has it all."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    groups = GroupGraph(problem)
    devices = main_devices(groups)
    scopes = read_scopes(groups)
    axes = find_axes(groups, scopes)
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
  groups: GroupGraph, scopes: Scopes, max_axes: int = 4
) -> list[np.ndarray]:
  """The axes of a model, the one with the most work in it first.

  Args:
    groups: of the problem.
    scopes: of these groups.
    max_axes: how many to find at most.

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
    if shares[base] >= _LEAST_SHARE and len(families[base]) > 1
  ]
  return [axis for axis in ranked if axis.max() > 0][:max_axes]


def splits(axes: list[np.ndarray], num_parts: int) -> Iterator[np.ndarray]:
  """Per split, [num_scopes] part of each scope, UNKNOWN where none is said."""
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
