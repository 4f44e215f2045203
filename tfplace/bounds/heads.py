"""Heads and tails: the least time before and after each op.

A head is a longest path on which each edge costs either the idle gap, if
producer and consumer share a device, or the transfer. It also counts the work
that one device, or all devices, must do before an op. The work of one device
comes from producers that are too far away to be on another device. It runs in
series however many devices there are, which a longest path ignores.
"""

from typing import NamedTuple

import numpy as np

from tfplace.bounds.relaxed import Flow, Relaxed, flow_of, least_end
from tfplace.bounds.work import priced_work
from tfplace.simulate import heap
from tfplace.simulate.jit import Index, helper, kernel
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
  num_ops, num_classes = flow.time_us.shape
  head = np.zeros((num_ops, num_classes))
  series = _Series(
    np.zeros(num_ops),
    np.zeros((num_ops, num_classes)),
    np.zeros(num_ops, bool),
    np.zeros(_SIZES * reach, np.int64),
    np.zeros(_SIZES * reach, _WORKING),
    np.zeros(num_ops, heap.ENTRY),
  )
  before = np.zeros(num_ops, heap.ENTRY)
  _heads(
    flow, work, free, reach, series, before, np.zeros(num_ops, np.uint64), head
  )
  return head


_SIZES = 8  # Maximum number of ops to visit per working op.
_WORKING = np.dtype(
  [
    ("arrival_us", np.float64),
    ("head_us", np.float64),
    ("work_us", np.float64),
    ("start_us", np.float64),
    ("end_us", np.float64),
  ]
)


class _Series(NamedTuple):
  """Scratch of the series before one op, the root.

  Attributes:
    near: [num_ops] see `_relax_edge`.
    far: [num_ops, num_classes] likewise.
    is_seen: [num_ops] bool, all False between roots.
    found: ops before the root, each after all that it feeds.
    working: those of them that work:
        arrival_us: least arrival at the root from another device.
        head_us, work_us: least start and time on the root's class.
      and separately, in order of start, the series so far (see `_forced`):
        start_us: least start of an op.
        end_us: this start, plus all work of equal or later starts.
    entries: [num_ops] heap.
  """

  near: np.ndarray
  far: np.ndarray
  is_seen: np.ndarray
  found: np.ndarray
  working: np.ndarray
  entries: np.ndarray


@kernel
def _heads(
  flow: Flow,
  work: np.ndarray,
  free: float,
  reach: int,
  series: _Series,
  before: np.ndarray,
  mask: np.ndarray,
  head: np.ndarray,
) -> None:
  """Fills `head`; `before` [num_ops] and `mask` [num_ops] are scratch."""
  num_ops, num_classes = head.shape
  count = 0  # Working ops so far, in `before` by descending start.
  for place in range(num_ops):
    if place % _BLOCK == 0:
      _ancestors(mask, place, min(num_ops, place + _BLOCK), flow)
    op = np.int64(flow.order[place])
    bit = np.uint64(1) << np.uint64(place % _BLOCK)
    floor = _work_before(mask, bit, before, count, work, free)
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
        _raise_by_series(flow, head, op, c, near_by, series)
        near_by *= 4
      least = min(least, head[op, c])
    if work[op] > 0:
      i = count
      while i > 0 and before[i - 1].time < least:
        before[i].time, before[i].key = before[i - 1].time, before[i - 1].key
        i -= 1
      before[i].time, before[i].key = least, op
      count += 1


@helper
def _work_before(
  mask: np.ndarray,
  bit: np.uint64,
  before: np.ndarray,
  count: int,
  work: np.ndarray,
  free: float,
) -> float:
  """Returns the maximum over h of h + work before that cannot start by h."""
  total, best = -free, 0.0
  for i in range(min(count, _LATEST)):
    if mask[before[i].key] & bit:
      total += work[before[i].key]
      best = max(best, before[i].time + total)
  return best


@helper
def _arrival(
  flow: Flow, head: np.ndarray, op: Index, c: int, edge: int
) -> float:
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


