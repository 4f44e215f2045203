"""Coarsens the groups of a problem, into units of groups that move together.

Three ways, for no one way serves all graphs; none puts more work into one unit
than its level allows. By edges, as METIS does (Karypis and Kumar, 1998): from
the edge that costs most to cut down to the cheapest, the two ends join. By
work: from the unit with the least work up, each joins the neighbor with the
highest cost of a cut. By merging, as Placeto does (arXiv 1906.08879): always
the unit with the least work joins the neighbor with which it exchanges the most
bytes, among those that run on the same devices, down to some dozens of units.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfplace.core.problem import Problem
from tfplace.placers.groups import GroupGraph
from tfplace.placers.list_scheduling import kernels
from tfplace.simulate.jit import Index, allocating, allocating_inlined
from tfplace.simulate.links import mean_transfer

_NONE = -1
# Largest share of all work in one unit, level by level (chosen by trial).
_SHARES = tuple(1 / 2**i for i in range(12, 1, -1))


@dataclasses.dataclass(frozen=True, eq=False)
class Coarsening:
  """Partitions of the groups into units, from the finest to the coarsest.

  Attributes:
    labels: per level, [num_groups] unit of each group, 0, 1, ...
  """

  labels: tuple[np.ndarray, ...]

  def members(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All levels in one list of units, the groups themselves first.

    Returns:
      level_offsets [num_levels + 2] int64 into the units; unit_offsets
      [num_units + 1] int64 into the members; members [?] int32 groups.
    """
    num_groups = len(self.labels[0])
    labels = [np.arange(num_groups), *self.labels]
    sizes = [np.bincount(label) for label in labels]
    order = [np.argsort(label, kind="stable") for label in labels]
    counts = [0, *(len(size) for size in sizes)]
    return (
      np.cumsum(counts).astype(np.int64),
      np.cumsum(np.concatenate([np.zeros(1, int), *sizes])).astype(np.int64),
      np.concatenate(order).astype(np.int32),
    )


def coarsen_by_edges(groups: GroupGraph) -> Coarsening:
  """Joins along the edges that cost most to cut first."""
  graph = _graph(groups)
  order = np.argsort(-graph.cut_us, kind="stable")
  ends = graph.low[order], graph.high[order]

  def join(label: np.ndarray, limit: float) -> np.ndarray:
    joined = _join_by_edges(label, *ends, graph.work, graph.allowed, limit)
    return np.unique(joined, return_inverse=True)[1]

  return _by_levels(groups, join)


def coarsen_by_work(groups: GroupGraph) -> Coarsening:
  """Joins the units of least work first, with each level's limit anew."""
  start = _graph(groups)

  def join(label: np.ndarray, limit: float) -> np.ndarray:
    graph = _contract(start, label)
    while True:
      joined = _join_by_work(
        *_adjacency(graph),
        graph.work,
        np.argsort(graph.work, kind="stable"),
        graph.allowed,
        limit,
      )
      _, joined = np.unique(joined, return_inverse=True)
      if joined.max(initial=-1) + 1 == len(joined):
        return label
      label, graph = joined[label], _contract(graph, joined)

  return _by_levels(groups, join)


def _by_levels(
  groups: GroupGraph, join: Callable[[np.ndarray, float], np.ndarray]
) -> Coarsening:
  """Joins with each level's limit; keeps levels with fewer units."""
  label = np.arange(groups.num_groups)
  total = float(groups.fastest_us.sum())
  kept: list[np.ndarray] = []
  for share in _SHARES:
    label = join(label, share * total)
    if not kept or label.max(initial=0) < kept[-1].max(initial=0):
      kept.append(label)
  return Coarsening(tuple(kept))


class _Graph(NamedTuple):
  """An undirected graph of units.

  Attributes:
    low, high: [num_pairs] ends of each pair.
    cut_us: [num_pairs] microseconds to cut each pair.
    work: [count] microseconds.
    allowed: [count, num_devices] bool.
  """

  low: np.ndarray
  high: np.ndarray
  cut_us: np.ndarray
  work: np.ndarray
  allowed: np.ndarray


def _contract(graph: _Graph, label: np.ndarray) -> _Graph:
  count = int(label.max(initial=-1)) + 1
  a, b = label[graph.low], label[graph.high]
  low, high = np.minimum(a, b), np.maximum(a, b)
  apart = low != high
  keys, inverse = np.unique(
    low[apart] * count + high[apart], return_inverse=True
  )
  allowed = np.ones((count, graph.allowed.shape[1]), bool)
  np.logical_and.at(allowed, label, graph.allowed)
  return _Graph(
    keys // count,
    keys % count,
    np.bincount(inverse, graph.cut_us[apart], len(keys)),
    np.bincount(label, graph.work, count),
    allowed,
  )


