"""Compiled ETF and SCT.

Each device has two heaps: ops whose inputs arrive after it is idle, by arrival,
and other ready ops, by rank. Only their heads are compared, so the time is n
log n.
"""

from typing import NamedTuple

import numpy as np

from tfplace.placers.list_scheduling.costs import ListTables
from tfplace.placers.list_scheduling.kernels import (
  Partial,
  arrival,
  place_rest,
  roomiest,
  send_inputs,
  take,
)
from tfplace.simulate import heap
from tfplace.simulate.jit import Index, helper, inlined, kernel

_DEVICE = np.dtype(
  [
    ("idle_us", np.float64),
    ("last", np.int64),
    ("later", np.int64),
    ("waiting", np.int64),
  ]
)
_OP = np.dtype(
  [("position", np.int64), ("favorite", np.int64), ("waits", np.int64)]
)


class _Queues(NamedTuple):
  """Ready ops of each device, and the state of the schedule.

  Attributes:
    later: [num_devices, num_ops + 1] heap of positions of ops, by the last
      known arrival of their inputs.
    waiting: [num_devices, num_ops + 1] heap of positions of ops whose inputs
      arrive before the device is idle, by position.
    devices: [num_devices]:
        idle_us: time when the device is idle.
        last: its last op, or -1.
        later, waiting: sizes of its heaps.
    ops: [num_ops]:
        position: priority for ties, the lowest first.
        favorite: child that the op's device is reserved for, or -1.
        waits: number of missing inputs.
    op_at: [num_ops] op at each position.
    left: [num_ops] number of devices whose heaps hold the op.
  """

  later: np.ndarray
  waiting: np.ndarray
  devices: np.ndarray
  ops: np.ndarray
  op_at: np.ndarray
  left: np.ndarray


def earliest_start(
  tables: ListTables, order: np.ndarray, favorite: np.ndarray, placed: Partial
) -> np.ndarray:
  """Schedules the op and device that can start first, until all are done.

  Args:
    order: [num_ops] ops by priority for ties; further ties go to the first
      device.
    favorite: [num_ops] child that each op's device is reserved for, or -1; see
      `_kept`.
    placed: from `kernels.nothing_placed`; modified in place.

  Returns:
    [num_groups] int32 devices.
  """
  num_ops, num_devices = tables.time_us.shape
  consumer = np.repeat(np.arange(num_ops), np.diff(tables.in_offsets))
  devices, ops = np.zeros(num_devices, _DEVICE), np.zeros(num_ops, _OP)
  devices["last"] = -1
  ops["position"][order] = np.arange(num_ops)
  ops["favorite"] = favorite
  ops["waits"] = np.bincount(
    consumer[~tables.is_source[tables.in_src]], minlength=num_ops
  )
  later, waiting = np.empty((2, num_devices, num_ops + 1), heap.ENTRY)
  left = np.zeros(num_ops, np.int64)
  queues = _Queues(later, waiting, devices, ops, order.astype(np.int64), left)
  _earliest_start(tables, queues, placed)
  return placed.device_of


@kernel
def _earliest_start(
  tables: ListTables, queues: _Queues, placed: Partial
) -> None:
  for first in range(len(queues.ops)):
    if queues.ops[first].waits == 0 and not tables.is_source[first]:
      _enqueue(queues, np.int64(first), 0.0)
  while True:
    op, device = _first(tables, queues, placed)
    if op < 0:
      break
    take(tables, placed, op, device)
    about, time_us = queues.devices[device], tables.time_us[op, device]
    start = max(send_inputs(tables, placed, op), about.idle_us)
    placed.end[op] = start + time_us
    about.last = op
    if time_us > 0:
      about.idle_us = placed.end[op] + tables.overhead_us[device]
    for i in range(tables.out_offsets[op], tables.out_offsets[op + 1]):
      other = np.int64(tables.out_dst[i])
      queues.ops[other].waits -= 1
      if queues.ops[other].waits == 0:
        _enqueue(queues, other, placed.end[op])
  place_rest(placed)


@helper
def _enqueue(queues: _Queues, op: Index, ready_us: float) -> None:
  """Adds a ready op to all queues, with a lower bound of its arrival."""
  queues.left[op] = len(queues.devices)
  for device in range(len(queues.devices)):
    _add_later(queues, device, ready_us, queues.ops[op].position)


