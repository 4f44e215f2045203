"""Graph algorithms shared by several packages."""

import graphlib
import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from tfplace.graph.op_graph import OpGraph

T = TypeVar("T")


def longest_paths(
  graph: OpGraph, *edge_us: np.ndarray, backward: bool = False
) -> np.ndarray:
  """Returns the longest path to (or from) each op, [num_ops] float64.

  Args:
    *edge_us: [num_edges] microseconds each. The length of an edge is their sum,
      added to the path one term after another.
    backward: measure paths from each op to the end of the step.
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


def upward_ranks(
  graph: OpGraph,
  op_us: np.ndarray,
  us_per_byte: float = 0.0,
  latency_us: float = 0.0,
) -> np.ndarray:
  """Returns the upward ranks of HEFT (Topcuoglu et al., 2002), [num_ops].

  The upward rank is the longest path from an op's start to the end of the step.

  Args:
    op_us: [num_ops] weight of each op in microseconds.
    us_per_byte: weight of each byte on an edge in microseconds.
    latency_us: fixed weight of each edge in microseconds.
  """
  parts = [op_us[graph.edge_dst]]
  if us_per_byte or latency_us:
    parts.append(graph.edge_bytes * us_per_byte)
    parts.append(np.full(graph.num_edges, latency_us))
  return longest_paths(graph, *parts, backward=True) + op_us


def transfers(
  graph: OpGraph, where: np.ndarray, among: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
  """Lists the transfers of a placement: one per output and destination.

  Args:
    where: [num_ops] device of each op, or the index of any other set it is in.
    among: edges to consider; None means those between different sets.

  Returns:
    [num_transfers] one edge per transfer, in the order (producer, output,
    destination), and [num_edges] int64 transfer of each edge, -1 for none.
  """
  if among is None:
    among = np.flatnonzero(where[graph.edge_src] != where[graph.edge_dst])
  # The added 2 makes room for control output -1.
  outputs = int(graph.edge_output.max(initial=0)) + 2
  places = int(where.max(initial=0)) + 1
  keys = graph.edge_src[among].astype(np.int64) * outputs
  keys = (keys + graph.edge_output[among] + 1) * places
  keys += where[graph.edge_dst[among]]
  _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
  transfer_of = np.full(graph.num_edges, -1, np.int64)
  transfer_of[among] = inverse.reshape(-1)
  return among[first], transfer_of


def descendants(
  start: np.ndarray, src: np.ndarray, dst: np.ndarray
) -> np.ndarray:
  """Returns [num_ops] bool: the start, and all ops that edges lead to from it.

  Args:
    start: [num_ops] bool.
    src: [num_edges] op that each edge leaves.
    dst: [num_edges] op that it enters.
  """
  count = len(start)
  begins = np.flatnonzero(start)  # A further node leads to them.
  rows = np.concatenate((src, np.full(len(begins), count)))
  columns = np.concatenate((dst, begins))
  edges = scipy.sparse.coo_matrix(
    (np.ones(len(rows), bool), (rows, columns)), (count + 1, count + 1)
  ).tocsr()
  is_reached = np.zeros(count + 1, bool)
  is_reached[
    csgraph.breadth_first_order(edges, count, return_predecessors=False)
  ] = True
  return is_reached[:count]


def reached(
  starts: Iterable[T], following: Callable[[T], Iterable[T]]
) -> dict[T, None]:
  """Returns the starts and what follows from them, in order of discovery."""
  result = dict.fromkeys(starts)
  queue = list(result)
  for item in queue:  # the list grows during the loop
    for after in following(item):
      if after not in result:
        result[after] = None
        queue.append(after)
  return result


def smallest_first(
  before: Mapping[int, Iterable[int]], key: Callable[[int], float] = float
) -> list[int]:
  """Returns the topological order that takes the ready node of least key.

  Args:
    before: predecessors of each node.
    key: ties go to the smallest number.

  Raises:
    graphlib.CycleError: the graph has a cycle.
  """
  sorter = graphlib.TopologicalSorter(before)
  sorter.prepare()
  ready: list[tuple[float, int]] = []
  order = []
  while sorter.is_active():
    for node in sorter.get_ready():
      heapq.heappush(ready, (key(node), node))
    order.append(heapq.heappop(ready)[1])
    sorter.done(order[-1])
  return order


class DisjointSets:
  """Union-find over integers, with path halving."""

  def __init__(self, count: int) -> None:
    self._parent = list(range(count))

  def find(self, i: int) -> int:
    """Returns the smallest member of the set that contains `i`."""
    parent = self._parent
    while parent[i] != i:
      parent[i] = parent[parent[i]]
      i = parent[i]
    return i

  def union(self, a: int, b: int) -> int:
    """Merges the sets of two numbers and returns the smallest member."""
    a, b = self.find(a), self.find(b)
    least = min(a, b)
    self._parent[max(a, b)] = least
    return least

  def roots(self) -> np.ndarray:
    """Returns the smallest member of each number's set, [count] int64."""
    every = range(len(self._parent))
    return np.fromiter(map(self.find, every), np.int64, len(self._parent))
