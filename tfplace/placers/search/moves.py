"""Compiled moves of the search.

A move takes a coarse group, or its part on one device, to another device; it
fills `moved` and `targets` of a chain's state. Some remove a wait on the
critical path, traced back from the last op.
"""

import numpy as np

from tfplace.placers.search.state import (
  IS_STALE,
  MOVED,
  PATH,
  SearchState,
  SearchTables,
)
from tfplace.simulate.jit import Index, helper, inlined
from tfplace.simulate.links import arrival_us

# Shares of the moves that begin on the critical path, and, together with these,
# that go to a neighbor's device.
_CRITICAL, _NEAR = 0.2, 0.6
# Share of the moves of annealing that leave the groups on other devices where
# they are.
_PART = 0.5
_SLACK_US = 1e-6


@helper
def trace(tables: SearchTables, state: SearchState) -> None:
  """Fills `path` from `start_us` and `op_devices`."""
  _order_by_start(tables, state)
  num_ops = len(state.start_us)
  op: Index = np.int64(0)
  for other in range(num_ops):
    if _end(tables, state, other) > _end(tables, state, op):
      op = other
  length = 0
  while op >= 0 and length < num_ops:
    state.path[length] = op
    op = _waited_for(tables, state, op)
    length += 1
  state.counts[PATH] = length
  state.counts[IS_STALE] = 0


@inlined
def _end(tables: SearchTables, state: SearchState, op: Index) -> float:
  """Returns the end of an op without its sends, which moves can ignore."""
  return state.start_us[op] + tables.ops.time_us[op, state.op_devices[op]]


@inlined
def _waited_for(tables: SearchTables, state: SearchState, op: Index) -> Index:
  """Returns the op that `op` waited for, or -1."""
  start, device = state.start_us[op], state.op_devices[op]
  last: Index = np.int64(-1)  # On the device.
  remote, last_end, remote_end = np.int64(-1), -1.0, -1.0
  for i in range(tables.ops.in_offsets[op], tables.ops.in_offsets[op + 1]):
    source = np.int64(tables.ops.in_src[i])
    end, at = _end(tables, state, source), state.op_devices[source]
    if at == device:
      if end > last_end:
        last, last_end = source, end
      continue
    size = tables.ops.in_bytes[i]
    end = arrival_us(tables.ops.links, end, size, at, device)
    if end > remote_end:
      remote, remote_end = source, end
  before: Index = np.int64(state.before[op])
  while before >= 0 and state.start_us[before] == start:
    # An op of zero duration is not worth a wait.
    before = np.int64(state.before[before])
  if before >= 0:
    end = _end(tables, state, before)
    if tables.ops.time_us[before, device] > 0:
      end += tables.ops.overhead_us[device]
    if end > last_end:
      last, last_end = before, end
  # A transfer may be late because it queued for its channel.
  if remote >= 0 and last_end < start - _SLACK_US:
    return remote
  return last if start > 0 else np.int64(-1)


@inlined
def _order_by_start(tables: SearchTables, state: SearchState) -> None:
  """Sorts `by_start` (Shell sort, nearly sorted input), fills `before`."""
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
  state.last[:] = -1
  for op in order:
    device = state.op_devices[op]
    state.before[op] = state.last[device]
    state.last[device] = op


@inlined
def uniform(state: SearchState) -> float:
  """Samples a number in (0, 1) with xorshift64* (Vigna 2016)."""
  x = state.rng[0]
  x ^= x >> np.uint64(12)
  x ^= x << np.uint64(25)
  x ^= x >> np.uint64(27)
  state.rng[0] = x
  x *= np.uint64(2685821657736338717)
  return (np.float64(x >> np.uint64(11)) + 0.5) / 9007199254740992.0


@inlined
def below(state: SearchState, count: int) -> int:
  """Samples an integer from 0 to count - 1."""
  return int(uniform(state) * count)


@helper
def propose(
  tables: SearchTables, state: SearchState, coarse: Index, can_part: bool
) -> None:
  """Fills `moved` and `targets` with a random move.

  Args:
    coarse: Coarse group to move. Some moves take another one of its level, on
      the critical path, instead.
    can_part: True if some moves take only the groups on one device.
  """
  level = 0
  while coarse >= tables.level_offsets[level + 1]:
    level += 1
  first, last = tables.coarse_offsets[coarse], tables.coarse_offsets[coarse + 1]
  picked = first + below(state, last - first)
  group: Index = np.int64(tables.coarse_members[picked])
  target: Index = np.int64(-1)
  kind = uniform(state)
  if kind < _CRITICAL:
    group, target = _critical(tables, state)
    coarse = np.int64(tables.coarse_of[level, group])
  elif kind < _NEAR:
    target = _near_device(tables, state, group)
  if target < 0 or target == state.devices[group]:
    target = _other_device(tables, state, coarse, group)
  first, last = tables.coarse_offsets[coarse], tables.coarse_offsets[coarse + 1]
  is_part = can_part and uniform(state) < _PART
  device, count = state.devices[group], 0
  for i in range(first, last):
    member = tables.coarse_members[i]
    if not is_part or state.devices[member] == device:
      state.moved[count], state.targets[count] = member, target
      count += 1
  state.counts[MOVED] = count


@inlined
def _critical(tables: SearchTables, state: SearchState) -> tuple[Index, Index]:
  """Samples a group on the critical path, and a device that ends its wait.

  Returns:
    The group, and -1 if it waits for no transfer.
  """
  if state.counts[IS_STALE]:
    trace(tables, state)
  at = below(state, state.counts[PATH])
  group = np.int64(tables.ops.group_of[state.path[at]])
  other = group
  if at + 1 < state.counts[PATH]:
    other = np.int64(tables.ops.group_of[state.path[at + 1]])
  if uniform(state) < 0.5:
    group, other = other, group
  return group, np.int64(state.devices[other])


@inlined
def _near_device(
  tables: SearchTables, state: SearchState, group: Index
) -> Index:
  """Returns the device of a random neighbor, or else -1."""
  first = tables.ops.group_offsets[group]
  last = tables.ops.group_offsets[group + 1]
  if last == first:
    return np.int64(-1)
  entry = tables.ops.group_entries[first + below(state, last - first)]
  return np.int64(state.devices[entry if entry >= 0 else -1 - entry])


@inlined
def _other_device(
  tables: SearchTables, state: SearchState, coarse: Index, group: Index
) -> Index:
  """Samples another allowed device of a group by speed, or the current one."""
  own: Index = np.int64(state.devices[group])
  total = 0.0
  odds = tables.odds[coarse]
  for device in range(len(odds)):
    if device != own and tables.allowed[group, device]:
      total += odds[device]
  left, last = uniform(state) * total, own
  for device in range(len(odds)):
    if device != own and tables.allowed[group, device]:
      last = device
      left -= odds[device]
      if left < 0:
        break
  return last
