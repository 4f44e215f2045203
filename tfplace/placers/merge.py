"""Merging of groups to coarse groups.

As in Placeto (arXiv 1906.08879), the coarse group of least work merges with the
neighbor with which it exchanges most: again and again down to a number of
coarse groups, or in passes that merge each once, as in multilevel partitioning
(Karypis and Kumar, 1998), which gives groups of more even work.
"""

from collections.abc import Sequence

import numpy as np

from tfplace.graph.csr import csr
from tfplace.graph.problem import Problem
from tfplace.placers.groups import GroupGraph
from tfplace.simulate import heap
from tfplace.simulate.jit import Index, inlined, kernel
from tfplace.simulate.links import mean_transfer

_NONE = -1  # No entry or group.
# Powers of two that divide all work in the levels of passes, and numbers of
# coarse groups of the levels above, by trial.
_POWERS = range(12, 1, -1)
_SIZES = (96, 32, 8, 3)
NUM_MERGED = len(_SIZES)


def coarse_levels(groups: GroupGraph) -> list[np.ndarray]:
  """Merges in passes, then to a few numbers of coarse groups.

  Returns:
    For each level, [num_groups] coarse group of each group, 0, 1, ...: those of
    passes, finest first, and the `NUM_MERGED` others, fewer for small graphs.
  """
  sizes = [size for size in _SIZES if size < groups.num_groups]
  merges = merged(groups.problem, sizes)
  return [*_matched_levels(groups), *map(_numbered, merges)]


def _matched_levels(groups: GroupGraph) -> list[np.ndarray]:
  """Merges in passes, each level from the one before.

  A coarse group has at most 1/4096, 1/2048, ..., 1/4 of all work. Levels that
  have as many coarse groups as the one before are left out.
  """
  problem, label = groups.problem, np.arange(groups.num_groups)
  work_us, kind = groups.fastest_us, problem.allowed_sets[1]
  us_per_byte, fixed_us = 0.0, 1.0  # Without links, edges count.
  if problem.cluster.links:
    us_per_byte, fixed_us = mean_transfer(problem.cluster, with_gap=True)
  src, dst, size = groups.edges
  cut_us = fixed_us + size * us_per_byte
  levels: list[np.ndarray] = []
  for power in _POWERS:
    limit, before, count = work_us.sum() / 2**power, len(work_us), 0
    while len(work_us) != count:
      count = len(work_us)
      links = _links(label[src], label[dst], cut_us, count)
      parent = _parents(links, work_us, kind, 1, limit, is_pass=True)
      kind = kind[parent == np.arange(count)]
      parent = _numbered(parent)
      label, work_us = parent[label], np.bincount(parent, work_us)
    if not levels or count < before:
      levels.append(label)
  return levels


def _numbered(parent: np.ndarray) -> np.ndarray:
  return np.unique(parent, return_inverse=True)[1].reshape(-1)


def merged(
  problem: Problem,
  targets: Sequence[int],
  label: np.ndarray | None = None,
  more_us: np.ndarray | None = None,
) -> list[np.ndarray]:
  """Merges to each target size, each time from all groups.

  Args:
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
  graph = problem.graph
  src, dst = problem.group_of[graph.edge_src], problem.group_of[graph.edge_dst]
  links = _links(src, dst, graph.edge_bytes.astype(np.float64), count)
  work_us = time_us.sum()
  return [
    _parents(links, time_us, kind, target, 2.0 * work_us / target)
    for target in targets
  ]


def _parents(
  links: tuple[np.ndarray, np.ndarray, np.ndarray],
  time_us: np.ndarray,
  kind: np.ndarray,
  target: int,
  limit: float,
  is_pass: bool = False,
) -> np.ndarray:
  """Returns the group that each one is merged into; see `_merge`."""
  count, (offsets, other, weight) = len(time_us), links
  parent = np.arange(count)
  if count > target:
    _merge(
      parent,
      offsets,
      other.copy(),
      weight.copy(),
      time_us.copy(),
      kind,
      target,
      limit,
      is_pass,
      np.arange(1, len(other) + 1),
      np.full((3, count), _NONE),
      np.empty(2 * count, heap.ENTRY),
    )
  while (parent[parent] != parent).any():
    parent = parent[parent]
  return parent


def _links(
  src: np.ndarray, dst: np.ndarray, weights: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the adjacency of groups: offsets, neighbors, weights of edges."""
  apart = src != dst
  ends = np.concatenate((src[apart], dst[apart]))
  other = np.concatenate((dst[apart], src[apart]))
  weight = np.tile(weights[apart], 2)
  offsets, order = csr(ends, count)
  return offsets, other[order].astype(np.int64), weight[order]


@kernel
def _merge(
  parent: np.ndarray,
  offsets: np.ndarray,
  other: np.ndarray,
  weight: np.ndarray,
  time_us: np.ndarray,
  kind: np.ndarray,
  target: int,
  limit: float,
  is_pass: bool,
  after: np.ndarray,
  ends: np.ndarray,
  entries: np.ndarray,
) -> None:
  """Fills [num_groups] `parent`; overwrites the adjacency and the times.

  Args:
    limit: most work of a coarse group.
    is_pass: merge no group that another one has merged into.
    after: [num_entries] next entry of the same group, at first each the next.
    ends: [3, num_groups] scratch, all -1.
    entries: [2 * num_groups] heap.
  """
  count = len(parent)
  first, last = ends[0], ends[1]  # Linked lists of each group's entries.
  seen = ends[2]  # Entry of each neighbor of the current group.
  size: Index = np.int64(0)
  for group in range(count):
    if offsets[group] < offsets[group + 1]:
      first[group], last[group] = offsets[group], offsets[group + 1] - 1
      after[last[group]] = _NONE
    size = heap.push(entries, size, time_us[group], group)
  left = count
  while left > target and size > 0:
    cost, group = entries[0].time, entries[0].key
    size = heap.pop(entries, size)
    if parent[group] != group or cost != time_us[group]:
      continue  # It was merged or has grown since it was pushed.
    _gather(parent, first, last, after, other, weight, seen, group)
    into, most = _NONE, 0.0
    entry = first[group]
    while entry != _NONE:
      near = other[entry]
      seen[near] = _NONE
      size_here = weight[entry]
      entry = after[entry]
      if kind[near] != kind[group] or time_us[near] + cost > limit:
        continue
      # Prefer more traffic, then less work, then the lower number.
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
    if not is_pass:
      size = heap.push(entries, size, time_us[into], into)
    left -= 1


@inlined
def _gather(
  parent: np.ndarray,
  first: np.ndarray,
  last: np.ndarray,
  after: np.ndarray,
  other: np.ndarray,
  weight: np.ndarray,
  seen: np.ndarray,
  group: int,
) -> None:
  """Keeps one entry per neighbor of a group, with the sum of weights."""
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
      weight[seen[near]] += weight[entry]
    entry = following


@inlined
def _root(parent: np.ndarray, a: Index) -> Index:
  """Returns the group that stands for a merged one; shortens its path."""
  while parent[a] != a:
    parent[a] = parent[parent[a]]
    a = parent[a]
  return a
