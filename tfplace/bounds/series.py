"""Work in series: producers that are too far away to be on another device.

What has to be on the device of one op takes that device one after another,
however many others there are. This is what splitting small or tightly coupled
ops cannot beat, and what a longest path does not see.
"""

import heapq

import numpy as np

from tfplace.bounds.locality import latest_impossible, relax_edge
from tfplace.bounds.relaxed import Flow, least_end
from tfplace.simulate.jit import Index, allocating_helper

_SIZES = 8  # ops looked at for each working op, at most


@allocating_helper
def raise_by_series(
  flow: Flow,
  head: np.ndarray,
  root: int,
  c: int,
  reach: int,
  near: np.ndarray,
  far: np.ndarray,
  place: np.ndarray,
) -> None:
  """Raises `head[root, c]` by the work that must be on the root's device.

  Args:
    flow: the problem, in either direction.
    head: [num_ops, num_classes], final for all that comes before the root.
    root: position of the op.
    c: class of its device.
    reach: working ops to look back.
    near: [num_ops] scratch.
    far: [num_ops, num_classes] scratch.
    place: [num_ops] scratch, all -1 before and after.
  """
  found = np.empty(_SIZES * reach, np.int64)
  size = _gather(flow, head, root, c, reach, near, far, place, found)
  ops = found[:size]
  num_classes = head.shape[1]
  at = np.empty(size)  # arrivals of the ops found, if they are elsewhere
  start = np.empty(size)
  work = np.empty(size)
  count = 0
  for op in ops:
    if flow.work_us[op, c] > 0:
      at[count] = np.inf
      if flow.group_of[op] != flow.group_of[root]:
        for k in range(num_classes):
          end = head[op, k] + flow.time_us[op, k]
          at[count] = min(at[count], end + far[op, k])
      start[count] = head[op, c]
      work[count] = flow.work_us[op, c]
      count += 1
  spare = flow.spare_us[root, c]
  least = _forced(at[:count], start[:count], work[:count], spare, head[root, c])
  at[:count] = np.inf
  most = _forced(at[:count], start[:count], work[:count], spare, least)
  if least < most and most < np.inf:
    least = latest_impossible(
      flow, head, root, c, ops, place, near, far, least, most
    )
  head[root, c] = least
  place[ops] = -1


@allocating_helper
def _gather(
  flow: Flow,
  head: np.ndarray,
  root: int,
  c: int,
  reach: int,
  near: np.ndarray,
  far: np.ndarray,
  place: np.ndarray,
  found: np.ndarray,
) -> int:
  """Ops before the root, each after all that it feeds; returns how many.

  Fills `near` and `far` on the way, and `place` with the index in `found`.
  """
  queue = [(-np.inf, np.int64(0), np.int64(0))]
  queue.pop()
  count, size = 0, 0
  op: Index = root
  while True:
    for i in range(flow.offsets[op], flow.offsets[op + 1]):
      u = flow.before[i]
      if place[u] == -1:
        place[u] = -2  # waits in the queue
        near[u] = 0.0
        far[u, :] = 0.0
        # Latest ends first, ties by order: it comes after what it feeds.
        heapq.heappush(
          queue,
          (-least_end(flow, head, u), -flow.rank[u], np.int64(u)),
        )
      relax_edge(flow, op, c, root, i, near, far)
    if len(queue) == 0 or count == reach or size == len(found):
      break
    op = heapq.heappop(queue)[2]
    place[op] = size
    found[size] = op
    size += 1
    if flow.work_us[op, c] > 0:
      count += 1
  for item in queue:
    place[item[2]] = -1
  return size


@allocating_helper
def _forced(
  at: np.ndarray,
  start: np.ndarray,
  work: np.ndarray,
  spare: float,
  least: float,
) -> float:
  """max over k of min(k-th latest arrival, series of the k latest); or
  `least`, if that is more."""
  result = least
  order = np.argsort(-at)
  starts = np.empty(len(at))
  series = np.empty(len(at))  # start + all work of later or equal starts
  for k in range(len(order)):
    i = order[k]
    if at[i] <= result:
      break
    place = k
    while place > 0 and starts[place - 1] > start[i]:
      starts[place] = starts[place - 1]
      series[place] = series[place - 1]
      place -= 1
    starts[place] = start[i]
    after = 0.0
    if place < k:
      after = series[place + 1] - starts[place + 1]
    series[place] = start[i] + after
    longest = 0.0
    for j in range(place + 1):
      series[j] += work[i]
    for j in range(k + 1):
      longest = max(longest, series[j])
    result = max(result, min(at[i], longest + spare))
  return result
