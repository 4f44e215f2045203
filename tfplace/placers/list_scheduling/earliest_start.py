"""Compiled ETF and SCT.

Each device has two heaps: ops whose inputs arrive after it is idle, by arrival,
and other ready ops, by rank. Only their heads are compared, so the time is n
log n.
"""

from typing import NamedTuple

import numpy as np

from tfplace.placers.list_scheduling import kernels
from tfplace.placers.list_scheduling.costs import ListTables
from tfplace.placers.list_scheduling.kernels import (
  Traffic,
  arrival,
  no_traffic,
  place_rest,
  roomiest,
  send_inputs,
  take,
)
from tfplace.simulate.jit import (
  Index,
  allocating,
  allocating_helper,
  allocating_inlined,
)


class _Queues(NamedTuple):
  """Ready ops of each device, as heaps.

  Attributes:
    later_us: [num_devices, num_ops + 1] last known arrival of the inputs.
    later: [num_devices, num_ops + 1] positions of ops that wait for inputs.
    rank: [num_devices, num_ops + 1] positions as float64.
    waiting: [num_devices, num_ops + 1] positions of ops whose inputs arrive
      before the device is idle.
    size: [num_devices, 2] sizes of both queues.
  """

  later_us: np.ndarray
  later: np.ndarray
  rank: np.ndarray
  waiting: np.ndarray
  size: np.ndarray


class _State(NamedTuple):
  """A partial schedule.

  Attributes:
    free: [num_groups, num_devices] bool possible devices; modified in place.
    held: [num_groups] bytes that each group counts.
    room: [num_devices] free bytes; modified in place.
    device_of: [num_groups] int32, -1 if undecided.
    end: [num_ops] float64, -1 if undecided.
    idle_us: [num_devices] float64 time when each device is idle.
    left: [num_ops] number of devices whose queues hold the op.
    position: [num_ops] priority for ties, the lowest first.
    op_at: [num_ops] op at each position.
    favorite: [num_ops] child that an op's device is reserved for, or -1.
    last: [num_devices] last op of each device, or -1.
    waits: [num_ops] number of missing inputs.
  """

  free: np.ndarray
  held: np.ndarray
  room: np.ndarray
  device_of: np.ndarray
  end: np.ndarray
  idle_us: np.ndarray
  left: np.ndarray
  position: np.ndarray
  op_at: np.ndarray
  favorite: np.ndarray
  last: np.ndarray
  waits: np.ndarray


@allocating
def earliest_start(
  tables: ListTables,
  position: np.ndarray,
  free: np.ndarray,
  held: np.ndarray,
  room: np.ndarray,
  favorite: np.ndarray,
) -> np.ndarray:
  """Schedules the op and device that can start first, until all are done.

  Args:
    position: [num_ops] priority for ties, the lowest first; further ties go to
      the first device.
    free: [num_groups, num_devices] bool possible devices; modified in place.
    held: [num_groups] bytes that each group counts.
    room: [num_devices] free bytes; modified in place.
    favorite: [num_ops] child that each op's device is reserved for, or -1; see
      `_kept`.

  Returns:
    [num_groups] int32 devices.
  """
  state = _nothing_done(tables, position, free, held, room, favorite)
  queues = _empty_queues(tables)
  traffic = no_traffic(tables)
  stack = np.empty(len(position), np.int64)
  for op in range(len(position)):
    if state.waits[op] == 0 and not tables.is_source[op]:
      _enqueue(queues, state, op, 0.0)
  while True:
    op, device = _first(tables, queues, state, traffic)
    if op < 0:
      return place_rest(free, held, room, state.device_of)
    take(
      tables, free, held, room, state.device_of, op, device, state.end, stack
    )
    _run(tables, state, traffic, op, device)
    for i in range(tables.out_offsets[op], tables.out_offsets[op + 1]):
      other = np.int64(tables.out_dst[i])
      state.waits[other] -= 1
      if state.waits[other] == 0:
        _enqueue(queues, state, other, state.end[op])


@allocating_helper
def _nothing_done(
  tables: ListTables,
  position: np.ndarray,
  free: np.ndarray,
  held: np.ndarray,
  room: np.ndarray,
  favorite: np.ndarray,
) -> _State:
  num_ops, num_devices = tables.time_us.shape
  waits = np.zeros(num_ops, np.int64)
  for op in range(num_ops):
    for i in range(tables.in_offsets[op], tables.in_offsets[op + 1]):
      waits[op] += not tables.is_source[tables.in_src[i]]
  op_at = np.empty(num_ops, np.int64)
  for op in range(num_ops):
    op_at[position[op]] = op
  return _State(
    free,
    held,
    room,
    np.full(free.shape[0], -1, np.int32),
    np.full(num_ops, -1.0),
    np.zeros(num_devices),
    np.zeros(num_ops, np.int64),
    position,
    op_at,
    favorite,
    np.full(num_devices, -1, np.int64),
    waits,
  )


@allocating_helper
def _empty_queues(tables: ListTables) -> _Queues:
  num_ops, num_devices = tables.time_us.shape
  return _Queues(
    np.empty((num_devices, num_ops + 1)),
    np.empty((num_devices, num_ops + 1), np.int64),
    np.empty((num_devices, num_ops + 1)),
    np.empty((num_devices, num_ops + 1), np.int64),
    np.zeros((num_devices, 2), np.int64),
  )


@allocating_inlined
def _run(
  tables: ListTables, state: _State, traffic: Traffic, op: int, device: int
) -> None:
  start = send_inputs(tables, traffic, state.device_of, state.end, op)
  start = max(start, state.idle_us[device])
  time_us = tables.time_us[op, device]
  state.end[op] = start + time_us
  state.last[device] = op
  if time_us > 0:
    state.idle_us[device] = state.end[op] + tables.overhead_us[device]


