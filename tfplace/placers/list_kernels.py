"""Compiled list schedulers: earliest finish with insertion, earliest start.

Both decide a group at its first op that is not a source (see `ListTables`),
within domains, and within memory counted by sums where that is possible. A
transfer waits for those that were decided before it on its channel.
"""

from typing import NamedTuple

import numpy as np

from tfplace.placers import heap
from tfplace.placers.domains import propagate
from tfplace.placers.jit import inlined, kernel
from tfplace.placers.list_tables import ListTables

_GAPS = 256  # idle gaps that insertion looks at, from the latest back


class _Traffic(NamedTuple):
  """Transfers decided so far.

  Attributes:
    arrival_us: [num_ops, num_devices] float64, -1 where nothing was sent.
    channel_us: [num_channels] float64, when each channel is free.
  """

  arrival_us: np.ndarray
  channel_us: np.ndarray


@kernel
def _no_traffic(tables: ListTables) -> _Traffic:
  num_ops, num_devices = tables.time_us.shape
  return _Traffic(
    np.full((num_ops, num_devices), -1.0),
    np.zeros(num_devices * num_devices),
  )


@kernel
def earliest_finish(
  tables: ListTables,
  order: np.ndarray,
  free: np.ndarray,
  held: np.ndarray,
  room: np.ndarray,
) -> np.ndarray:
  """HEFT's second phase: each op in turn where it finishes first.

  Args:
    tables: the problem.
    order: [num_ops] producers before consumers.
    free: [num_groups, num_devices] bool domains; narrowed.
    held: [num_groups] bytes that a group counts for.
    room: [num_devices] bytes; reduced.

  Returns:
    [num_groups] int32 devices; -1 in the first entry when links left a group
    without a device.
  """
  num_ops, num_devices = tables.time_us.shape
  device_of = np.full(free.shape[0], -1, np.int32)
  end = np.full(num_ops, -1.0)
  busy_start = np.empty((num_devices, num_ops))
  busy_end = np.empty((num_devices, num_ops))
  count = np.zeros(num_devices, np.int64)
  stack = np.empty(num_ops, np.int64)
  traffic = _no_traffic(tables)
  for op in order:
    if tables.is_source[op]:
      continue
    group = tables.group_of[op]
    best, best_end, best_bytes = -1, np.inf, np.inf
    for fits_only in (True, False):
      for device in range(num_devices):
        if not free[group, device]:
          continue
        if fits_only and device_of[group] < 0 and held[group] > room[device]:
          continue
        ready, moved = _arrival(tables, traffic, device_of, end, op, device)
        time_us = tables.time_us[op, device]
        length = time_us + tables.overhead_us[device] if time_us > 0 else 0.0
        start = _gap(
          busy_start[device], busy_end[device], count[device], ready, length
        )
        finish = start + time_us
        if finish < best_end or (finish == best_end and moved < best_bytes):
          best, best_end, best_bytes = device, finish, moved
      if best >= 0:
        break
    if best < 0 or not _take(
      tables, free, held, room, device_of, op, best, end, stack
    ):
      device_of[0] = -1
      return device_of
    # With all its inputs on their way at once, it may start a little later.
    ready = _send_inputs(tables, traffic, device_of, end, op)
    time_us = tables.time_us[op, best]
    length = time_us + tables.overhead_us[best] if time_us > 0 else 0.0
    start = _gap(busy_start[best], busy_end[best], count[best], ready, length)
    end[op] = start + time_us
    if time_us > 0:
      _insert(busy_start[best], busy_end[best], count, best, start, length)
  return _finish(tables, free, held, room, device_of)


