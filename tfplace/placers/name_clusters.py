"""Clusters of groups by what their names say, as people see a model.

From the finest to the coarsest: a scope's forward ops, or its gradients; both;
the same scope in two, four, eight ... neighbouring steps of what is unrolled;
the scope in all steps (a layer with its shared weights); then the scopes around
it. By edges and by work alone, the steps of a layer never meet, for little
passes between them but weights.
"""

import numpy as np

from tfplace.placers.clusters import Clusters, nested
from tfplace.placers.groups import GroupGraph
from tfplace.placers.scopes import UNKNOWN, Part, Scopes, read_scopes

# With more numbers than this, what is numbered is unrolled, not stacked.
_MOST_STACKED = 8
_FEWEST_CLUSTERS = 4

_Key = tuple[bool, tuple[Part, ...]]


def clusters_by_name(groups: GroupGraph) -> Clusters:
  """Joins what is of one scope, then scopes that are alike."""
  scopes = read_scopes(groups)
  levels = []
  for keys in _ladder(scopes):
    number: dict[_Key, int] = {}
    label = np.array(
      [number.setdefault(key, len(number)) for key in keys], np.int64
    )
    levels.append(label[scopes.of])
  return nested(levels)


def _ladder(scopes: Scopes) -> list[list[_Key]]:
  """Per level, what scopes must have in common to be one cluster."""
  keys = list(zip(scopes.is_backward, scopes.paths, strict=True))
  levels = [keys]
  keys = [(False, path) for _, path in keys]
  levels.append(keys)
  numbers = _unrolled(scopes)
  most = max((max(found) for found in numbers.values()), default=0)
  for shift in range(1, most.bit_length() + 1):
    levels.append([(False, _shifted(path, numbers, shift)) for _, path in keys])
  keys = levels[-1]
  for depth in range(max((len(p) for _, p in keys), default=0) - 1, 0, -1):
    keys = [(False, path[:depth]) for _, path in keys]
    if len(set(keys)) < _FEWEST_CLUSTERS:
      break
    levels.append(keys)
  return levels


def _unrolled(scopes: Scopes) -> dict[tuple[str, ...], set[int]]:
  """Components, by the names on the way to them, and their many numbers."""
  numbers: dict[tuple[str, ...], set[int]] = {}
  for path in scopes.paths:
    way: tuple[str, ...] = ()
    for base, number in path:
      way = (*way, base)
      if number != UNKNOWN:
        numbers.setdefault(way, set()).add(number)
  return {
    way: found for way, found in numbers.items() if len(found) > _MOST_STACKED
  }


def _shifted(
  path: tuple[Part, ...], numbers: dict[tuple[str, ...], set[int]], shift: int
) -> tuple[Part, ...]:
  """The path with every number of what is unrolled divided by 2**shift."""
  way: tuple[str, ...] = ()
  result = []
  for base, number in path:
    way = (*way, base)
    result.append((base, number >> shift if way in numbers else number))
  return tuple(result)
