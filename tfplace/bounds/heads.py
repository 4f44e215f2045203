"""Heads and tails: the least time before and after each op.

A head is a longest path on which each edge costs either the idle gap, if
producer and consumer share a device, or the transfer. It also counts the work
that one device, or all devices, must do before an op. The work of one device
comes from producers that are too far away to be on another device. It runs in
series however many devices there are, which a longest path ignores.
"""

import heapq

import numpy as np

from tfplace.bounds.relaxed import Flow, Relaxed, flow_of, least_end
from tfplace.bounds.work import priced_work
from tfplace.simulate.jit import Index, allocating, allocating_helper
from tfplace.simulate.links import arrival_us

# Working ops of the shortest series; each further one has 4 times as many.
_REACH = 8
_LATEST = 8192  # Ops of latest heads that count as the work before an op.
_BLOCK = 64  # Ops whose ancestors are found together, one bit each.


def heads_and_tails(
  relaxed: Relaxed, price: np.ndarray, reach: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns [num_ops, num_classes] heads and tails in microseconds.

  An entry is the least time before the start (or after the end) of the op if it
  runs on that class.

  Args:
    price: [num_classes] price of one device, from `work_prices`.
    reach: as in `heads`.
  """
  work, free = priced_work(relaxed, price)
  before = heads(flow_of(relaxed), work, free, reach)
  return before, heads(flow_of(relaxed, backward=True), work, free, reach)


def heads(flow: Flow, work: np.ndarray, free: float, reach: int) -> np.ndarray:
  """Returns the [num_ops, num_classes] least time before each op.

  Proof by induction in topological order. Let op v run on device d of class c.
  The rules are those of docs/simulation.md.

  - Edges: let u feed v. If u is on d, v starts after u and its idle gap, by
    rule 2 (device). Otherwise v starts after u, on any other device, and a
    transfer, by rule 3 (channel). Each u may take the cheaper choice, which
    only relaxes.
  - Series: let u precede v by any path and not be on d. Every path from u
    crosses onto d, and the cheapest crossing of one path gives an arrival r(u).
    If v started at T, all u with r(u) > T would be on d, one at a time with
    their gaps, and v after them. So, for the k ops with the latest arrivals, T
    >= min(r, h + their work after h), where r is the k-th latest arrival and h
    any time before which none of them starts.
  - Work: all u before v that cannot start before h have run when v starts. So h
    plus their divisible work is a lower bound of v's start, for every h.

  Args:
    flow: the problem, in either direction.
    work: [num_ops] from `priced_work`.
    free: constant to subtract, from `priced_work`.
    reach: number of working ops to look back for a series; more is tighter.
  """
  result = np.zeros(flow.time_us.shape)
  _heads(flow, work, free, reach, result)
  return result


@allocating
def _heads(
  flow: Flow, work: np.ndarray, free: float, reach: int, head: np.ndarray
) -> None:
  num_ops, num_classes = head.shape
  near, far = np.zeros(num_ops), np.zeros((num_ops, num_classes))
  found = np.full(num_ops, -1)  # Scratch of the series.
  mask = np.zeros(num_ops, np.uint64)
  # Starts of the working ops so far, in descending order.
  starts = np.empty(num_ops)
  ops = np.empty(num_ops, np.int64)
  count = 0
  for place in range(num_ops):
    if place % _BLOCK == 0:
      _ancestors(mask, place, min(num_ops, place + _BLOCK), flow)
    op = flow.order[place]
    bit = np.uint64(1) << np.uint64(place % _BLOCK)
    floor = _work_before(mask, bit, starts, ops, count, work, free)
    is_joint = flow.offsets[op + 1] - flow.offsets[op] > 1
    least = np.inf
    for c in range(num_classes):
      head[op, c] = floor
      if flow.time_us[op, c] == np.inf:
        head[op, c] = np.inf
        continue
      for i in range(flow.offsets[op], flow.offsets[op + 1]):
        head[op, c] = max(head[op, c], _arrival(flow, head, op, c, i))
      # Start with a short series, which makes most longer ones unnecessary.
      near_by = _REACH if is_joint and head[op, c] < np.inf else reach + 1
      while near_by <= reach:
        raise_by_series(flow, head, op, c, near_by, near, far, found)
        near_by *= 4
      least = min(least, head[op, c])
    if work[op] > 0:
      _insert(starts, ops, count, least, op)
      count += 1


@allocating_helper
def _work_before(
  mask: np.ndarray,
  bit: np.uint64,
  starts: np.ndarray,
  ops: np.ndarray,
  count: int,
  work: np.ndarray,
  free: float,
) -> float:
  """Returns the maximum over h of h + work before that cannot start by h."""
  total, best = -free, 0.0
  for i in range(min(count, _LATEST)):
    if mask[ops[i]] & bit:
      total += work[ops[i]]
      best = max(best, starts[i] + total)
  return best


@allocating_helper
def _arrival(flow: Flow, head: np.ndarray, op: int, c: int, edge: int) -> float:
  """Returns the least time at which `edge` delivers its input to `op` on c."""
  u = flow.before[edge]
  best = head[u, c] + flow.time_us[u, c] + flow.gap_us[edge, c]
  if flow.group_of[u] != flow.group_of[op]:
    for other in range(head.shape[1]):
      best = min(
        best,
        arrival_us(
          flow.links,
          head[u, other] + flow.time_us[u, other],
          flow.num_bytes[edge],
          other,
          c,
        ),
      )
  return best


@allocating_helper
def _ancestors(mask: np.ndarray, first: int, last: int, flow: Flow) -> None:
  """Sets bit i of `mask[u]` if u precedes the i-th op of the block."""
  mask[:] = 0
  for place in range(last - 1, -1, -1):
    op = flow.order[place]
    reached = mask[op]
    if place >= first:
      reached |= np.uint64(1) << np.uint64(place - first)
    if reached:
      for i in range(flow.offsets[op], flow.offsets[op + 1]):
        mask[flow.before[i]] |= reached


@allocating_helper
def _insert(
  starts: np.ndarray, ops: np.ndarray, count: int, start: float, op: int
) -> None:
  i = count
  while i > 0 and starts[i - 1] < start:
    starts[i] = starts[i - 1]
    ops[i] = ops[i - 1]
    i -= 1
  starts[i] = start
  ops[i] = op


_SIZES = 8  # Maximum number of ops to visit per working op.


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
    head: [num_ops, num_classes], final for all ops before the root.
    near: [num_ops] scratch.
    far: [num_ops, num_classes] scratch.
    place: [num_ops] scratch, all -1 before and after.
  """
  found = np.empty(_SIZES * reach, np.int64)
  size = _gather(flow, head, root, c, reach, near, far, place, found)
  ops = found[:size]
  num_classes = head.shape[1]
  at = np.empty(size)  # Arrivals of the ops if they are on another device.
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
  """Collects ops before the root, each after all that it feeds.

  Fills `near`, `far`, and `place` with the index in `found`. Returns the number
  of ops.
  """
  queue = [(-np.inf, np.int64(0), np.int64(0))]
  queue.pop()
  count, size = 0, 0
  op: Index = root
  while True:
    for i in range(flow.offsets[op], flow.offsets[op + 1]):
      u = flow.before[i]
      if place[u] == -1:
        place[u] = -2  # The op waits in the queue.
        near[u] = 0.0
        far[u, :] = 0.0
        # Take the latest ends first; ties in reverse order put an op after all
        # that it feeds.
        heapq.heappush(
          queue,
          (-least_end(flow, head, u), -flow.rank[u], np.int64(u)),
        )
      _relax_edge(flow, op, c, root, i, near, far)
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
def _relax_edge(
  flow: Flow,
  op: Index,
  c: int,
  root: int,
  edge: int,
  near: np.ndarray,
  far: np.ndarray,
) -> None:
  """Propagates the path times from `op` to the root over an edge into `op`.

  The root is on class c. `near[w]` is the least time from the end of w to the
  start of the root if both share a device, `far[w, k]` if w is on another
  device, of class k.
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
      way = arrival_us(flow.links, 0.0, size, c, k)
      best = min(best, way + flow.time_us[op, k] + far[op, k])
  near[u] = max(near[u], best)
  for k in range(num_classes):
    best = np.inf
    if not together:
      best = arrival_us(flow.links, 0.0, size, k, c)
      if not at_root:
        best += flow.time_us[op, c] + near[op]
    if not at_root:
      best = min(best, flow.gap_us[edge, k] + flow.time_us[op, k] + far[op, k])
      if not together:
        for j in range(num_classes):
          way = arrival_us(flow.links, 0.0, size, k, j)
          best = min(best, way + flow.time_us[op, j] + far[op, j])
    far[u, k] = max(far[u, k], best)


@allocating_helper
def _forced(
  at: np.ndarray,
  start: np.ndarray,
  work: np.ndarray,
  spare: float,
  least: float,
) -> float:
  """Returns max over k of min(k-th latest arrival, series of the k latest).

  The result is at least `least`.
  """
  result = least
  order = np.argsort(-at)
  starts = np.empty(len(at))
  series = np.empty(len(at))  # start + all work of equal or later starts
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
