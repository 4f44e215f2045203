"""Compiled HEFT, and the kernels that it shares with ETF (`earliest_start`).

A group is assigned at its first op that is not a source (see `ListTables`).
"""

from typing import NamedTuple

import numpy as np

from tfplace.placers.list_scheduling.costs import ListTables
from tfplace.simulate.jit import (
  Index,
  allocating,
  allocating_helper,
  allocating_inlined,
)
from tfplace.simulate.links import arrival_us, free_us


@allocating_inlined
def _before(time: np.ndarray, key: np.ndarray, a: Index, b: Index) -> bool:
  return time[a] < time[b] or (time[a] == time[b] and key[a] < key[b])


@allocating_helper
def push(
  time: np.ndarray, key: np.ndarray, size: int, new_us: float, new_key: Index
) -> int:
  """Adds to a binary heap of (time, key); returns its new size."""
  time[size], key[size] = new_us, new_key
  at = size
  while at > 0:
    parent = (at - 1) >> 1
    if not _before(time, key, at, parent):
      break
    time[at], time[parent] = time[parent], time[at]
    key[at], key[parent] = key[parent], key[at]
    at = parent
  return size + 1


@allocating_helper
def pop(time: np.ndarray, key: np.ndarray, size: int) -> int:
  """Removes the first entry of a binary heap; returns its new size."""
  size -= 1
  time[0], key[0] = time[size], key[size]
  at: Index = np.int64(0)  # A literal would have a type of its own.
  while True:
    child = 2 * at + 1
    if child >= size:
      return size
    if child + 1 < size and _before(time, key, child + 1, child):
      child += 1
    if not _before(time, key, child, at):
      return size
    time[at], time[child] = time[child], time[at]
    key[at], key[child] = key[child], key[at]
    at = child


_GAPS = 256  # Latest idle gaps that insertion considers.


class Partial(NamedTuple):
  """A partial schedule; all arrays are modified in place.

  Attributes:
    free: [num_groups, num_devices] bool possible devices.
    held: [num_groups] bytes that each group counts.
    room: [num_devices] free bytes.
    device_of: [num_groups] int32, -1 if undecided.
    end: [num_ops] float64, -1 if undecided.
    arrival_us: [num_ops, num_devices] float64 arrival of each output, -1 if it
      was not sent.
    channel_us: [num_channels] float64 time when each channel is free.
  """

  free: np.ndarray
  held: np.ndarray
  room: np.ndarray
  device_of: np.ndarray
  end: np.ndarray
  arrival_us: np.ndarray
  channel_us: np.ndarray


class _Busy(NamedTuple):
  """Busy intervals of each device, in order of time.

  Attributes:
    start: [num_devices, num_ops] float64; the first `spans` entries are used.
    end: [num_devices, num_ops] float64, overhead included.
    spans: [num_devices] int64 number of intervals.
  """

  start: np.ndarray
  end: np.ndarray
  spans: np.ndarray


@allocating_helper
def nothing_placed(
  tables: ListTables, free: np.ndarray, held: np.ndarray, room: np.ndarray
) -> Partial:
  """Allocates an empty schedule; see `Partial` for the arguments."""
  num_ops, num_devices = tables.time_us.shape
  return Partial(
    free,
    held,
    room,
    np.full(free.shape[0], -1, np.int32),
    np.full(num_ops, -1.0),
    np.full((num_ops, num_devices), -1.0),
    np.zeros(num_devices * num_devices),
  )


@allocating
def earliest_finish(
  tables: ListTables,
  order: np.ndarray,
  free: np.ndarray,
  held: np.ndarray,
  room: np.ndarray,
) -> np.ndarray:
  """Schedules each op in turn where it finishes first (HEFT, phase 2).

  Args:
    order: [num_ops] ops, producers before consumers.
    free: with `held` and `room`, see `Partial`; modified in place.

  Returns:
    [num_groups] int32 devices.
  """
  num_ops, num_devices = tables.time_us.shape
  placed = nothing_placed(tables, free, held, room)
  busy = _Busy(
    np.empty((num_devices, num_ops)),
    np.empty((num_devices, num_ops)),
    np.zeros(num_devices, np.int64),
  )
  stack = np.empty(num_ops, np.int64)
  for op in order:
    if tables.is_source[op]:
      continue
    group = tables.group_of[op]
    needed = held[group] if placed.device_of[group] < 0 else -np.inf
    best = _first_to_finish(tables, placed, busy, op, needed)
    # No device has room for the sum of bytes, which may not be held at once.
    if best < 0:
      best = _first_to_finish(tables, placed, busy, op, -np.inf)
    take(tables, placed, op, best, stack)
    # Sending all inputs together may delay the start a little.
    ready = send_inputs(tables, placed, op)
    start, length = _start(tables, busy, op, best, ready)
    placed.end[op] = start + tables.time_us[op, best]
    if length > 0:
      _insert(busy, best, start, length)
  return place_rest(placed)


