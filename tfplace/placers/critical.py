"""Traces the critical path of a simulated step, compiled.

From the op that ends last back to the start: at each op, what it waited for
is an input computed here, an input from elsewhere, or the op before it.
"""

import numpy as np

from tfplace.placers.search_tables import (
  IS_STALE,
  PATH,
  SearchState,
  SearchTables,
)
from tfplace.simulate.jit import Index, helper, inlined

LOCAL = 0  # waited for an input from the same device
REMOTE = 1  # waited for a transfer
BUSY = 2  # waited for the device

_SLACK_US = 1e-6


@helper
def trace(tables: SearchTables, state: SearchState) -> None:
  """Fills `path` and `cause` from `start_us` and `op_devices`."""
  _order_by_start(tables, state)
  num_ops = len(state.start_us)
  op: Index = np.int64(0)
  for other in range(num_ops):
    if _end(tables, state, other) > _end(tables, state, op):
      op = other
  length = 0
  while op >= 0 and length < num_ops:
    state.path[length] = op
    op, state.cause[length] = _waited_for(tables, state, op)
    length += 1
  state.counts[PATH] = length
  state.counts[IS_STALE] = 0


@inlined
def _end(tables: SearchTables, state: SearchState, op: Index) -> float:
  return state.start_us[op] + tables.ops.time_us[op, state.op_devices[op]]


@inlined
def _waited_for(
  tables: SearchTables, state: SearchState, op: Index
) -> tuple[Index, int]:
  """The op that `op` waited for, -1 if none, and the cause."""
  start, device = state.start_us[op], state.op_devices[op]
  local, local_end = np.int64(-1), -1.0
  remote, remote_end = np.int64(-1), -1.0
  for i in range(tables.ops.in_offsets[op], tables.ops.in_offsets[op + 1]):
    source = np.int64(tables.ops.in_src[i])
    end, at = _end(tables, state, source), state.op_devices[source]
    if at == device:
      if end > local_end:
        local, local_end = source, end
      continue
    end += tables.ops.in_bytes[i] * tables.ops.us_per_byte[at, device]
    end += tables.ops.latency_us[at, device]
    if end > remote_end:
      remote, remote_end = source, end
  if local >= 0 and local_end >= start - _SLACK_US:
    return local, LOCAL
  previous: Index = np.int64(state.before[op])
  while previous >= 0 and state.start_us[previous] == start:
    previous = np.int64(
      state.before[previous]
    )  # it took no time: not worth a wait
  if previous >= 0:
    end = _end(tables, state, previous)
    if tables.ops.time_us[previous, device] > 0:
      end += tables.ops.overhead_us[device]
    if end >= start - _SLACK_US:
      return previous, BUSY
  if remote >= 0:  # it may have queued for the channel: then it is late
    return remote, REMOTE
  return previous if start > 0 else -1, BUSY


@inlined
def _order_by_start(tables: SearchTables, state: SearchState) -> None:
  """Shell sort of `by_start` (nearly sorted already), then `before`."""
  order, start = state.by_start, state.start_us
  gap = 1
  while gap < len(order) // 9:
    gap = 3 * gap + 1
  while gap > 0:
    for i in range(gap, len(order)):
      op = order[i]
      j = i
      while j >= gap and start[order[j - gap]] > start[op]:
        order[j] = order[j - gap]
        j -= gap
      order[j] = op
    gap //= 3
  num_devices = tables.ops.time_us.shape[1]
  for device in range(num_devices):
    last = -1
    for i in range(len(order)):
      if state.op_devices[order[i]] == device:
        state.before[order[i]] = last
        last = order[i]