@allocating_helper
def _enqueue(
  queues: _Queues,
  state: _State,
  op: Index,
  ready_us: float,
) -> None:
  """Adds a ready op to all queues, with a lower bound of its arrival."""
  state.left[op] = len(state.idle_us)
  for device in range(len(state.idle_us)):
    queues.size[device, 0] = kernels.push(
      queues.later_us[device],
      queues.later[device],
      queues.size[device, 0],
      ready_us,
      state.position[op],
    )


@allocating_helper
def _first(
  tables: ListTables, queues: _Queues, state: _State, traffic: Traffic
) -> tuple[int, int]:
  """Returns the next op and its device; (-1, -1) at the end.

  The op stays in the queues, where its end marks it as done.
  """
  while True:
    best, best_us, target = -1, np.inf, np.int64(-1)
    for device in range(len(state.idle_us)):
      start, at = _head(tables, queues, state, traffic, device)
      if at >= 0 and state.last[device] >= 0:
        start, at = _kept(tables, state, traffic, device, start, at)
      if at >= 0 and (best < 0 or (start, at) < (best_us, best)):
        best, best_us, target = at, start, np.int64(device)
    if best < 0:
      return -1, -1
    op = state.op_at[best]
    group = tables.group_of[op]
    if state.free[group, target] and (
      state.device_of[group] >= 0 or state.held[group] <= state.room[target]
    ):
      return op, int(target)
    _drop(queues, state, target)
    state.left[op] -= 1
    if state.left[op] == 0:
      return op, roomiest(state.free[group], state.room)


@allocating_helper
def _head(
  tables: ListTables,
  queues: _Queues,
  state: _State,
  traffic: Traffic,
  device: int,
) -> tuple[float, int]:
  """Returns the earliest start on a device and its op's position, or -1.

  The op stays at the head of the queue of ops that wait for the device or, if
  that is empty, of ops that wait for inputs.
  """
  idle_us = state.idle_us[device]
  while queues.size[device, 0] > 0 and (
    queues.later_us[device, 0] <= idle_us
    or state.end[state.op_at[queues.later[device, 0]]] >= 0
  ):
    at = queues.later[device, 0]
    _pop_later(queues, device)
    if state.end[state.op_at[at]] < 0:
      queues.size[device, 1] = kernels.push(
        queues.rank[device],
        queues.waiting[device],
        queues.size[device, 1],
        float(at),
        at,
      )
  while queues.size[device, 1] > 0:
    at = queues.waiting[device, 0]
    op = state.op_at[at]
    if state.end[op] < 0:
      ready, _ = arrival(
        tables, traffic, state.device_of, state.end, op, device
      )
      if ready <= idle_us:
        return idle_us, at
      _push_later(queues, device, ready, at)
    _pop_waiting(queues, device)
  while queues.size[device, 0] > 0:
    before, at = queues.later_us[device, 0], queues.later[device, 0]
    op = state.op_at[at]
    if state.end[op] < 0:
      ready, _ = arrival(
        tables, traffic, state.device_of, state.end, op, device
      )
      if ready <= before:
        return max(before, idle_us), at
      _pop_later(queues, device)
      _push_later(queues, device, ready, at)
    else:
      _pop_later(queues, device)
  return np.inf, -1


@allocating_helper
def _kept(
  tables: ListTables,
  state: _State,
  traffic: Traffic,
  device: int,
  start: float,
  at: int,
) -> tuple[float, int]:
  """Returns the start and position of the op that SCT runs on a device.

  The device waits for the favorite child of its last op if that child has all
  its inputs and cannot start sooner elsewhere. Only an urgent op goes first:
  one whose inputs are by then on every device where it may run.
  """
  child, op = state.favorite[state.last[device]], state.op_at[at]
  if child < 0 or child == op or state.waits[child] or state.end[child] >= 0:
    return start, at
  group = tables.group_of[child]
  if not state.free[group, device] or (
    state.device_of[group] < 0 and state.held[group] > state.room[device]
  ):
    return start, at
  ready, _ = arrival(tables, traffic, state.device_of, state.end, child, device)
  child_us = max(ready, state.idle_us[device])
  is_urgent = True
  for other in range(len(state.idle_us)):
    if state.free[group, other]:
      ready, _ = arrival(
        tables, traffic, state.device_of, state.end, child, other
      )
      if max(ready, state.idle_us[other]) < child_us:
        return start, at
    if state.free[tables.group_of[op], other]:
      ready, _ = arrival(tables, traffic, state.device_of, state.end, op, other)
      is_urgent = is_urgent and ready <= start
  if is_urgent:
    return start, at
  return child_us, state.position[child]


@allocating_inlined
def _push_later(queues: _Queues, device: int, ready_us: float, at: int) -> None:
  queues.size[device, 0] = kernels.push(
    queues.later_us[device],
    queues.later[device],
    queues.size[device, 0],
    ready_us,
    at,
  )


@allocating_inlined
def _pop_later(queues: _Queues, device: Index) -> None:
  queues.size[device, 0] = kernels.pop(
    queues.later_us[device], queues.later[device], queues.size[device, 0]
  )


@allocating_inlined
def _pop_waiting(queues: _Queues, device: Index) -> None:
  queues.size[device, 1] = kernels.pop(
    queues.rank[device], queues.waiting[device], queues.size[device, 1]
  )


@allocating_inlined
def _drop(queues: _Queues, state: _State, device: Index) -> None:
  """Removes the op that `_head` returned from its queue."""
  if queues.size[device, 1] > 0:
    _pop_waiting(queues, device)
  else:
    _pop_later(queues, device)
