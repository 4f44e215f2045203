"""Clusters of groups at several levels, for moves of whole parts of a graph.

Coarsening as in multilevel graph partitioning (Karypis and Kumar, METIS,
1998): from the edge that costs most to cut down to the cheapest, the two ends
join one cluster unless it would hold more work than its level allows; each
level starts from the clusters of the one below.
"""

import dataclasses

import numpy as np

from tfplace.placers.groups import GroupGraph
from tfplace.placers.jit import kernel

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


def clusters(groups: GroupGraph) -> Clusters:
  """Clusters the groups at every level that differs from the one below."""
  src, dst, size = groups.edges
  cut_us = _cut_us(groups, size)
  # The free device sets of the members must have a device in common.
  dearest = np.lexsort((np.arange(len(src)), -cut_us))
  label = np.arange(groups.num_groups)
  work = groups.fastest_us
  total = float(work.sum())
  labels: list[np.ndarray] = []
  for share in _SHARES:
    label = _join(
      label, src[dearest], dst[dearest], work, groups.allowed, share * total
    )
    _, label = np.unique(label, return_inverse=True)
    if not labels or label.max(initial=0) < labels[-1].max(initial=0):
      labels.append(label)
  return Clusters(tuple(labels))


def _cut_us(groups: GroupGraph, size: np.ndarray) -> np.ndarray:
  """[num_pairs] microseconds of a transfer, at the links' mean."""
  cluster = groups.problem.cluster
  links = cluster.channel >= 0
  if not links.any():
    return size + 1.0
  fixed = float((cluster.latency_us + cluster.gap_us)[links].mean())
  return fixed + size * float((1 / cluster.bandwidth[links]).mean())


@kernel
def _join(
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
    free[label[group]] &= allowed[group]
  for i in range(len(src)):
    a, b = label[src[i]], label[dst[i]]
    while parent[a] != a:
      parent[a] = parent[parent[a]]
      a = parent[a]
    while parent[b] != b:
      parent[b] = parent[parent[b]]
      b = parent[b]
    if a == b or held[a] + held[b] > limit or not (free[a] & free[b]).any():
      continue
    a, b = min(a, b), max(a, b)
    parent[b] = a
    held[a] += held[b]
    free[a] &= free[b]
  result = np.empty(count, np.int64)
  for group in range(count):
    a = label[group]
    while parent[a] != a:
      a = parent[a]
    result[group] = a
  return result
