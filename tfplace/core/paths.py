"""Algorithms on dataflow graphs that several parts of the package need: a
topological order, longest paths and ranks, the transfers of a placement, and
disjoint sets. NumPy only; nothing here knows devices' speeds or links.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  from tfplace.core.op_graph import OpGraph


def topological_order(
  offsets: np.ndarray, successors: np.ndarray
) -> np.ndarray:
  """int32 nodes, producers first, by Kahn's algorithm with a queue.

  Args:
    offsets: [num_nodes + 1] into `successors`.
    successors: [num_edges] by producer.

  Returns:
    [num_nodes] nodes; fewer where there is a cycle.
  """
  count = len(offsets) - 1
  missing = np.bincount(successors, minlength=count).tolist()
  after, bounds = successors.tolist(), offsets.tolist()
  order = [i for i in range(count) if missing[i] == 0]
  for node in order:  # grows while it is read: a queue
    for successor in after[bounds[node] : bounds[node + 1]]:
      missing[successor] -= 1
      if missing[successor] == 0:
        order.append(successor)
  return np.array(order, np.int32)


def longest_paths(
  graph: "OpGraph", *edge_us: np.ndarray, backward: bool = False
) -> np.ndarray:
  """[num_ops] float64: the longest path to each op, or backward from it.

  Args:
    graph: any graph.
    *edge_us: [num_edges] microseconds each; the length of an edge is their
      sum, added to the path one after another.
    backward: from each op to the end of the step, against the edges.
  """
  offsets, edges = graph.out_csr if backward else graph.in_csr
  ends = graph.edge_dst if backward else graph.edge_src
  near, bounds = ends[edges].tolist(), offsets.tolist()
  first, *others = (part[edges].tolist() for part in edge_us)
  order = graph.topological_order
  result = [0.0] * graph.num_ops
  for op in (order[::-1] if backward else order).tolist():
    longest = 0.0
    for i in range(bounds[op], bounds[op + 1]):
      length = result[near[i]] + first[i]
      for part in others:
        length += part[i]
      if length > longest:
        longest = length
    result[op] = longest
  return np.array(result)


def downward_ranks(graph: "OpGraph", op_us: np.ndarray) -> np.ndarray:
  """[num_ops] longest path to each op's start, communication free: the earliest
  start (ASAP).

  Args:
    graph: any graph.
    op_us: [num_ops] microseconds that an op counts for.
  """
  return longest_paths(graph, op_us[graph.edge_src])


def upward_ranks(
  graph: "OpGraph",
  op_us: np.ndarray,
  us_per_byte: float = 0.0,
  latency_us: float = 0.0,
) -> np.ndarray:
  """[num_ops] longest path from each op's start to the end of the step (HEFT,
  Topcuoglu et al., 2002).

  Args:
    graph: any graph.
    op_us: [num_ops] microseconds that an op counts for.
    us_per_byte: microseconds that a byte on an edge counts for.
    latency_us: microseconds that an edge counts for, besides.
  """
  parts = [op_us[graph.edge_dst]]
  if us_per_byte or latency_us:
    parts.append(graph.edge_bytes * us_per_byte)
    parts.append(np.full(graph.num_edges, latency_us))
  return longest_paths(graph, *parts, backward=True) + op_us


def transfers(
  graph: "OpGraph", where: np.ndarray, among: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
  """What has to be sent: each output once to each place that reads it.

  Args:
    graph: any graph.
    where: [num_ops] device of each op, or another set that it is in.
    among: the edges to look at; None is those between different places.

  Returns:
    [num_transfers] an edge of each transfer, in the order (producer, output,
    destination); and [num_edges] int64 the transfer of each edge, -1 where it
    has none.
  """
  if among is None:
    among = np.flatnonzero(where[graph.edge_src] != where[graph.edge_dst])
  outputs = int(graph.edge_output.max(initial=0)) + 2  # -1 is control
  places = int(where.max(initial=0)) + 1
  keys = graph.edge_src[among].astype(np.int64) * outputs
  keys = (keys + graph.edge_output[among] + 1) * places
  keys += where[graph.edge_dst[among]]
  _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
  transfer_of = np.full(graph.num_edges, -1, np.int64)
  transfer_of[among] = inverse.reshape(-1)
  return among[first], transfer_of


class DisjointSets:
  """Sets of numbers that grow together (union-find with path halving)."""

  def __init__(self, count: int) -> None:
    self._parent = list(range(count))

  def find(self, i: int) -> int:
    """The least member of the set that `i` is in."""
    parent = self._parent
    while parent[i] != i:
      parent[i] = parent[parent[i]]
      i = parent[i]
    return i

  def union(self, a: int, b: int) -> int:
    """Joins the sets of two numbers; returns the least member."""
    a, b = self.find(a), self.find(b)
    least = min(a, b)
    self._parent[max(a, b)] = least
    return least

  def roots(self) -> np.ndarray:
    """[count] int64: the least member of each number's set."""
    every = range(len(self._parent))
    return np.fromiter(map(self.find, every), np.int64, len(self._parent))
