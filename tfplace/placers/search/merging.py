"""Groups merged cheapest first, down to some dozens.

As Placeto merges before it places (arXiv 1906.08879): the group with the least
work joins the neighbour with which it exchanges the most bytes, among those
that run on the same devices, as long as no group gets more than twice its
share of the work. What ends in one cluster is a part of a model, such as a
layer's weights with their gradients, so that whole clusters can change places
without much new traffic.
"""

from collections.abc import Sequence

import numpy as np

from tfplace.core.problem import Problem
from tfplace.placers.compiled import inlined, kernel
from tfplace.placers.list_scheduling import kernels

_NONE = -1


def merged(problem: Problem, targets: Sequence[int]) -> list[np.ndarray]:
  """Merges down to each target, from all groups anew.

  Args:
    problem: whose groups are merged.
    targets: how many to get down to; a group without a neighbour to join
      stays, so there may be more.

  Returns:
    Per target, [num_groups] the group that each group is merged into.
  """
  count = problem.num_groups
  time_us = np.bincount(problem.group_of, problem.fastest_us, count)
  kind = np.unique(problem.group_allowed, axis=0, return_inverse=True)[1]
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
        kind.reshape(-1),
        target,
        2.0 * float(time_us.sum()) / target,
      )
    while (parent[parent] != parent).any():
      parent = parent[parent]
    result.append(parent)
  return result


def _links(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Adjacency of groups, both ways: offsets, neighbours, bytes per edge."""
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
  seen = np.full(count, _NONE)  # entry of each neighbour of the group at hand
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
      if into == _NONE or _is_dearer(size_here, near, most, into, time_us):
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


@inlined
def _is_dearer(
  num_bytes: float, near: int, most: float, into: int, time_us: np.ndarray
) -> bool:
  """More bytes, then less work, then the lower number."""
  if num_bytes != most:
    return num_bytes > most
  if time_us[near] != time_us[into]:
    return time_us[near] < time_us[into]
  return near < into


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
  """Leaves one entry per neighbour of a group, with all of its bytes."""
  entry = first[group]
  first[group] = last[group] = _NONE
  while entry != _NONE:
    near = other[entry]
    while parent[near] != near:
      parent[near] = parent[parent[near]]
      near = parent[near]
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