@inlined
def _add_later(
  queues: _Queues, device: Index, time: float, position: Index
) -> None:
  about = queues.devices[device]
  about.later = heap.push(queues.later[device], about.later, time, position)


@inlined
def _has_room(placed: Partial, group: Index, device: Index) -> bool:
  return placed.free[group, device] and (
    placed.device_of[group] >= 0 or placed.held[group] <= placed.room[device]
  )


@helper
def _first(
  tables: ListTables, queues: _Queues, placed: Partial
) -> tuple[Index, Index]:
  """Returns the next op and its device; (-1, -1) at the end.

  The op stays in the queues, where its end marks it as done.
  """
  none = np.int64(-1)
  while True:
    best: Index = none
    best_us, target = np.inf, none
    for device in range(len(queues.devices)):
      start, at = _head(tables, queues, placed, device)
      if at >= 0 and queues.devices[device].last >= 0:
        start, at = _kept(tables, queues, placed, device, start, at)
      is_first = start < best_us or (start == best_us and at < best)
      if at >= 0 and (best < 0 or is_first):
        best, best_us, target = at, start, np.int64(device)
    if best < 0:
      return none, none
    op = queues.op_at[best]
    group = np.int64(tables.group_of[op])
    if _has_room(placed, group, target):
      return op, target
    # Remove the op that `_head` returned from its queue.
    about = queues.devices[target]
    if about.waiting > 0:
      about.waiting = heap.pop(queues.waiting[target], about.waiting)
    else:
      about.later = heap.pop(queues.later[target], about.later)
    queues.left[op] -= 1
    if queues.left[op] == 0:
      return op, roomiest(placed, group)


@helper
def _head(
  tables: ListTables, queues: _Queues, placed: Partial, device: int
) -> tuple[float, Index]:
  """Returns the earliest start on a device and its op's position, or -1.

  The op stays at the head of the queue of ops that wait for the device or, if
  that is empty, of ops that wait for inputs.
  """
  about, idle_us = queues.devices[device], queues.devices[device].idle_us
  later, waiting = queues.later[device], queues.waiting[device]
  while about.later > 0 and (
    later[0].time <= idle_us or placed.end[queues.op_at[later[0].key]] >= 0
  ):
    at = later[0].key
    about.later = heap.pop(later, about.later)
    if placed.end[queues.op_at[at]] < 0:
      about.waiting = heap.push(waiting, about.waiting, float(at), at)
  while about.waiting > 0:
    at = waiting[0].key
    op = queues.op_at[at]
    if placed.end[op] < 0:
      ready, _ = arrival(tables, placed, op, device)
      if ready <= idle_us:
        return idle_us, at
      _add_later(queues, device, ready, at)
    about.waiting = heap.pop(waiting, about.waiting)
  while about.later > 0:
    before, at = later[0].time, later[0].key
    op, ready = queues.op_at[at], np.inf
    if placed.end[op] < 0:
      ready, _ = arrival(tables, placed, op, device)
      if ready <= before:
        return max(before, idle_us), at
    about.later = heap.pop(later, about.later)
    if placed.end[op] < 0:
      _add_later(queues, device, ready, at)
  return np.inf, np.int64(-1)


@helper
def _kept(
  tables: ListTables,
  queues: _Queues,
  placed: Partial,
  device: int,
  start: float,
  at: Index,
) -> tuple[float, Index]:
  """Returns the start and position of the op that SCT runs on a device.

  The device waits for the favorite child of its last op if that child has all
  its inputs and cannot start sooner elsewhere. Only an urgent op goes first:
  one whose inputs are by then on every device where it may run.
  """
  op = queues.op_at[at]
  child = queues.ops[queues.devices[device].last].favorite
  if child < 0 or child == op:
    return start, at
  group = np.int64(tables.group_of[child])
  if (
    queues.ops[child].waits
    or placed.end[child] >= 0
    or not _has_room(placed, group, device)
  ):
    return start, at
  ready, _ = arrival(tables, placed, child, device)
  child_us = max(ready, queues.devices[device].idle_us)
  is_urgent = True
  for other in range(len(queues.devices)):
    if placed.free[group, other]:
      ready, _ = arrival(tables, placed, child, other)
      if max(ready, queues.devices[other].idle_us) < child_us:
        return start, at
    if placed.free[tables.group_of[op], other]:
      ready, _ = arrival(tables, placed, op, other)
      is_urgent = is_urgent and ready <= start
  if is_urgent:
    return start, at
  return child_us, queues.ops[child].position
