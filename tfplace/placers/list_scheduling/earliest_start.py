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
  Partial,
  arrival,
  nothing_placed,
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

_LATER, _WAITING = 0, 1  # Heaps of `_Queues`.


class _Queues(NamedTuple):
  """Ready ops of each device, and the state of the schedule.

  Attributes:
    time: [num_devices, 2, num_ops + 1] float64 keys of the heaps: the last
      known arrival of an op's inputs, or, of ops whose inputs arrive before the
      device is idle, the position.
    at: [num_devices, 2, num_ops + 1] positions of the ops.
    size: [num_devices, 2] sizes of the heaps.
    idle_us: [num_devices] float64 time when each device is idle.
    left: [num_ops] number of devices whose heaps hold the op.
    position: [num_ops] priority for ties, the lowest first.
    op_at: [num_ops] op at each position.
    favorite: [num_ops] child that an op's device is reserved for, or -1.
    last: [num_devices] last op of each device, or -1.
    waits: [num_ops] number of missing inputs.
  """

  time: np.ndarray
  at: np.ndarray
  size: np.ndarray
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
    free: with `held` and `room`, see `Partial`; modified in place.
    favorite: [num_ops] child that each op's device is reserved for, or -1; see
      `_kept`.

  Returns:
    [num_groups] int32 devices.
  """
  placed = nothing_placed(tables, free, held, room)
  queues = _no_queues(tables, position, favorite)
  stack = np.empty(len(position), np.int64)
  for op in range(len(position)):
    if queues.waits[op] == 0 and not tables.is_source[op]:
      _enqueue(queues, op, 0.0)
  while True:
    op, device = _first(tables, queues, placed)
    if op < 0:
      return place_rest(placed)
    take(tables, placed, op, device, stack)
    start = max(send_inputs(tables, placed, op), queues.idle_us[device])
    time_us = tables.time_us[op, device]
    placed.end[op] = start + time_us
    queues.last[device] = op
    if time_us > 0:
      queues.idle_us[device] = placed.end[op] + tables.overhead_us[device]
    for i in range(tables.out_offsets[op], tables.out_offsets[op + 1]):
      other = np.int64(tables.out_dst[i])
      queues.waits[other] -= 1
      if queues.waits[other] == 0:
        _enqueue(queues, other, placed.end[op])


@allocating_helper
def _no_queues(
  tables: ListTables, position: np.ndarray, favorite: np.ndarray
) -> _Queues:
  num_ops, num_devices = tables.time_us.shape
  waits = np.zeros(num_ops, np.int64)
  op_at = np.empty(num_ops, np.int64)
  for op in range(num_ops):
    op_at[position[op]] = op
    for i in range(tables.in_offsets[op], tables.in_offsets[op + 1]):
      waits[op] += not tables.is_source[tables.in_src[i]]
  return _Queues(
    np.empty((num_devices, 2, num_ops + 1)),
    np.empty((num_devices, 2, num_ops + 1), np.int64),
    np.zeros((num_devices, 2), np.int64),
    np.zeros(num_devices),
    np.zeros(num_ops, np.int64),
    position,
    op_at,
    favorite,
    np.full(num_devices, -1, np.int64),
    waits,
  )


@allocating_helper
def _push(
  queues: _Queues, device: Index, heap: int, time: float, at: Index
) -> None:
  queues.size[device, heap] = kernels.push(
    queues.time[device, heap],
    queues.at[device, heap],
    queues.size[device, heap],
    time,
    at,
  )


@allocating_helper
def _pop(queues: _Queues, device: Index, heap: int) -> None:
  queues.size[device, heap] = kernels.pop(
    queues.time[device, heap],
    queues.at[device, heap],
    queues.size[device, heap],
  )


@allocating_helper
def _enqueue(queues: _Queues, op: Index, ready_us: float) -> None:
  """Adds a ready op to all queues, with a lower bound of its arrival."""
  queues.left[op] = len(queues.idle_us)
  for device in range(len(queues.idle_us)):
    _push(queues, device, _LATER, ready_us, queues.position[op])


@allocating_inlined
def _has_room(placed: Partial, group: Index, device: Index) -> bool:
  return placed.free[group, device] and (
    placed.device_of[group] >= 0 or placed.held[group] <= placed.room[device]
  )


@allocating_helper
def _first(
  tables: ListTables, queues: _Queues, placed: Partial
) -> tuple[int, int]:
  """Returns the next op and its device; (-1, -1) at the end.

  The op stays in the queues, where its end marks it as done.
  """
  while True:
    best, best_us, target = -1, np.inf, np.int64(-1)
    for device in range(len(queues.idle_us)):
      start, at = _head(tables, queues, placed, device)
      if at >= 0 and queues.last[device] >= 0:
        start, at = _kept(tables, queues, placed, device, start, at)
      if at >= 0 and (best < 0 or (start, at) < (best_us, best)):
        best, best_us, target = at, start, np.int64(device)
    if best < 0:
      return -1, -1
    op = queues.op_at[best]
    group = tables.group_of[op]
    if _has_room(placed, group, target):
      return op, int(target)
    # Remove the op that `_head` returned from its queue.
    _pop(queues, target, _WAITING if queues.size[target, _WAITING] else _LATER)
    queues.left[op] -= 1
    if queues.left[op] == 0:
      return op, roomiest(placed, group)


@allocating_helper
def _head(
  tables: ListTables, queues: _Queues, placed: Partial, device: int
) -> tuple[float, int]:
  """Returns the earliest start on a device and its op's position, or -1.

  The op stays at the head of the queue of ops that wait for the device or, if
  that is empty, of ops that wait for inputs.
  """
  idle_us = queues.idle_us[device]
  time, position = queues.time[device], queues.at[device]
  while queues.size[device, _LATER] > 0 and (
    time[_LATER, 0] <= idle_us
    or placed.end[queues.op_at[position[_LATER, 0]]] >= 0
  ):
    at = position[_LATER, 0]
    _pop(queues, device, _LATER)
    if placed.end[queues.op_at[at]] < 0:
      _push(queues, device, _WAITING, float(at), at)
  while queues.size[device, _WAITING] > 0:
    at = position[_WAITING, 0]
    op = queues.op_at[at]
    if placed.end[op] < 0:
      ready, _ = arrival(tables, placed, op, device)
      if ready <= idle_us:
        return idle_us, at
      _push(queues, device, _LATER, ready, at)
    _pop(queues, device, _WAITING)
  while queues.size[device, _LATER] > 0:
    before, at = time[_LATER, 0], position[_LATER, 0]
    op = queues.op_at[at]
    if placed.end[op] < 0:
      ready, _ = arrival(tables, placed, op, device)
      if ready <= before:
        return max(before, idle_us), at
      _pop(queues, device, _LATER)
      _push(queues, device, _LATER, ready, at)
    else:
      _pop(queues, device, _LATER)
  return np.inf, -1


@allocating_helper
def _kept(
  tables: ListTables,
  queues: _Queues,
  placed: Partial,
  device: int,
  start: float,
  at: int,
) -> tuple[float, int]:
  """Returns the start and position of the op that SCT runs on a device.

  The device waits for the favorite child of its last op if that child has all
  its inputs and cannot start sooner elsewhere. Only an urgent op goes first:
  one whose inputs are by then on every device where it may run.
  """
  child, op = queues.favorite[queues.last[device]], queues.op_at[at]
  if child < 0 or child == op or queues.waits[child] or placed.end[child] >= 0:
    return start, at
  group = tables.group_of[child]
  if not _has_room(placed, group, device):
    return start, at
  ready, _ = arrival(tables, placed, child, device)
  child_us = max(ready, queues.idle_us[device])
  is_urgent = True
  for other in range(len(queues.idle_us)):
    if placed.free[group, other]:
      ready, _ = arrival(tables, placed, child, other)
      if max(ready, queues.idle_us[other]) < child_us:
        return start, at
    if placed.free[tables.group_of[op], other]:
      ready, _ = arrival(tables, placed, op, other)
      is_urgent = is_urgent and ready <= start
  if is_urgent:
    return start, at
  return child_us, queues.position[child]
