"""Clusters of groups at several levels, for moves of whole parts of a graph.

Coarsening as in multilevel graph partitioning (Karypis and Kumar, METIS,
1998), in two ways, for no one way serves all graphs. By edges: from the one
that costs most to cut down to the cheapest, the two ends join. By work: from
the cluster with the least work up, each joins the neighbour that is dearest to
part from (Placeto groups ops like that). In both, no cluster holds more work
than its level allows, and each level starts from the one below.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfplace.placers.compiled import inlined, kernel
from tfplace.placers.groups import GroupGraph

# Largest share of all work in one cluster, level by level (chosen by trial).
_SHARES = tuple(1 / 2**i for i in range(12, 1, -1))


@dataclasses.dataclass(frozen=True, eq=False)
class Clusters:
  """Nested clusterings of the groups, from the finest to the coarsest.

  Attributes:
    labels: per level, [num_groups] cluster of each group, 0, 1, ...
  """

  labels: tuple[np.ndarray, ...]

  def members(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All levels in one list of clusters, the groups themselves first.

    Returns:
      level_offsets [num_levels + 2] int64 into the clusters; cluster_offsets
      [num_clusters + 1] int64 into the members; members [?] int32 groups.
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


def clusters_by_edges(groups: GroupGraph) -> Clusters:
  """Joins along the dearest edges first."""
  graph = _graph(groups)
  dearest = np.lexsort((np.arange(len(graph.low)), -graph.cut_us))
  low, high = graph.low[dearest], graph.high[dearest]

  def join(label: np.ndarray, limit: float) -> np.ndarray:
    joined = _join_dearest(label, low, high, graph.work, graph.allowed, limit)
    return np.unique(joined, return_inverse=True)[1]

  return _by_levels(groups, join)


def clusters_by_work(groups: GroupGraph) -> Clusters:
  """Joins the clusters of least work first."""
  start = _graph(groups)

  def join(label: np.ndarray, limit: float) -> np.ndarray:
    graph = _contract(start, label)
    while True:
      joined = _join_cheapest(
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
) -> Clusters:
  """Joins with each level's limit; keeps levels that differ."""
  label = np.arange(groups.num_groups)
  total = float(groups.fastest_us.sum())
  labels: list[np.ndarray] = []
  for share in _SHARES:
    label = join(label, share * total)
    labels.append(label)
  return nested(labels)


def nested(labels: Sequence[np.ndarray]) -> Clusters:
  """Those levels, from the finest on, that have fewer clusters than the last.

  Args:
    labels: per level, [num_groups] clusters 0, 1, ...; each joins clusters of
      the one before.
  """
  kept: list[np.ndarray] = []
  for label in labels:
    if not kept or label.max(initial=0) < kept[-1].max(initial=0):
      kept.append(label)
  return Clusters(tuple(kept))


class _Graph(NamedTuple):
  """An undirected graph of clusters.

  Attributes:
    low, high: [num_pairs] ends of each pair.
    cut_us: [num_pairs] what it costs to part them.
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
  """Both ways: offsets [count + 1], neighbours and costs, dearest first."""
  ends = np.concatenate((graph.low, graph.high))
  other = np.concatenate((graph.high, graph.low))
  cut_us = np.concatenate((graph.cut_us, graph.cut_us))
  order = np.lexsort((other, -cut_us, ends))
  counts = np.bincount(ends, minlength=len(graph.work))
  return np.concatenate(([0], np.cumsum(counts))), other[order], cut_us[order]


def _graph(groups: GroupGraph) -> _Graph:
  src, dst, size = groups.edges
  return _Graph(
    src.astype(np.int64),
    dst.astype(np.int64),
    _cut_us(groups, size),
    groups.fastest_us,
    groups.allowed,
  )


def _cut_us(groups: GroupGraph, size: np.ndarray) -> np.ndarray:
  """[num_pairs] microseconds of a transfer, at the links' mean."""
  cluster = groups.problem.cluster
  links = cluster.channel >= 0
  if not links.any():
    return size + 1.0
  fixed = float((cluster.latency_us + cluster.gap_us)[links].mean())
  return fixed + size * float((1 / cluster.bandwidth[links]).mean())


@kernel
def _join_dearest(
  label: np.ndarray,
  src: np.ndarray,
  dst: np.ndarray,
  work: np.ndarray,
  allowed: np.ndarray,
  limit: float,
) -> np.ndarray:
  """[num_groups] clusters after joining along the edges, in their order."""
  count = len(label)
  parent = np.arange(count)
  held = np.zeros(count)
  free = np.ones((count, allowed.shape[1]), np.bool_)
  for group in range(count):
    held[label[group]] += work[group]
    _narrow(free, label[group], allowed, group)
  for i in range(len(src)):
    a, b = label[src[i]], label[dst[i]]
    while parent[a] != a:
      parent[a] = parent[parent[a]]
      a = parent[a]
    while parent[b] != b:
      parent[b] = parent[parent[b]]
      b = parent[b]
    if a == b or held[a] + held[b] > limit or not _meet(free, a, b):
      continue
    a, b = min(a, b), max(a, b)
    parent[b] = a
    held[a] += held[b]
    _narrow(free, a, free, b)
  result = np.empty(count, np.int64)
  for group in range(count):
    a = label[group]
    while parent[a] != a:
      a = parent[a]
    result[group] = a
  return result


@kernel
def _join_cheapest(
  offsets: np.ndarray,
  neighbours: np.ndarray,
  cut_us: np.ndarray,
  work: np.ndarray,
  order: np.ndarray,
  allowed: np.ndarray,
  limit: float,
) -> np.ndarray:
  """[count] cluster of each cluster after one pass in an order."""
  count = len(work)
  parent = np.arange(count)
  held = work.copy()
  free = allowed.copy()
  for a in order:
    if parent[a] != a or held[a] > work[a]:
      continue  # it has joined, or others have joined it
    for i in range(offsets[a], offsets[a + 1]):
      b = neighbours[i]
      while parent[b] != b:
        parent[b] = parent[parent[b]]
        b = parent[b]
      if b == a or held[a] + held[b] > limit or not _meet(free, a, b):
        continue
      parent[a] = b
      held[b] += held[a]
      _narrow(free, b, free, a)
      break
  for a in range(count):
    b = a
    while parent[b] != b:
      b = parent[b]
    parent[a] = b
  return parent


# As array expressions these two take seconds to compile.
@inlined
def _meet(free: np.ndarray, a: int, b: int) -> bool:
  """Whether two clusters may share a device."""
  for device in range(free.shape[1]):
    if free[a, device] and free[b, device]:
      return True
  return False


@inlined
def _narrow(free: np.ndarray, a: int, allowed: np.ndarray, b: int) -> None:
  """Leaves cluster `a` only the devices that row `b` allows."""
  for device in range(free.shape[1]):
    free[a, device] = free[a, device] and allowed[b, device]
