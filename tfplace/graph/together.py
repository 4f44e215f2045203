"""Ops that a user wants on one device, besides those that TensorFlow does.

A wish becomes a colocation group, so every placer, the simulator and the file
formats know it already.
"""

import collections
import dataclasses
import fnmatch
from collections.abc import Iterable, Sequence

import numpy as np

from tfplace.errors import FormatError
from tfplace.graph.op_graph import OpGraph


def keep_together(graph: OpGraph, groups: Iterable[Sequence[int]]) -> OpGraph:
  """The graph with each group's ops, and all colocated with them, as one.

  Args:
    graph: whose colocation groups are merged where a new one touches them.
    groups: positions of ops; groups that share an op become one.
  """
  parent = list(range(graph.num_ops))
  first: dict[int, int] = {}  # of each colocation group that is there
  for op, group in enumerate(graph.colocation.tolist()):
    if group >= 0:
      _union(parent, first.setdefault(group, op), op)
  for ops in groups:
    for op in ops:
      _union(parent, ops[0], op)
  roots = [_find(parent, op) for op in range(graph.num_ops)]
  sizes = collections.Counter(roots)
  shared = [root for root, size in sizes.items() if size > 1]
  number = {root: i for i, root in enumerate(shared)}
  return dataclasses.replace(
    graph,
    colocation=np.array([number.get(root, -1) for root in roots], np.int32),
    colocation_names=tuple(graph.names[root] for root in shared),
  )


def matching(graph: OpGraph, pattern: str) -> list[int]:
  """Positions of the ops whose name, or a scope of it, is like `pattern`.

  Args:
    graph: whose ops are looked through.
    pattern: as a shell's: `*` for any text, `?` for one character. "encoder"
      and "encoder/*" both stand for all ops in that scope.

  Raises:
    FormatError: no op is.
  """
  found = [
    i
    for i, name in enumerate(graph.names)
    if fnmatch.fnmatchcase(name, pattern)
    or fnmatch.fnmatchcase(name, f"{pattern}/*")
  ]
  if not found:
    raise FormatError(
      f"{pattern!r} is like the name of no op of graph {graph.name!r}, whose"
      f" ops have names such as {', '.join(map(repr, graph.names[:3]))}"
    )
  return found


def _find(parent: list[int], i: int) -> int:
  while parent[i] != i:
    parent[i] = parent[parent[i]]
    i = parent[i]
  return i


def _union(parent: list[int], a: int, b: int) -> None:
  a, b = _find(parent, a), _find(parent, b)
  parent[max(a, b)] = min(a, b)