@helper
def _ancestors(mask: np.ndarray, first: int, last: int, flow: Flow) -> None:
  """Sets bit i of `mask[u]` if u precedes the i-th op of the block."""
  for op in range(len(mask)):
    mask[op] = np.uint64(0)
  for place in range(last - 1, -1, -1):
    op = flow.order[place]
    reached = mask[op]
    if place >= first:
      reached |= np.uint64(1) << np.uint64(place - first)
    if reached:
      for i in range(flow.offsets[op], flow.offsets[op + 1]):
        mask[flow.before[i]] |= reached


@helper
def _raise_by_series(
  flow: Flow, head: np.ndarray, root: Index, c: int, reach: int, series: _Series
) -> None:
  """Raises `head[root, c]` by the work that must be on the root's device.

  `head` is final for all ops before the root.
  """
  count = 0
  for i in range(_gather(flow, head, root, c, reach, series)):
    op = series.found[i]
    series.is_seen[op] = False
    if flow.work_us[op, c] > 0:
      arrival = np.inf
      if flow.group_of[op] != flow.group_of[root]:
        for k in range(head.shape[1]):
          end = head[op, k] + flow.time_us[op, k]
          arrival = min(arrival, end + series.far[op, k])
      about = series.working[count]
      about.arrival_us, about.head_us = arrival, head[op, c]
      about.work_us = flow.work_us[op, c]
      count += 1
  head[root, c] = _forced(series, count, flow.spare_us[root, c], head[root, c])


@helper
def _gather(
  flow: Flow, head: np.ndarray, root: Index, c: int, reach: int, series: _Series
) -> int:
  """Fills `found`, `near` and `far`; returns the number of ops."""
  count, size = 0, 0
  waiting: Index = np.int64(0)
  op: Index = root
  while True:
    for i in range(flow.offsets[op], flow.offsets[op + 1]):
      u = np.int64(flow.before[i])
      if not series.is_seen[u]:
        series.is_seen[u] = True
        series.near[u] = 0.0
        for k in range(head.shape[1]):
          series.far[u, k] = 0.0
        # Take the latest ends first; ties in reverse order put an op after all
        # that it feeds.
        end_us = least_end(flow, head, u)
        waiting = heap.push(series.entries, waiting, -end_us, -flow.rank[u])
      _relax_edge(flow, op, c, root, i, series)
    if waiting == 0 or count == reach or size == _SIZES * reach:
      break
    op = np.int64(flow.order[-series.entries[0].key])
    waiting = heap.pop(series.entries, waiting)
    series.found[size] = op
    size += 1
    if flow.work_us[op, c] > 0:
      count += 1
  for i in range(waiting):
    series.is_seen[flow.order[-series.entries[i].key]] = False
  return size


@helper
def _relax_edge(
  flow: Flow, op: Index, c: int, root: Index, edge: int, series: _Series
) -> None:
  """Propagates the path times from `op` to the root over an edge into `op`.

  The root is on class c. `near[w]` is the least time from the end of w to the
  start of the root if both share a device, `far[w, k]` if w is on another
  device, of class k.
  """
  near, far = series.near, series.far
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


@helper
def _forced(series: _Series, count: int, spare: float, least: float) -> float:
  """Returns max over k of min(k-th latest arrival, series of the k latest).

  The result is at least `least`. The first `count` of `working` count.
  """
  working, entries = series.working, series.entries
  left: Index = np.int64(0)
  for i in range(count):
    left = heap.push(entries, left, -working[i].arrival_us, i)
  result = least
  for k in range(count):
    about = working[entries[0].key]
    left = heap.pop(entries, left)
    if about.arrival_us <= result:
      break
    place = k
    while place > 0 and working[place - 1].start_us > about.head_us:
      working[place].start_us = working[place - 1].start_us
      working[place].end_us = working[place - 1].end_us
      place -= 1
    after = 0.0
    if place < k:
      after = working[place + 1].end_us - working[place + 1].start_us
    working[place].start_us = about.head_us
    working[place].end_us = about.head_us + after
    longest = 0.0
    for j in range(k + 1):
      if j <= place:
        working[j].end_us += about.work_us
      longest = max(longest, working[j].end_us)
    result = max(result, min(about.arrival_us, longest + spare))
  return result
