"""Compiled moves of the search.

A move fills `moved` and `targets` of a chain's state. Some remove a wait on the
critical path, traced back from the last op.
"""

import numpy as np

from tfplace.placers.search.state import (
  IS_PART,
  IS_STALE,
  MOVED,
  PATH,
  SearchState,
  SearchTables,
)
from tfplace.simulate.jit import Index, helper, inlined
from tfplace.simulate.links import arrival_us

LOCAL = 0  # Waited for an input from the same device.
REMOTE = 1  # Waited for a transfer.
BUSY = 2  # Waited for the device.

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
  """Returns the end of an op without its sends, which moves can ignore."""
  return state.start_us[op] + tables.ops.time_us[op, state.op_devices[op]]


@inlined
def _waited_for(
  tables: SearchTables, state: SearchState, op: Index
) -> tuple[Index, int]:
  """Returns the op that `op` waited for, or -1, and the cause."""
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
    size = tables.ops.in_bytes[i]
    end = arrival_us(tables.ops.links, end, size, at, device)
    if end > remote_end:
      remote, remote_end = source, end
  if local >= 0 and local_end >= start - _SLACK_US:
    return local, LOCAL
  previous: Index = np.int64(state.before[op])
  while previous >= 0 and state.start_us[previous] == start:
    previous = np.int64(
      state.before[previous]
    )  # An op of zero duration is not worth a wait.
  if previous >= 0:
    end = _end(tables, state, previous)
    if tables.ops.time_us[previous, device] > 0:
      end += tables.ops.overhead_us[device]
    if end >= start - _SLACK_US:
      return previous, BUSY
  if remote >= 0:  # The transfer may be late because it queued for the channel.
    return remote, REMOTE
  return previous if start > 0 else -1, BUSY


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
  num_devices = tables.ops.time_us.shape[1]
  for device in range(num_devices):
    last = -1
    for i in range(len(order)):
      if state.op_devices[order[i]] == device:
        state.before[order[i]] = last
        last = order[i]


_ANY = np.int64(-1)  # any device other than the current one


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
  tables: SearchTables,
  state: SearchState,
  lowest: int,
  highest: int,
  part_share: float,
) -> None:
  """Fills `moved` and `targets` with one random move.

  Args:
    lowest: Lowest level of coarse groups to move; 0 is single groups.
    part_share: Fraction of the moves that move only those groups of a coarse
      group that are on one device, which preserves choices at a finer level.
  """
  state.counts[MOVED] = 0
  state.counts[IS_PART] = part_share > 0 and uniform(state) < part_share
  level = lowest + below(state, highest - lowest + 1)
  kind = uniform(state)
  if kind < 0.55:
    _single(tables, state, level)
  elif kind < 0.75:
    _critical(tables, state, level)
  elif kind < 0.80:
    _swap(tables, state, level)
  elif kind < 0.90:
    _block(tables, state, level)
  else:
    _pull(tables, state, level, _random_group(tables, state, level), _ANY)
  for i in range(state.counts[MOVED]):
    state.is_marked[state.moved[i]] = False


@helper
def _add(
  tables: SearchTables,
  state: SearchState,
  level: int,
  group: Index,
  device: Index,
) -> None:
  own = state.devices[group]
  coarse = tables.coarse_of[level, group]
  first, last = tables.coarse_offsets[coarse], tables.coarse_offsets[coarse + 1]
  for i in range(first, last):
    member = tables.coarse_members[i]
    if state.counts[IS_PART] and state.devices[member] != own:
      continue
    if not state.is_marked[member]:
      state.is_marked[member] = True
      state.moved[state.counts[MOVED]] = member
      state.targets[state.counts[MOVED]] = device
      state.counts[MOVED] += 1


@helper
def _random_group(
  tables: SearchTables, state: SearchState, level: int
) -> Index:
  if level == 0:
    return np.int64(tables.movable[below(state, len(tables.movable))])
  first, last = tables.level_offsets[level], tables.level_offsets[level + 1]
  coarse = first + below(state, last - first)
  first, last = tables.coarse_offsets[coarse], tables.coarse_offsets[coarse + 1]
  return np.int64(tables.coarse_members[first + below(state, last - first)])


@helper
def _other_device(
  tables: SearchTables, state: SearchState, level: int, group: Index
) -> Index:
  """Samples another allowed device, or else the current one."""
  own: Index = np.int64(state.devices[group])
  total = 0.0
  odds = tables.odds[tables.coarse_of[level, group]]
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


