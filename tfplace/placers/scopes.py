"""What the names of ops say: scopes, and the numbers in them.

TensorFlow names an op by the layers around it, and its gradient after it:
`gradient_tape/model/decode_37/lstm_layer_1/MatMul/MatMul_1` is a gradient in
the scope `model/decode_37/lstm_layer_1`, whose parts `decode` and `lstm_layer`
have the numbers 37 and 1. Whoever unrolls, stacks or branches a model writes
such numbers.
"""

import dataclasses
import re

import numpy as np

from tfplace.placers.groups import GroupGraph
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


def read_scopes(groups: GroupGraph) -> Scopes:
  """Scopes by the name of each group's longest op.

  A group whose name tells none is of the scope of a neighbour.
  """
  names = groups.problem.graph.names
  known: dict[str, int] = {}
  of = np.full(groups.num_groups, UNKNOWN)
  for group, op in enumerate(_longest_ops(groups).tolist()):
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


def _longest_ops(groups: GroupGraph) -> np.ndarray:
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
