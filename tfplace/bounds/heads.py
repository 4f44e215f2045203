"""Heads and tails: the least time before and after each op, with transfers.

A longest path on which every step costs something real: the idle gap where
producer and consumer share a device, the transfer where they do not; and on
it, the work that must be done before an op by one device or by all.
"""

import numpy as np

from tfplace.bounds.relaxed import Flow, Relaxed, flow_of
from tfplace.bounds.series import raise_by_series
from tfplace.bounds.work import priced_work
from tfplace.simulate.jit import allocating, allocating_helper
from tfplace.simulate.links import arrival_us

_REACH = 8  # working ops of the shortest series; then 4 times as many each
_LATEST = 8192  # ops looked at for the work before one: those of latest heads
_BLOCK = 64  # ops whose ancestors are found together, one bit each


def heads_and_tails(
  relaxed: Relaxed, price: np.ndarray, reach: int
) -> tuple[np.ndarray, np.ndarray]:
  """[num_ops, num_classes] each: the least time before the start of each op,
  and after its end, if it is on a device of that class.

  Args:
    relaxed: of the problem.
    price: [num_classes] of one device, from `work_prices`.
    reach: as in `heads`.
  """
  work, free = priced_work(relaxed, price)
  before = heads(flow_of(relaxed), work, free, reach)
  return before, heads(flow_of(relaxed, backward=True), work, free, reach)


def heads(flow: Flow, work: np.ndarray, free: float, reach: int) -> np.ndarray:
  """[num_ops, num_classes] the least time before each op if it is there.

  Proof, by induction in topological order. Let v run on device d of class c.
  Edges: let u feed v. If u is on d, v starts after u and its idle gap (rule
  2); else after u, wherever it is, and a transfer (rule 3). Each u may choose
  the better for itself, which only relaxes.
  Series: take any u before v, by whatever path, that is not on d. Every path
  crosses onto d, and the cheapest way along one path gives an arrival r(u).
  If v started at T, all u with r(u) > T would be on d, one at a time with
  their gaps, and v after them; so T >= min(r, h + their work after h) for
  the u with the latest r, and every h before which none of them starts.
  Work: all u before v that cannot start before h have run when v starts, so
  h plus their divisible work is a lower bound of v's start, for every h.

  Args:
    flow: the problem, in either direction.
    work: [num_ops] from `priced_work`.
    free: from `priced_work`.
    reach: working ops to look back for a series; more is tighter.
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
  found = np.full(num_ops, -1)  # scratch of the series
  mask = np.zeros(num_ops, np.uint64)
  starts = np.empty(num_ops)  # of the working ops so far, descending
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
      # The nearest first: what is proved of few need not be tried with many.
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
  """max over h of h + the work of what comes before and cannot start by h."""
  total, best = -free, 0.0
  for i in range(min(count, _LATEST)):
    if mask[ops[i]] & bit:
      total += work[ops[i]]
      best = max(best, starts[i] + total)
  return best


@allocating_helper
def _arrival(flow: Flow, head: np.ndarray, op: int, c: int, edge: int) -> float:
  """Least time at which `edge` brings its input to `op` on class `c`."""
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
  """Sets bit i of `mask[u]` where u comes before the i-th op of the block."""
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
  """Keeps `starts` in descending order."""
  i = count
  while i > 0 and starts[i - 1] < start:
    starts[i] = starts[i - 1]
    ops[i] = ops[i - 1]
    i -= 1
  starts[i] = start
  ops[i] = op