@allocating_inlined
def _first_to_finish(
  tables: ListTables, placed: Partial, busy: _Busy, op: int, needed: float
) -> int:
  """Returns the device where `op` finishes first; ties go to fewer bytes sent.

  Only devices with `needed` bytes of room count; -1 if there are none.
  """
  allowed = placed.free[tables.group_of[op]]
  best, best_end, best_bytes = -1, np.inf, np.inf
  for device in range(len(allowed)):
    if not allowed[device] or needed > placed.room[device]:
      continue
    ready, moved = arrival(tables, placed, op, device)
    start, _ = _start(tables, busy, op, device, ready)
    finish = start + tables.time_us[op, device]
    if finish < best_end or (finish == best_end and moved < best_bytes):
      best, best_end, best_bytes = device, finish, moved
  return best


@allocating_inlined
def _start(
  tables: ListTables, busy: _Busy, op: int, device: int, ready: float
) -> tuple[float, float]:
  """Returns the earliest start of `op` on a device and the time it occupies."""
  time_us = tables.time_us[op, device]
  length = time_us + tables.overhead_us[device] if time_us > 0 else 0.0
  starts, ends, count = busy.start[device], busy.end[device], busy.spans[device]
  # Find the first gap of this length.
  first = max(0, count - _GAPS)
  at = np.searchsorted(ends[first:count], ready) + first
  start = ready
  while at < count and start + length > starts[at]:
    start = max(start, ends[at])
    at += 1
  return start, length


@allocating_inlined
def _insert(busy: _Busy, device: int, start: float, length: float) -> None:
  starts, ends = busy.start[device], busy.end[device]
  at = busy.spans[device]
  while at > 0 and starts[at - 1] > start:
    starts[at], ends[at] = starts[at - 1], ends[at - 1]
    at -= 1
  starts[at], ends[at] = start, start + length
  busy.spans[device] += 1


@allocating_inlined
def arrival(
  tables: ListTables, placed: Partial, op: int, device: int
) -> tuple[float, float]:
  """Returns when the inputs of `op` could be on `device`, and bytes to send."""
  ready, moved = 0.0, 0.0
  for i in range(tables.in_offsets[op], tables.in_offsets[op + 1]):
    producer = tables.in_src[i]
    source = placed.device_of[tables.group_of[producer]]
    at = max(placed.end[producer], 0.0)
    if source >= 0 and source != device:
      if placed.arrival_us[producer, device] >= 0:
        at = placed.arrival_us[producer, device]
      else:
        channel = tables.links.channel[source, device]
        at = max(at, placed.channel_us[channel])
        at = arrival_us(tables.links, at, tables.in_bytes[i], source, device)
        moved += tables.in_bytes[i]
    ready = max(ready, at)
  return ready, moved


@allocating_helper
def send_inputs(tables: ListTables, placed: Partial, op: int) -> float:
  """Sends the missing inputs of `op`; returns when all have arrived."""
  ready = 0.0
  device = placed.device_of[tables.group_of[op]]
  for i in range(tables.in_offsets[op], tables.in_offsets[op + 1]):
    producer = tables.in_src[i]
    source = placed.device_of[tables.group_of[producer]]
    at = max(placed.end[producer], 0.0)
    if source != device:
      if placed.arrival_us[producer, device] < 0:
        channel = tables.links.channel[source, device]
        start = max(at, placed.channel_us[channel])
        sent = tables.links, start, tables.in_bytes[i], source, device
        placed.channel_us[channel] = free_us(*sent)
        placed.arrival_us[producer, device] = arrival_us(*sent)
      at = placed.arrival_us[producer, device]
    ready = max(ready, at)
  return ready


@allocating_helper
def take(
  tables: ListTables,
  placed: Partial,
  op: int,
  device: int,
  stack: np.ndarray,
) -> None:
  """Puts an op's group, and the sources that feed it, on `device`."""
  _assign(placed, np.int64(tables.group_of[op]), device)
  size = 0
  current = op
  while True:
    for i in range(tables.in_offsets[current], tables.in_offsets[current + 1]):
      source = tables.in_src[i]
      if not tables.is_source[source] or placed.end[source] >= 0:
        continue
      group, target = np.int64(tables.group_of[source]), device
      if not placed.free[group, device]:
        target = roomiest(placed, group)
      _assign(placed, group, target)
      placed.end[source] = tables.time_us[source, placed.device_of[group]]
      stack[size] = source
      size += 1
    if size == 0:
      break
    size -= 1
    current = stack[size]


@allocating_helper
def _assign(placed: Partial, group: Index, device: int) -> None:
  if placed.device_of[group] >= 0:
    return
  placed.device_of[group] = device
  placed.room[device] -= placed.held[group]
  placed.free[group, :] = False
  placed.free[group, device] = True


@allocating_inlined
def roomiest(placed: Partial, group: Index) -> int:
  """Returns the possible device with the most free bytes, or -1."""
  best = -1
  for device in range(len(placed.room)):
    if placed.free[group, device] and (
      best < 0 or placed.room[device] > placed.room[best]
    ):
      best = device
  return best


@allocating_helper
def place_rest(placed: Partial) -> np.ndarray:
  """Puts sources without readers on the devices with the most free bytes."""
  for group in range(len(placed.device_of)):
    if placed.device_of[group] < 0:
      _assign(placed, group, roomiest(placed, group))
  return placed.device_of
