"""Coarsening of groups into coarse groups that move together.

`coarsen_by_work` merges the lightest first, up to a share of all work; `merge`
has a method that reaches a given number of coarse groups.
"""

from typing import NamedTuple

import numpy as np

from tfplace.core.csr import csr
from tfplace.placers.groups import GroupGraph, unique_pairs
from tfplace.simulate.jit import Index, allocating, allocating_inlined
from tfplace.simulate.links import mean_transfer


def coarsen_by_work(
  groups: GroupGraph, finest: int = 12, coarsest: int = 2
) -> list[np.ndarray]:
  """Merges the coarse groups with the least work first, level by level.

  A coarse group has at most a share 2**-finest, ..., 2**-coarsest of all work.
  The defaults were chosen by trial. Levels that get coarser are kept.

  Returns:
    For each level, [num_groups] coarse group of each group, 0, 1, ...
  """
  graph = _graph(groups)
  label = np.arange(groups.num_groups)
  total = float(groups.fastest_us.sum())
  kept: list[np.ndarray] = []
  for exponent in range(finest, coarsest - 1, -1):
    while True:
      joined = _join_by_work(
        *_adjacency(graph),
        graph.work,
        np.argsort(graph.work, kind="stable"),
        graph.allowed,
        total / 2**exponent,
      )
      _, joined = np.unique(joined, return_inverse=True)
      if joined.max(initial=-1) + 1 == len(joined):
        break
      label, graph = joined[label], _contract(graph, joined)
    if not kept or label.max(initial=0) < kept[-1].max(initial=0):
      kept.append(label)
  return kept


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
  apart = a != b
  low, high = np.minimum(a, b)[apart], np.maximum(a, b)[apart]
  allowed = np.ones((count, graph.allowed.shape[1]), bool)
  np.logical_and.at(allowed, label, graph.allowed)
  return _Graph(
    *unique_pairs(low, high, graph.cut_us[apart], count),
    np.bincount(label, graph.work, count),
    allowed,
  )


def _adjacency(graph: _Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns offsets [count + 1], neighbors and costs, highest cost first."""
  ends = np.concatenate((graph.low, graph.high))
  other = np.concatenate((graph.high, graph.low))
  cut_us = np.concatenate((graph.cut_us, graph.cut_us))
  offsets, order = csr(ends, len(graph.work), -cut_us, other)
  return offsets, other[order], cut_us[order]


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
      b = root(parent, neighbors[i])
      if b == a or held[a] + held[b] > limit or not _meet(free, a, b):
        continue
      parent[a] = b
      held[b] += held[a]
      _narrow(free, b, free, a)
      break
  for a in range(count):
    parent[a] = root(parent, a)
  return parent


@allocating_inlined
def root(parent: np.ndarray, a: Index) -> Index:
  """Returns the group that stands for a merged one; shortens its path."""
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
