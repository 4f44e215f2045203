"""Baechi's co-placement: merges ops that belong together into groups.

Baechi (Jeon et al., SoCC 2020) places an op with its only consumer and a
gradient op with its forward op. The rules chain.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from tfplace.graph.op_graph import OpGraph
from tfplace.graph.op_names import forward_name, is_gradient, with_scopes
from tfplace.graph.paths import DisjointSets
from tfplace.graph.problem import Problem
from tfplace.placers.groups import GroupGraph

# Rules of groupings: (only consumers, gradients). Baechi's public code has the
# first and the paper both. None of the three is best everywhere.
GROUPINGS = ((False, False), (True, False), (True, True))


def by_grouping(
  groups: GroupGraph, schedule: Callable[[GroupGraph], np.ndarray]
) -> Iterator[np.ndarray]:
  """Yields [num_groups] placements by an algorithm under each grouping.

  Args:
    schedule: function from groups to their [num_groups] int32 devices.
  """
  for rules in GROUPINGS:
    view = groups
    if any(rules):
      view = GroupGraph(co_placed(groups.problem, *rules))
    yield groups.contract(view.expand(schedule(view)))


def co_placed(
  problem: Problem, consumers: bool = True, gradients: bool = True
) -> Problem:
  """Returns the problem with further colocation; placements fit the original.

  Groups are merged if some device can run both and the variables of both fit on
  the largest such device. The paper gives no rule for either.

  Args:
    consumers: merge an op with its only consumer.
  """
  sets = _Groups(problem)
  graph = problem.graph
  if consumers:
    for op, consumer in enumerate(only_consumers(graph).tolist()):
      if consumer >= 0:
        sets.join(op, consumer)
  if gradients:
    for op, forward in enumerate(forward_ops(graph).tolist()):
      if forward >= 0:
        sets.join(op, forward)
  root = sets.roots()
  _, group = np.unique(root[problem.group_of], return_inverse=True)
  return dataclasses.replace(problem, groups=group)


def only_consumers(graph: OpGraph) -> np.ndarray:
  """Returns the [num_ops] only consumer of each op; -1 for none or several.

  Control edges count, as in Baechi's public code.
  """
  result = np.full(graph.num_ops, -1, np.int64)
  offsets, edges = graph.out_csr
  sends = np.flatnonzero(np.diff(offsets))
  consumers, first = graph.edge_dst[edges], offsets[sends]
  least = np.minimum.reduceat(consumers, first) if len(sends) else sends
  most = np.maximum.reduceat(consumers, first) if len(sends) else sends
  result[sends] = np.where(least == most, least, -1)
  return result


def forward_ops(graph: OpGraph) -> np.ndarray:
  """Returns the [num_ops] forward op of each gradient op, or -1.

  The forward op is named by the longest scope of the gradient op that is an op
  name. Otherwise an op of type `XGrad` belongs to its input of type `X`.
  """
  result = np.full(graph.num_ops, -1, np.int64)
  index = graph.index
  for op, name in enumerate(graph.names):
    scopes = with_scopes(forward_name(name)) if is_gradient(name) else iter(())
    for scope in itertools.islice(scopes, 1, None):
      result[op] = index.get(scope, index.get(scope.removesuffix("_grad"), -1))
      if result[op] >= 0:
        break
  by_type = np.array([kind.endswith("Grad") for kind in graph.types], bool)
  for edge in np.flatnonzero(by_type[graph.edge_dst]):
    src, dst = graph.edge_src[edge], graph.edge_dst[edge]
    if result[dst] < 0 and graph.types[dst] == f"{graph.types[src]}Grad":
      result[dst] = src
  return result


class _Groups:
  """Union-find over groups that keeps a device possible for each set."""

  def __init__(self, problem: Problem) -> None:
    self._group_of = problem.group_of.tolist()
    self._sets = DisjointSets(problem.num_groups)
    # Sets of devices are bits of integers, which Python combines fastest.
    packed = np.packbits(problem.group_allowed, axis=1, bitorder="little")
    self._allowed = [int.from_bytes(row, "little") for row in packed]
    self._held = np.bincount(
      problem.group_of, problem.graph.persistent_bytes, problem.num_groups
    ).tolist()
    self._memory = problem.cluster.memory_bytes.tolist()
    self._largest: dict[int, float] = {0: -math.inf}

  def join(self, op: int, other: int) -> None:
    a = self._sets.find(self._group_of[op])
    b = self._sets.find(self._group_of[other])
    if a == b:
      return
    both = self._allowed[a] & self._allowed[b]
    held = self._held[a] + self._held[b]
    if held > self._largest_of(both):
      return
    root = self._sets.union(a, b)
    self._allowed[root], self._held[root] = both, held

  def _largest_of(self, devices: int) -> float:
    """Returns the memory of the largest device of a set; -inf for none."""
    if devices not in self._largest:
      self._largest[devices] = max(
        size for i, size in enumerate(self._memory) if devices >> i & 1
      )
    return self._largest[devices]

  def roots(self) -> np.ndarray:
    return self._sets.roots()
