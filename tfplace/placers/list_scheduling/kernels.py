"""Compiled HEFT, and the kernels that it shares with ETF (`earliest_start`).

A group is assigned at its first op that is not a source (see `ListTables`).
"""

from typing import NamedTuple

import numpy as np

from tfplace.placers.list_scheduling.costs import ListTables
from tfplace.simulate.jit import Index, helper, inlined, kernel
from tfplace.simulate.links import arrival_us, free_us

_BUSY = np.dtype([("start", np.float64), ("end", np.float64)])
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
    stack: [num_ops] int64 scratch.
  """

  free: np.ndarray
  held: np.ndarray
  room: np.ndarray
  device_of: np.ndarray
  end: np.ndarray
  arrival_us: np.ndarray
  channel_us: np.ndarray
  stack: np.ndarray


def nothing_placed(
  tables: ListTables, free: np.ndarray, held: np.ndarray, room: np.ndarray
) -> Partial:
  """Allocates an empty schedule; see `Partial` for the arguments."""
  num_ops, num_devices = tables.time_us.shape
  return Partial(
    free=free.copy(),
    held=held,
    room=room.astype(np.float64),
    device_of=np.full(len(free), -1, np.int32),
    end=np.full(num_ops, -1.0),
    arrival_us=np.full((num_ops, num_devices), -1.0),
    channel_us=np.zeros(num_devices * num_devices),
    stack=np.empty(num_ops, np.int64),
  )


def earliest_finish(
  tables: ListTables, order: np.ndarray, placed: Partial
) -> np.ndarray:
  """Schedules each op in turn where it finishes first (HEFT, phase 2).

  Args:
    order: [num_ops] ops, producers before consumers.
    placed: from `nothing_placed`; modified in place.

  Returns:
    [num_groups] int32 devices.
  """
  num_ops, num_devices = tables.time_us.shape
  busy = np.empty((num_devices, num_ops), _BUSY)
  _earliest_finish(tables, order, placed, busy, np.zeros(num_devices, np.int64))
  return placed.device_of


@kernel
def _earliest_finish(
  tables: ListTables,
  order: np.ndarray,
  placed: Partial,
  busy: np.ndarray,
  spans: np.ndarray,
) -> None:
  """Fills `placed`.

  Args:
    busy: [num_devices, num_ops] busy intervals of each device in order of time,
      overhead included.
    spans: [num_devices] numbers of intervals.
  """
  for op in order:
    if tables.is_source[op]:
      continue
    group = tables.group_of[op]
    needed = placed.held[group] if placed.device_of[group] < 0 else -np.inf
    best: Index = np.int64(-1)
    while best < 0:
      best_end, best_bytes = np.inf, np.inf  # Ties go to fewer bytes sent.
      for device in range(len(placed.room)):
        if not placed.free[group, device] or needed > placed.room[device]:
          continue
        ready, moved = arrival(tables, placed, op, device)
        start, _ = _start(tables, busy, spans[device], op, device, ready)
        finish = start + tables.time_us[op, device]
        if finish < best_end or (finish == best_end and moved < best_bytes):
          best, best_end, best_bytes = np.int64(device), finish, moved
      # If no device has room for the sum of bytes, which may not be held at
      # once, any will do.
      needed = -np.inf
    take(tables, placed, op, best)
    # Sending all inputs together may delay the start a little.
    ready = send_inputs(tables, placed, op)
    start, length = _start(tables, busy, spans[best], op, best, ready)
    placed.end[op] = start + tables.time_us[op, best]
    if length > 0:
      at: Index = np.int64(spans[best])
      while at > 0 and busy[best, at - 1].start > start:
        busy[best, at].start = busy[best, at - 1].start
        busy[best, at].end = busy[best, at - 1].end
        at -= 1
      busy[best, at].start, busy[best, at].end = start, start + length
      spans[best] += 1
  place_rest(placed)


@helper
def _start(
  tables: ListTables,
  busy: np.ndarray,
  count: Index,
  op: Index,
  device: Index,
  ready: float,
) -> tuple[float, float]:
  """Returns the earliest start of `op` on a device and the time it occupies."""
  time_us = tables.time_us[op, device]
  length = time_us + tables.overhead_us[device] if time_us > 0 else 0.0
  at = count
  while at > max(0, count - _GAPS) and busy[device, at - 1].end >= ready:
    at -= 1
  # Find the first gap of this length.
  start = ready
  while at < count and start + length > busy[device, at].start:
    start = max(start, busy[device, at].end)
    at += 1
  return start, length


@helper
def arrival(
  tables: ListTables, placed: Partial, op: Index, device: Index
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
        size = tables.in_bytes[i]
        channel = tables.links[source, device].channel
        at = max(at, placed.channel_us[channel])
        at = arrival_us(tables.links, at, size, source, device)
        moved += size
    ready = max(ready, at)
  return ready, moved


@helper
def send_inputs(tables: ListTables, placed: Partial, op: Index) -> float:
  """Sends the missing inputs of `op`; returns when all have arrived."""
  ready = 0.0
  device = placed.device_of[tables.group_of[op]]
  for i in range(tables.in_offsets[op], tables.in_offsets[op + 1]):
    producer, size = tables.in_src[i], tables.in_bytes[i]
    source = placed.device_of[tables.group_of[producer]]
    at = max(placed.end[producer], 0.0)
    if source != device:
      if placed.arrival_us[producer, device] < 0:
        channel = tables.links[source, device].channel
        at = max(at, placed.channel_us[channel])
        placed.channel_us[channel] = free_us(
          tables.links, at, size, source, device
        )
        placed.arrival_us[producer, device] = arrival_us(
          tables.links, at, size, source, device
        )
      at = placed.arrival_us[producer, device]
    ready = max(ready, at)
  return ready


@helper
def take(tables: ListTables, placed: Partial, op: Index, device: Index) -> None:
  """Puts an op's group, and the sources that feed it, on `device`."""
  _assign(placed, np.int64(tables.group_of[op]), device)
  placed.stack[0] = op
  size = 1
  while size > 0:
    size -= 1
    current = placed.stack[size]
    for i in range(tables.in_offsets[current], tables.in_offsets[current + 1]):
      source = tables.in_src[i]
      if not tables.is_source[source] or placed.end[source] >= 0:
        continue
      group, target = np.int64(tables.group_of[source]), device
      if not placed.free[group, device]:
        target = roomiest(placed, group)
      _assign(placed, group, target)
      placed.end[source] = tables.time_us[source, placed.device_of[group]]
      placed.stack[size] = source
      size += 1


@inlined
def _assign(placed: Partial, group: Index, device: Index) -> None:
  if placed.device_of[group] < 0:
    placed.device_of[group] = device
    placed.room[device] -= placed.held[group]
    for other in range(len(placed.room)):
      placed.free[group, other] = other == device


@inlined
def roomiest(placed: Partial, group: Index) -> Index:
  """Returns the possible device with the most free bytes, or -1."""
  best: Index = np.int64(-1)
  for device in range(len(placed.room)):
    if placed.free[group, device] and (
      best < 0 or placed.room[device] > placed.room[best]
    ):
      best = np.int64(device)
  return best


@helper
def place_rest(placed: Partial) -> None:
  """Puts sources without readers on the devices with the most free bytes."""
  for i in range(len(placed.device_of)):
    group = np.int64(i)
    if placed.device_of[group] < 0:
      _assign(placed, group, roomiest(placed, group))