@helper
def _near_device(
  tables: SearchTables, state: SearchState, level: int, group: Index
) -> Index:
  first = tables.ops.group_offsets[group]
  last = tables.ops.group_offsets[group + 1]
  if last > first and uniform(state) < 0.5:
    entry = tables.ops.group_entries[first + below(state, last - first)]
    device = np.int64(state.devices[entry if entry >= 0 else -1 - entry])
    if device != state.devices[group]:
      return device
  return _other_device(tables, state, level, group)


@helper
def move_coarse(
  tables: SearchTables, state: SearchState, coarse: int, is_near: bool
) -> None:
  """Moves a whole coarse group to the device of a neighbor or to any other."""
  first, last = tables.coarse_offsets[coarse], tables.coarse_offsets[coarse + 1]
  group = np.int64(tables.coarse_members[first + below(state, last - first)])
  level = 0
  while coarse >= tables.level_offsets[level + 1]:
    level += 1
  if is_near:
    target = _near_device(tables, state, level, group)
  else:
    target = _other_device(tables, state, level, group)
  for i in range(first, last):
    state.moved[i - first] = tables.coarse_members[i]
    state.targets[i - first] = target
  state.counts[MOVED] = last - first


@helper
def _single(tables: SearchTables, state: SearchState, level: int) -> None:
  group = _random_group(tables, state, level)
  _add(tables, state, level, group, _near_device(tables, state, level, group))


@helper
def _swap(tables: SearchTables, state: SearchState, level: int) -> None:
  a = _random_group(tables, state, level)
  for _ in range(4):
    b = _random_group(tables, state, level)
    if state.devices[a] != state.devices[b]:
      target = np.int64(state.devices[a])
      _add(tables, state, level, a, np.int64(state.devices[b]))
      _add(tables, state, level, b, target)
      return


@helper
def _block(tables: SearchTables, state: SearchState, level: int) -> None:
  """Moves coarse groups of one device that are consecutive in time."""
  first = _random_group(tables, state, level)
  own = state.devices[first]
  target = _other_device(tables, state, level, first)
  length = 2.0 / uniform(state)
  at = tables.position[first]
  for _ in range(min(int(length), 1 + len(tables.order) // 4)):
    if at >= len(tables.order):
      break
    group = np.int64(tables.order[at])
    if state.devices[group] == own:
      _add(tables, state, level, group, target)
    at += 1


@helper
def _pull(
  tables: SearchTables,
  state: SearchState,
  level: int,
  group: Index,
  target: Index,
) -> None:
  """Moves a coarse group and a random neighborhood to one device."""
  if target < 0:
    target = _other_device(tables, state, level, group)
  at = state.counts[MOVED]
  _add(tables, state, level, group, target)
  # The neighbors of a coarse group have about its size.
  size = state.counts[MOVED] - at
  limit = min(int(2.0 / uniform(state)) * size, len(state.moved))
  keep = uniform(state)
  while at < state.counts[MOVED] and state.counts[MOVED] < limit:
    near = state.moved[at]
    first = tables.ops.group_offsets[near]
    last = tables.ops.group_offsets[near + 1]
    for i in range(first, last):
      entry = tables.ops.group_entries[i]
      other = np.int64(entry if entry >= 0 else -1 - entry)
      if state.devices[other] != target and uniform(state) < keep:
        _add(tables, state, level, other, target)
        if state.counts[MOVED] >= limit:
          break
    at += 1


@helper
def _critical(tables: SearchTables, state: SearchState, level: int) -> None:
  if state.counts[IS_STALE]:
    trace(tables, state)
  if state.counts[PATH] == 0:
    return
  at = below(state, state.counts[PATH])
  group = np.int64(tables.ops.group_of[state.path[at]])
  source = group
  if at + 1 < state.counts[PATH]:
    source = np.int64(tables.ops.group_of[state.path[at + 1]])
  cause = state.cause[at]
  target: Index = _ANY
  if cause == REMOTE:
    if uniform(state) < 0.5:
      target = np.int64(state.devices[source])
    else:
      target = np.int64(state.devices[group])
      group = source
  elif cause == BUSY and uniform(state) < 0.5:
    group = source
  if uniform(state) < 0.5:
    _pull(tables, state, level, group, target)
    return
  if target < 0:
    target = _other_device(tables, state, level, group)
  _add(tables, state, level, group, target)