def _adjacency(graph: _Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Both ways: offsets [count + 1], neighbors and costs, the highest first."""
  ends = np.concatenate((graph.low, graph.high))
  other = np.concatenate((graph.high, graph.low))
  cut_us = np.concatenate((graph.cut_us, graph.cut_us))
  order = np.lexsort((other, -cut_us, ends))
  counts = np.bincount(ends, minlength=len(graph.work))
  return np.concatenate(([0], np.cumsum(counts))), other[order], cut_us[order]


def _graph(groups: GroupGraph) -> _Graph:
  """Groups, and what a transfer between them takes on a mean link."""
  cluster = groups.problem.cluster
  src, dst, size = groups.edges
  us_per_byte, fixed_us = 1.0, 1.0
  if cluster.links:
    us_per_byte, fixed_us = mean_transfer(cluster, with_gap=True)
  return _Graph(
    src.astype(np.int64),
    dst.astype(np.int64),
    fixed_us + size * us_per_byte,
    groups.fastest_us,
    groups.allowed,
  )


@allocating
def _join_by_edges(
  label: np.ndarray,
  src: np.ndarray,
  dst: np.ndarray,
  work: np.ndarray,
  allowed: np.ndarray,
  limit: float,
) -> np.ndarray:
  """[num_groups] units after joining along the edges, in their order."""
  count = len(label)
  parent = np.arange(count)
  held = np.zeros(count)
  free = np.ones((count, allowed.shape[1]), np.bool_)
  for group in range(count):
    held[label[group]] += work[group]
    _narrow(free, label[group], allowed, group)
  for i in range(len(src)):
    a, b = _root(parent, label[src[i]]), _root(parent, label[dst[i]])
    if a == b or held[a] + held[b] > limit or not _meet(free, a, b):
      continue
    a, b = min(a, b), max(a, b)
    parent[b] = a
    held[a] += held[b]
    _narrow(free, a, free, b)
  result = np.empty(count, np.int64)
  for group in range(count):
    result[group] = _root(parent, label[group])
  return result


@allocating
def _join_by_work(
  offsets: np.ndarray,
  neighbors: np.ndarray,
  cut_us: np.ndarray,
  work: np.ndarray,
  order: np.ndarray,
  allowed: np.ndarray,
  limit: float,
) -> np.ndarray:
  """[count] new unit of each unit after one pass in an order."""
  count = len(work)
  parent = np.arange(count)
  held = work.copy()
  free = allowed.copy()
  for a in order:
    if parent[a] != a or held[a] > work[a]:
      continue  # it has joined, or others have joined it
    for i in range(offsets[a], offsets[a + 1]):
      b = _root(parent, neighbors[i])
      if b == a or held[a] + held[b] > limit or not _meet(free, a, b):
        continue
      parent[a] = b
      held[b] += held[a]
      _narrow(free, b, free, a)
      break
  for a in range(count):
    parent[a] = _root(parent, a)
  return parent


@allocating_inlined
def _root(parent: np.ndarray, a: Index) -> Index:
  """The representative of a set, with path halving."""
  while parent[a] != a:
    parent[a] = parent[parent[a]]
    a = parent[a]
  return a


# As array expressions these two take seconds to compile.
@allocating_inlined
def _meet(free: np.ndarray, a: Index, b: Index) -> bool:
  """Whether two units may share a device."""
  for device in range(free.shape[1]):
    if free[a, device] and free[b, device]:
      return True
  return False


@allocating_inlined
def _narrow(free: np.ndarray, a: Index, allowed: np.ndarray, b: Index) -> None:
  """Leaves unit `a` only the devices that row `b` allows."""
  for device in range(free.shape[1]):
    free[a, device] = free[a, device] and allowed[b, device]


def coarsen_by_merging(groups: GroupGraph, sizes: Sequence[int]) -> Coarsening:
  """Merges down to each of these numbers of units, from all groups anew."""
  wanted = [size for size in sizes if size < groups.num_groups]
  parents = merged(groups.problem, wanted)
  labels = (np.unique(p, return_inverse=True)[1].reshape(-1) for p in parents)
  return Coarsening(tuple(labels))


def merged(
  problem: Problem,
  targets: Sequence[int],
  label: np.ndarray | None = None,
  more_us: np.ndarray | None = None,
) -> list[np.ndarray]:
  """Merges down to each target, from all groups anew.

  Args:
    problem: whose groups are merged.
    targets: how many to get down to; a group without a neighbor to join
      stays, so there may be more.
    label: [num_groups] labels; groups of different ones never merge. None
      lets all that run on the same devices merge.
    more_us: [num_groups] microseconds that count as work besides the ops' time.

  Returns:
    Per target, [num_groups] the group that each group is merged into.
  """
  count = problem.num_groups
  time_us = np.bincount(problem.group_of, problem.fastest_us, count)
  if more_us is not None:
    time_us = time_us + more_us
  kind = problem.allowed_sets[1]
  if label is not None:
    pairs = np.stack((kind, label))
    kind = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
  offsets, other, num_bytes = _links(problem)
  result = []
  for target in targets:
    parent = np.arange(count)
    if count > target:
      _merge(
        parent,
        offsets,
        other.copy(),
        num_bytes.copy(),
        time_us.copy(),
        kind,
        target,
        2.0 * float(time_us.sum()) / target,
      )
    while (parent[parent] != parent).any():
      parent = parent[parent]
    result.append(parent)
  return result


def _links(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Adjacency of groups, both ways: offsets, neighbors, bytes per edge."""
  graph, group_of = problem.graph, problem.group_of
  src, dst = group_of[graph.edge_src], group_of[graph.edge_dst]
  apart = src != dst
  ends = np.concatenate((src[apart], dst[apart]))
  other = np.concatenate((dst[apart], src[apart]))
  num_bytes = np.tile(graph.edge_bytes[apart].astype(np.float64), 2)
  order = np.argsort(ends, kind="stable")
  counts = np.bincount(ends, minlength=problem.num_groups)
  offsets = np.concatenate(([0], np.cumsum(counts)))
  return offsets, other[order].astype(np.int64), num_bytes[order]


@allocating
def _merge(
  parent: np.ndarray,
  offsets: np.ndarray,
  other: np.ndarray,
  num_bytes: np.ndarray,
  time_us: np.ndarray,
  kind: np.ndarray,
  target: int,
  limit: float,
) -> None:
  """Fills [num_groups] `parent`; the adjacency and the times are used up."""
  count = len(parent)
  after = np.arange(1, len(other) + 1)  # the next of a group's entries
  first, last = np.full(count, _NONE), np.full(count, _NONE)
  costs, keys, size = np.empty(2 * count), np.empty(2 * count, np.int64), 0
  for group in range(count):
    if offsets[group] < offsets[group + 1]:
      first[group], last[group] = offsets[group], offsets[group + 1] - 1
      after[last[group]] = _NONE
    size = kernels.push(costs, keys, size, time_us[group], group)
  seen = np.full(count, _NONE)  # entry of each neighbor of the group at hand
  left = count
  while left > target and size > 0:
    cost, group = costs[0], keys[0]
    size = kernels.pop(costs, keys, size)
    if parent[group] != group or cost != time_us[group]:
      continue  # merged or grown since it was pushed
    _gather(parent, first, last, after, other, num_bytes, seen, group)
    into, most = _NONE, 0.0
    entry = first[group]
    while entry != _NONE:
      near = other[entry]
      seen[near] = _NONE
      size_here = num_bytes[entry]
      entry = after[entry]
      if kind[near] != kind[group] or time_us[near] + cost > limit:
        continue
      # More bytes, then less work, then the lower number.
      if into == _NONE or (-size_here, time_us[near], near) < (
        -most,
        time_us[into],
        into,
      ):
        into, most = near, size_here
    if into == _NONE:
      continue
    parent[group] = into
    time_us[into] += cost
    if first[into] == _NONE:
      first[into] = first[group]
    else:
      after[last[into]] = first[group]
    last[into] = last[group]
    size = kernels.push(costs, keys, size, time_us[into], into)
    left -= 1


@allocating_inlined
def _gather(
  parent: np.ndarray,
  first: np.ndarray,
  last: np.ndarray,
  after: np.ndarray,
  other: np.ndarray,
  num_bytes: np.ndarray,
  seen: np.ndarray,
  group: int,
) -> None:
  """Leaves one entry per neighbor of a group, with all of its bytes."""
  entry = first[group]
  first[group] = last[group] = _NONE
  while entry != _NONE:
    near = _root(parent, other[entry])
    following = after[entry]
    if near != group and seen[near] == _NONE:
      seen[near], other[entry], after[entry] = entry, near, _NONE
      if first[group] == _NONE:
        first[group] = entry
      else:
        after[last[group]] = entry
      last[group] = entry
    elif near != group:
      num_bytes[seen[near]] += num_bytes[entry]
    entry = following
