"""Groups of ops that a user keeps on one device."""

import collections
import dataclasses
import fnmatch
from collections.abc import Iterable, Sequence

import numpy as np

from tfplace.core.op_graph import OpGraph
from tfplace.core.paths import DisjointSets
from tfplace.errors import FormatError


def keep_together(graph: OpGraph, groups: Iterable[Sequence[int]]) -> OpGraph:
  """Returns a copy of the graph in which each group shares a device.

  Groups are lists of op positions. Groups that share an op, and existing
  colocation groups that they touch, are merged.
  """
  sets = DisjointSets(graph.num_ops)
  first: dict[int, int] = {}  # The first op of each existing colocation group.
  for op, group in enumerate(graph.colocation.tolist()):
    if group >= 0:
      sets.union(first.setdefault(group, op), op)
  for ops in groups:
    for op in ops:
      sets.union(ops[0], op)
  roots = sets.roots().tolist()
  sizes = collections.Counter(roots)
  shared = [root for root, size in sizes.items() if size > 1]
  number = {root: i for i, root in enumerate(shared)}
  return dataclasses.replace(
    graph,
    colocation=np.array([number.get(root, -1) for root in roots], np.int32),
    colocation_names=tuple(graph.names[root] for root in shared),
  )


def matching(graph: OpGraph, pattern: str) -> list[int]:
  """Returns the positions of ops whose name or scope matches a pattern.

  Args:
    pattern: shell-style pattern: `*` matches any text, `?` one character.
      "encoder" and "encoder/*" both match all ops in that scope.

  Raises:
    FormatError: no op matches.
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
