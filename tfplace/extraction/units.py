"""Units: ops of one layer, pass and microbatch that XLA compiles together.

A unit is convex: no path leaves it and comes back, so it is one op of the graph
to place. Variables, other stateful ops, loops and what XLA lacks stay outside.
"""

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence, Set

import numpy as np
import tensorflow as tf

from tfplace.core import phases
from tfplace.core.op_graph import OpGraph
from tfplace.extraction import nodes

# A constant up to this size is copied into each unit that reads it.
_INLINED_BYTES = 1 << 16
_FOREIGN_TYPES = frozenset({tf.resource, tf.string, tf.variant})
# Stateless ops without an XLA kernel of static shape, and those that only an
# executor runs.
_REFUSED = frozenset({
  "CheckNumerics", "Const", "DeviceIndex", "Enter", "Exit", "LoopCond", "Merge",
  "NextIteration", "NoOp", "Placeholder", "PlaceholderWithDefault", "Switch",
  "Unique", "UniqueV2", "Where", "SparseSegmentSum", "SparseToDense",
  "DecodeRaw", "AsString",
})  # fmt: skip


def compiles(op: tf.Operation) -> bool:
  """Returns whether an op may be in a unit."""
  if op.type in _REFUSED or op.op_def is None or op.op_def.is_stateful:
    return False
  if nodes.function_names(op.node_def):
    return False
  tensors = (*op.inputs, *op.outputs)
  return all(t.dtype.base_dtype not in _FOREIGN_TYPES for t in tensors) and all(
    t.shape.is_fully_defined() for t in tensors
  )


def is_inlined(graph: OpGraph) -> np.ndarray:
  """Returns [num_ops] whether each op is a small constant without inputs."""
  offsets, _ = graph.in_csr
  is_const = np.array([kind == "Const" for kind in graph.types])
  is_small = graph.op_output_bytes <= _INLINED_BYTES
  return is_const & is_small & (np.diff(offsets) == 0)


def form(graph: OpGraph, tf_graph: tf.Graph) -> np.ndarray:
  """Groups the ops of a step into units.

  Args:
    graph: ops and edges of the step; colocated ops stay outside of units.
    tf_graph: its ops in TensorFlow, with shapes.

  Returns:
    [num_ops] unit of each op, and -1 of ops outside units, inlined constants
    and ops that would be alone.
  """
  inlined = is_inlined(graph)
  parts = (graph.microbatch, _passes(graph), graph.layer)
  keys: list[Hashable | None] = list(
    zip(*(part.tolist() for part in parts), strict=True)
  )
  for i, name in enumerate(graph.names):
    is_free = graph.colocation[i] < 0
    if not (is_free and compiles(tf_graph.get_operation_by_name(name))):
      keys[i] = None
  offsets, edges = graph.in_csr
  sources = graph.edge_src[edges].tolist()
  before = [
    [s for s in sources[start:end] if not inlined[s]]
    for start, end in itertools.pairwise(offsets.tolist())
  ]
  order = [op for op in graph.topological_order.tolist() if not inlined[op]]
  found = np.array(grouped(keys, before, order), np.int64)
  sizes = np.bincount(found[found >= 0], minlength=1)
  return np.where((found >= 0) & (sizes[found] > 1), found, -1)


def _passes(graph: OpGraph) -> np.ndarray:
  """Returns [num_ops] the pass of each op, see `core.phases`."""
  if phases.is_split(graph):
    return phases.phases(graph)
  forward, backward = phases.FORWARD, phases.BACKWARD
  found = np.where(phases.is_forward(graph), forward, backward)
  return np.where(phases.updates(graph), phases.UPDATE, found)


def grouped(
  keys: Sequence[Hashable | None],
  before: Sequence[Iterable[int]],
  order: Iterable[int],
) -> list[int]:
  """Groups nodes of equal keys so that the graph of groups has no cycle.

  A node joins the last group of its key, or begins the next if that closed a
  cycle.

  Args:
    keys: key of each node, or None to keep it out of groups.
    before: predecessors of each node.
    order: the nodes in topological order.

  Returns:
    Group of each node; -1 without one.
  """
  dag, found = _Dag(), [-1] * len(keys)
  vertex: dict[int, int] = {}
  last: dict[Hashable, int] = {}
  group: dict[int, int] = {}
  for node in order:
    key = keys[node]
    earlier = {vertex[other] for other in before[node]}
    at = None if key is None else last.get(key)
    if at is None or not dag.follows(at, earlier - {at}):
      at = dag.add(earlier)
      if key is not None:
        last[key] = at
        group[at] = len(group)
    vertex[node] = at
    found[node] = group.get(at, -1)
  return found


class _Dag:
  """Vertices in a topological order that adapts to new edges.

  Source: Pearce and Kelly, "A Dynamic Topological Sort Algorithm for Directed
  Acyclic Graphs", JEA 2006.
  """

  def __init__(self) -> None:
    self._place: list[int] = []  # of each vertex, in the order
    self._after: list[set[int]] = []
    self._before: list[set[int]] = []

  def add(self, before: Set[int]) -> int:
    """Adds a vertex with these predecessors and returns it."""
    vertex = len(self._place)
    self._place.append(vertex)
    self._after.append(set())
    self._before.append(set(before))
    for other in before:
      self._after[other].add(vertex)
    return vertex

  def follows(self, vertex: int, before: Set[int]) -> bool:
    """Adds predecessors; returns False, and adds none, if they follow it."""
    place, first = self._place, self._place[vertex]
    late = [other for other in before if place[other] > first]
    if late:
      end = max(place[other] for other in late)
      ahead = self._reached([vertex], self._after, lambda at: at <= end)
      if not ahead.isdisjoint(late):
        return False
      behind = self._reached(late, self._before, lambda at: at > first)
      moved = sorted(behind, key=place.__getitem__)
      moved += sorted(ahead, key=place.__getitem__)
      for other, at in zip(
        moved, sorted(place[one] for one in moved), strict=True
      ):
        place[other] = at
    self._before[vertex] |= before
    for other in before:
      self._after[other].add(vertex)
    return True

  def _reached(
    self,
    starts: list[int],
    neighbors: list[set[int]],
    is_near: Callable[[int], bool],
  ) -> set[int]:
    found, stack = set(starts), list(starts)
    while stack:
      for other in neighbors[stack.pop()]:
        if other not in found and is_near(self._place[other]):
          found.add(other)
          stack.append(other)
    return found
