"""Merging of groups to a given number of coarse groups.

As in Placeto (arXiv 1906.08879), the coarse group of least work merges with the
neighbor with which it exchanges most bytes.
"""

from collections.abc import Sequence

import numpy as np

from tfplace.graph.csr import csr
from tfplace.graph.problem import Problem
from tfplace.placers.groups import GroupGraph
from tfplace.simulate import heap
from tfplace.simulate.jit import Index, inlined, kernel

_NONE = -1  # No entry or group.
# Numbers of coarse groups of the levels, by trial.
_SIZES = (4096, 1024, 256, 96, 32, 8, 3)


def coarse_levels(groups: GroupGraph) -> list[np.ndarray]:
  """Merges to several numbers of coarse groups, each time from all groups.

  Returns:
    For each level, finest first, [num_groups] coarse group of each group,
    0, 1, ...
  """
  wanted = [size for size in _SIZES if size < groups.num_groups]
  parents = merged(groups.problem, wanted)
  return [np.unique(p, return_inverse=True)[1].reshape(-1) for p in parents]


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
        np.arange(1, len(other) + 1),
        np.full((3, count), _NONE),
        np.empty(2 * count, heap.ENTRY),
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


@kernel
def _merge(
  parent: np.ndarray,
  offsets: np.ndarray,
  other: np.ndarray,
  num_bytes: np.ndarray,
  time_us: np.ndarray,
  kind: np.ndarray,
  target: int,
  limit: float,
  after: np.ndarray,
  ends: np.ndarray,
  entries: np.ndarray,
) -> None:
  """Fills [num_groups] `parent`; overwrites the adjacency and the times.

  Args:
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
    size = heap.push(entries, size, time_us[into], into)
    left -= 1


@inlined
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


@inlined
def _root(parent: np.ndarray, a: Index) -> Index:
  """Returns the group that stands for a merged one; shortens its path."""
  while parent[a] != a:
    parent[a] = parent[parent[a]]
    a = parent[a]
  return a