@kernel
def earliest_start(
  tables: ListTables,
  position: np.ndarray,
  free: np.ndarray,
  held: np.ndarray,
  room: np.ndarray,
) -> np.ndarray:
  """ETF: of all ready ops and devices, the pair that can start first.

  Args:
    tables: the problem.
    position: [num_ops] breaks ties, the lowest first.
    free: [num_groups, num_devices] bool domains; narrowed.
    held: [num_groups] bytes that a group counts for.
    room: [num_devices] bytes; reduced.

  Returns:
    [num_groups] int32 devices; -1 in the first entry when links left a group
    without a device.
  """
  num_ops, num_devices = tables.time_us.shape
  device_of = np.full(free.shape[0], -1, np.int32)
  end = np.full(num_ops, -1.0)
  idle_us = np.zeros(num_devices)
  stack = np.empty(num_ops, np.int64)
  traffic = _no_traffic(tables)
  waits, left = np.zeros(num_ops, np.int64), np.zeros(num_ops, np.int64)
  heap_us = np.empty(num_ops * num_devices + 1)
  heap_id = np.empty(num_ops * num_devices + 1, np.int64)
  size = 0
  for op in range(num_ops):
    for i in range(tables.in_offsets[op], tables.in_offsets[op + 1]):
      waits[op] += not tables.is_source[tables.in_src[i]]
  op_at = np.argsort(position)
  for op in range(num_ops):
    if waits[op] == 0 and not tables.is_source[op]:
      left[op] = num_devices
      for device in range(num_devices):
        key = position[op] * num_devices + device
        size = heap.push(heap_us, heap_id, size, 0.0, key)
  while size > 0:
    before, key = heap_us[0], heap_id[0]
    size = heap.pop(heap_us, heap_id, size)
    op, device = op_at[key // num_devices], key % num_devices
    if end[op] >= 0:
      continue
    group = tables.group_of[op]
    left[op] -= 1
    fits = free[group, device] and (
      device_of[group] >= 0 or held[group] <= room[device]
    )
    if not fits and left[op] > 0:
      continue
    if not fits:
      device = _roomiest(free[group], room)
      if device < 0:
        device_of[0] = -1
        return device_of
    ready, _ = _arrival(tables, traffic, device_of, end, op, device)
    start = max(ready, idle_us[device])
    if start > before and fits:
      left[op] += 1
      size = heap.push(heap_us, heap_id, size, start, key)
      continue
    if not _take(tables, free, held, room, device_of, op, device, end, stack):
      device_of[0] = -1
      return device_of
    start = _send_inputs(tables, traffic, device_of, end, op)
    start = max(start, idle_us[device])
    time_us = tables.time_us[op, device]
    end[op] = start + time_us
    if time_us > 0:
      idle_us[device] = end[op] + tables.overhead_us[device]
    for i in range(tables.out_offsets[op], tables.out_offsets[op + 1]):
      other = tables.out_dst[i]
      waits[other] -= 1
      if waits[other] == 0:
        left[other] = num_devices
        for target in range(num_devices):
          key = position[other] * num_devices + target
          size = heap.push(heap_us, heap_id, size, end[op], key)
  return _finish(tables, free, held, room, device_of)


@inlined
def _arrival(
  tables: ListTables,
  traffic: _Traffic,
  device_of: np.ndarray,
  end: np.ndarray,
  op: int,
  device: int,
) -> tuple[float, float]:
  """When the inputs of `op` could be on `device`, and the bytes to be sent."""
  ready, moved = 0.0, 0.0
  for i in range(tables.in_offsets[op], tables.in_offsets[op + 1]):
    producer = tables.in_src[i]
    source = device_of[tables.group_of[producer]]
    at = max(end[producer], 0.0)
    if source >= 0 and source != device:
      if traffic.arrival_us[producer, device] >= 0:
        at = traffic.arrival_us[producer, device]
      else:
        channel = tables.channel[source, device]
        at = max(at, traffic.channel_us[channel])
        at += tables.in_bytes[i] * tables.us_per_byte[source, device]
        at += tables.latency_us[source, device]
        moved += tables.in_bytes[i]
    ready = max(ready, at)
  return ready, moved


@kernel
def _send_inputs(
  tables: ListTables,
  traffic: _Traffic,
  device_of: np.ndarray,
  end: np.ndarray,
  op: int,
) -> float:
  """Sends what `op` needs from elsewhere; returns when all of it is there."""
  ready = 0.0
  device = device_of[tables.group_of[op]]
  for i in range(tables.in_offsets[op], tables.in_offsets[op + 1]):
    producer = tables.in_src[i]
    source = device_of[tables.group_of[producer]]
    at = max(end[producer], 0.0)
    if source != device:
      if traffic.arrival_us[producer, device] < 0:
        channel = tables.channel[source, device]
        sent = max(at, traffic.channel_us[channel])
        sent += tables.in_bytes[i] * tables.us_per_byte[source, device]
        traffic.channel_us[channel] = sent + tables.gap_us[source, device]
        sent += tables.latency_us[source, device]
        traffic.arrival_us[producer, device] = sent
      at = traffic.arrival_us[producer, device]
    ready = max(ready, at)
  return ready


@kernel
def _take(
  tables: ListTables,
  free: np.ndarray,
  held: np.ndarray,
  room: np.ndarray,
  device_of: np.ndarray,
  op: int,
  device: int,
  end: np.ndarray,
  stack: np.ndarray,
) -> bool:
  """Puts an op's group, and the sources that feed it, on `device`."""
  if not _assign(
    tables, free, held, room, device_of, tables.group_of[op], device
  ):
    return False
  size = 0
  current = op
  while True:
    for i in range(tables.in_offsets[current], tables.in_offsets[current + 1]):
      source = tables.in_src[i]
      if not tables.is_source[source] or end[source] >= 0:
        continue
      group = tables.group_of[source]
      target = device
      if not free[group, device]:
        target = _roomiest(free[group], room)
      if target < 0 or not _assign(
        tables, free, held, room, device_of, group, target
      ):
        return False
      end[source] = tables.time_us[source, device_of[group]]
      stack[size] = source
      size += 1
    if size == 0:
      return True
    size -= 1
    current = stack[size]


@kernel
def _assign(
  tables: ListTables,
  free: np.ndarray,
  held: np.ndarray,
  room: np.ndarray,
  device_of: np.ndarray,
  group: int,
  device: int,
) -> bool:
  """Fixes a group unless it is fixed; false if links then forbid the rest."""
  if device_of[group] >= 0:
    return True
  device_of[group] = device
  room[device] -= held[group]
  free[group, :] = False
  free[group, device] = True
  if tables.linked.all():
    return True
  changed = np.full(1, group, np.int64)
  return propagate(
    free, changed, tables.linked, tables.group_offsets, tables.group_entries
  )


@inlined
def _roomiest(domain: np.ndarray, room: np.ndarray) -> int:
  best = -1
  for device in range(len(domain)):
    if domain[device] and (best < 0 or room[device] > room[best]):
      best = device
  return best


@kernel
def _finish(
  tables: ListTables,
  free: np.ndarray,
  held: np.ndarray,
  room: np.ndarray,
  device_of: np.ndarray,
) -> np.ndarray:
  """Sources that nobody reads: to the roomiest devices."""
  for group in range(len(device_of)):
    if device_of[group] < 0:
      device = _roomiest(free[group], room)
      if device < 0 or not _assign(
        tables, free, held, room, device_of, group, device
      ):
        device_of[0] = -1
        return device_of
  return device_of


@inlined
def _gap(
  starts: np.ndarray, ends: np.ndarray, count: int, ready: float, length: float
) -> float:
  """The earliest start at or after `ready` of an idle gap of `length`."""
  first = max(0, count - _GAPS)
  at = np.searchsorted(ends[first:count], ready) + first
  start = ready
  while at < count:
    if start + length <= starts[at]:
      return start
    start = max(start, ends[at])
    at += 1
  return start


@inlined
def _insert(
  starts: np.ndarray,
  ends: np.ndarray,
  count: np.ndarray,
  device: int,
  start: float,
  length: float,
) -> None:
  at = count[device]
  while at > 0 and starts[at - 1] > start:
    starts[at], ends[at] = starts[at - 1], ends[at - 1]
    at -= 1
  starts[at], ends[at] = start, start + length
  count[device] += 1
