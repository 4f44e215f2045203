"""Work in series: producers that are too far away to be on another device.

What has to be on the device of one op takes that device one after another,
however many others there are. This is what splitting small or tightly coupled
ops cannot beat, and what a longest path does not see.
"""

import heapq

import numpy as np

from tfplace.bounds.flow import Flow, least_end
from tfplace.simulate.jit import Index, allocating


@allocating
def _relax_edge(
  flow: Flow,
  op: Index,
  c: int,
  root: int,
  edge: int,
  near: np.ndarray,
  far: np.ndarray,
) -> None:
  """Carries the way from `op` to `root` (on class c) over an edge into `op`.

  `near[w]` is the least time from the end of w to the start of the root if
  both are on one device, `far[w, k]` if w is on another, of class k.
  """
  num_classes = far.shape[1]
  u = flow.before[edge]
  together = flow.group_of[u] == flow.group_of[op]
  size = flow.num_bytes[edge]
  at_root = op == root
  stay = flow.gap_us[edge, c]
  if not at_root:
    stay += flow.time_us[op, c] + near[op]
  best = stay
  if not together and not at_root:
    for k in range(num_classes):
      way = size * flow.us_per_byte[c, k] + flow.latency_us[c, k]
      best = min(best, way + flow.time_us[op, k] + far[op, k])
  near[u] = max(near[u], best)
  for k in range(num_classes):
    best = np.inf
    if not together:
      best = size * flow.us_per_byte[k, c] + flow.latency_us[k, c]
      if not at_root:
        best += flow.time_us[op, c] + near[op]
    if not at_root:
      best = min(best, flow.gap_us[edge, k] + flow.time_us[op, k] + far[op, k])
      if not together:
        for j in range(num_classes):
          way = size * flow.us_per_byte[k, j] + flow.latency_us[k, j]
          best = min(best, way + flow.time_us[op, j] + far[op, j])
    far[u, k] = max(far[u, k], best)


@allocating
def raise_by_series(
  flow: Flow,
  head: np.ndarray,
  root: int,
  c: int,
  reach: int,
  near: np.ndarray,
  far: np.ndarray,
  seen: np.ndarray,
) -> None:
  """Raises `head[root, c]` by the work that must be on the root's device."""
  num_classes = head.shape[1]
  stamp = root * num_classes + c + 1
  count = 0
  at = np.empty(reach)  # arrivals of the ops found, if they are elsewhere
  start = np.empty(reach)
  work = np.empty(reach)
  # Latest ends first, ties by order: every op comes after what it feeds.
  queue = [(-np.inf, np.int64(0), np.int64(0))]
  queue.pop()
  op: Index = root
  while True:
    for i in range(flow.offsets[op], flow.offsets[op + 1]):
      u = flow.before[i]
      if seen[u] != stamp:
        seen[u] = stamp
        near[u] = 0.0
        far[u, :] = 0.0
        heapq.heappush(
          queue,
          (-least_end(flow, head, u), -flow.rank[u], np.int64(u)),
        )
      _relax_edge(flow, op, c, root, i, near, far)
    if len(queue) == 0 or count == reach:
      break
    op = heapq.heappop(queue)[2]
    if flow.work_us[op, c] > 0:
      arrival = np.inf
      if flow.group_of[op] != flow.group_of[root]:
        for k in range(num_classes):
          end = head[op, k] + flow.time_us[op, k]
          arrival = min(arrival, end + far[op, k])
      at[count] = arrival
      start[count] = head[op, c]
      work[count] = flow.work_us[op, c]
      count += 1
  head[root, c] = _forced(
    at[:count],
    start[:count],
    work[:count],
    flow.spare_us[root, c],
    head[root, c],
  )


@allocating
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
