"""Coarsening of groups into coarse groups that move together.

No single method suits all graphs, so there are three, all of which limit the
work of a coarse group. By edges (METIS, Karypis and Kumar, 1998): the two ends
of an edge merge, from the edge with the highest cut cost to the cheapest. By
work: each coarse group, from the one with the least work up, merges with the
neighbor with the highest cut cost. By merging (Placeto, arXiv 1906.08879): the
one with the least work merges with the neighbor with which it exchanges most
bytes, among those that run on the same devices, until some dozens are left.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfplace.core.csr import csr
from tfplace.core.problem import Problem
from tfplace.placers.groups import GroupGraph
from tfplace.placers.list_scheduling import kernels
from tfplace.simulate.jit import Index, allocating, allocating_inlined
from tfplace.simulate.links import mean_transfer

_NONE = -1
# Largest share of all work in one coarse group, by level (chosen by trial).
_SHARES = tuple(1 / 2**i for i in range(12, 1, -1))


@dataclasses.dataclass(frozen=True, eq=False)
class Coarsening:
  """Partitions of the groups into coarse groups, finest first.

  Attributes:
    labels: for each level, [num_groups] coarse group of each group, 0, 1, ...
  """

  labels: tuple[np.ndarray, ...]

  def members(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lists the coarse groups of all levels, preceded by the groups.

    Returns:
      level_offsets [num_levels + 2] int64 into the list; unit_offsets
      [num_units + 1] int64 into the members; members int32 groups.
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
  """Merges along the edges with the highest cut cost first."""
  graph = _graph(groups)
  order = np.argsort(-graph.cut_us, kind="stable")
  ends = graph.low[order], graph.high[order]

  def join(label: np.ndarray, limit: float) -> np.ndarray:
    joined = _join_by_edges(label, *ends, graph.work, graph.allowed, limit)
    return np.unique(joined, return_inverse=True)[1]

  return _by_levels(groups, join)


def coarsen_by_work(groups: GroupGraph) -> Coarsening:
  """Merges the coarse groups with the least work first, level by level."""
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
  """Merges with the limit of each level; keeps levels that get coarser."""
  label = np.arange(groups.num_groups)
  total = float(groups.fastest_us.sum())
  kept: list[np.ndarray] = []
  for share in _SHARES:
    label = join(label, share * total)
    if not kept or label.max(initial=0) < kept[-1].max(initial=0):
      kept.append(label)
  return Coarsening(tuple(kept))


class _Graph(NamedTuple):
  """An undirected graph of coarse groups.

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
  """Returns offsets [count + 1], neighbors and costs, highest cost first."""
  ends = np.concatenate((graph.low, graph.high))
  other = np.concatenate((graph.high, graph.low))
  cut_us = np.concatenate((graph.cut_us, graph.cut_us))
  order = np.lexsort((other, -cut_us, ends))
  counts = np.bincount(ends, minlength=len(graph.work))
  return np.concatenate(([0], np.cumsum(counts))), other[order], cut_us[order]


def _graph(groups: GroupGraph) -> _Graph:
  """Builds the graph of groups with transfer times on a mean link."""
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
  """Merges along the edges in order; returns the [num_groups] new labels."""
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
  """Merges in one pass in the given order; returns the [count] new labels."""
  count = len(work)
  parent = np.arange(count)
  held = work.copy()
  free = allowed.copy()
  for a in order:
    if parent[a] != a or held[a] > work[a]:
      continue  # It has been merged already.
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
  while parent[a] != a:
    parent[a] = parent[parent[a]]
    a = parent[a]
  return a


# These are loops because array expressions take seconds to compile.
@allocating_inlined
def _meet(free: np.ndarray, a: Index, b: Index) -> bool:
  for device in range(free.shape[1]):
    if free[a, device] and free[b, device]:
      return True
  return False


@allocating_inlined
def _narrow(free: np.ndarray, a: Index, allowed: np.ndarray, b: Index) -> None:
  """Restricts coarse group `a` to the devices that row `b` allows."""
  for device in range(free.shape[1]):
    free[a, device] = free[a, device] and allowed[b, device]


def coarsen_by_merging(groups: GroupGraph, sizes: Sequence[int]) -> Coarsening:
  """Merges to each of the given sizes, each time from all groups."""
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
  """Merges to each target size, each time from all groups.

  Args:
    problem: problem whose groups are merged.
    targets: numbers of coarse groups; a group that cannot merge remains, so the
      result may have more.
    label: [num_groups] labels; only groups of equal labels merge. None allows
      all groups that run on the same devices.
    more_us: [num_groups] microseconds of work in addition to op times.

  Returns:
    For each target, the [num_groups] group that each group is merged into.
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
  """Returns the adjacency of groups: offsets, neighbors, bytes per edge."""
  graph, group_of = problem.graph, problem.group_of
  src, dst = group_of[graph.edge_src], group_of[graph.edge_dst]
  apart = src != dst
  ends = np.concatenate((src[apart], dst[apart]))
  other = np.concatenate((dst[apart], src[apart]))
  num_bytes = np.tile(graph.edge_bytes[apart].astype(np.float64), 2)
  offsets, order = csr(ends, problem.num_groups)
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
  """Fills [num_groups] `parent`; overwrites the adjacency and the times."""
  count = len(parent)
  after = np.arange(1, len(other) + 1)  # Linked lists of each group's entries.
  first, last = np.full(count, _NONE), np.full(count, _NONE)
  costs, keys, size = np.empty(2 * count), np.empty(2 * count, np.int64), 0
  for group in range(count):
    if offsets[group] < offsets[group + 1]:
      first[group], last[group] = offsets[group], offsets[group + 1] - 1
      after[last[group]] = _NONE
    size = kernels.push(costs, keys, size, time_us[group], group)
  seen = np.full(count, _NONE)  # Entry of each neighbor of the current group.
  left = count
  while left > target and size > 0:
    cost, group = costs[0], keys[0]
    size = kernels.pop(costs, keys, size)
    if parent[group] != group or cost != time_us[group]:
      continue  # It was merged or has grown since it was pushed.
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
      # Prefer more bytes, then less work, then the lower number.
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
  """Keeps one entry per neighbor of a group, with the sum of bytes."""
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
