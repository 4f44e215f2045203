"""Merging of groups to coarse groups.

As in Placeto (arXiv 1906.08879), the coarse group of least work merges with the
neighbor with which it exchanges most bytes, again and again.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfplace.graph.csr import csr
from tfplace.graph.problem import Problem
from tfplace.placers.groups import GroupGraph
from tfplace.simulate import heap
from tfplace.simulate.jit import Index, inlined, kernel

_NONE = -1  # No entry or group.
# Numbers of coarse groups of the levels, by trial.
_FINE, _COARSE = (4096, 2048, 1024, 512, 256), (96, 32, 8, 3)
NUM_COARSE = len(_COARSE)


def coarse_levels(groups: GroupGraph) -> list[np.ndarray]:
  """Merges to levels of coarse groups.

  The coarsest levels come in two ways: launches count as work, or do not. Which
  one suits depends on the step.

  Returns:
    For each level, [num_groups] coarse group of each group, 0, 1, ...: fine
    ones, finest first, then `NUM_COARSE` of each way.
  """
  problem, count = groups.problem, groups.num_groups
  time_us = np.bincount(problem.group_of, problem.fastest_us, count)
  sizes = *(size for size in _FINE if size < count), *_COARSE
  levels = merged(problem, sizes, more_us=groups.fastest_us - time_us)
  return [*map(_numbered, [*levels, *merged(problem, _COARSE)])]


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
    _parents(links, time_us, kind, target=target, limit=2.0 * work_us / target)
    for target in targets
  ]


class _Entries(NamedTuple):
  """Linked lists of the edges of each group, which merging joins.

  Attributes:
    other: [num_entries] group at the other end, by now perhaps merged.
    weight: [num_entries] traffic.
    after: [num_entries] next entry of the same group, or -1.
    first: [num_groups] first entry of each group, or -1.
    last: [num_groups] its last entry.
    seen: [num_groups] scratch, all -1: the entry of each neighbor of a group.
  """

  other: np.ndarray
  weight: np.ndarray
  after: np.ndarray
  first: np.ndarray
  last: np.ndarray
  seen: np.ndarray


def _parents(
  links: tuple[np.ndarray, np.ndarray, np.ndarray],
  work_us: np.ndarray,
  kind: np.ndarray,
  *,
  target: int,
  limit: float,
) -> np.ndarray:
  """Returns the group that each one is merged into, itself for none.

  Args:
    links: as returned by `_links`.
    work_us: [num_groups] work.
    kind: [num_groups] labels; only groups of equal labels merge.
    target: number of groups at which merging ends.
    limit: most work of a coarse group.
  """
  count, (offsets, other, weight) = len(work_us), links
  parent = np.arange(count)
  if count > target:
    has_any = offsets[:-1] < offsets[1:]
    after = np.arange(1, len(other) + 1)
    after[offsets[1:][has_any] - 1] = _NONE
    first = np.where(has_any, offsets[:-1], _NONE)
    last = np.where(has_any, offsets[1:] - 1, _NONE)
    seen = np.full(count, _NONE)
    entries = _Entries(other.copy(), weight.copy(), after, first, last, seen)
    queue = np.empty(2 * count, heap.ENTRY)
    limits = target, limit
    _merge(parent, entries, work_us.copy(), kind, limits, queue)
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
  entries: _Entries,
  work_us: np.ndarray,
  kind: np.ndarray,
  limits: tuple[int, float],
  queue: np.ndarray,
) -> None:
  """Fills [num_groups] `parent`; overwrites entries and work.

  `limits` are the last arguments of `_parents`; `queue` is an empty heap of
  [2 * num_groups].
  """
  left, (target, limit) = len(parent), limits
  first, last = entries.first, entries.last
  size: Index = np.int64(0)
  for group in range(len(parent)):
    size = heap.push(queue, size, work_us[group], group)
  while left > target and size > 0:
    cost, group = queue[0].time, queue[0].key
    size = heap.pop(queue, size)
    if parent[group] != group or cost != work_us[group]:
      continue  # It was merged or has grown since it was pushed.
    _gather(parent, entries, group)
    into = _heaviest(entries, work_us, kind, limit, group)
    if into == _NONE:
      continue
    parent[group] = into
    work_us[into] += cost
    if first[into] == _NONE:
      first[into] = first[group]
    else:
      entries.after[last[into]] = first[group]
    last[into] = last[group]
    size = heap.push(queue, size, work_us[into], into)
    left -= 1


@inlined
def _gather(parent: np.ndarray, entries: _Entries, group: int) -> None:
  """Keeps one entry per neighbor of a group, with the sum of weights."""
  first, last, after = entries.first, entries.last, entries.after
  other, weight, seen = entries.other, entries.weight, entries.seen
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
def _heaviest(
  entries: _Entries,
  work_us: np.ndarray,
  kind: np.ndarray,
  limit: float,
  group: int,
) -> Index:
  """Returns the neighbor that a group merges into, or -1; clears `seen`.

  More traffic comes first, then less work, then the lower number.
  """
  into, most = np.int64(_NONE), 0.0
  entry = entries.first[group]
  while entry != _NONE:
    near, size = entries.other[entry], entries.weight[entry]
    entries.seen[near] = _NONE
    entry = entries.after[entry]
    if kind[near] != kind[group] or work_us[near] + work_us[group] > limit:
      continue
    if into == _NONE or (-size, work_us[near], near) < (
      -most,
      work_us[into],
      into,
    ):
      into, most = near, size
  return into


@inlined
def _root(parent: np.ndarray, a: Index) -> Index:
  """Returns the group that stands for a merged one; shortens its path."""
  while parent[a] != a:
    parent[a] = parent[parent[a]]
    a = parent[a]
  return a
