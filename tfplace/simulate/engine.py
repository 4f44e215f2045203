"""The kernel: one step of one placement, by rules 1 to 7 of the formats.

Event-driven and exact. Everything here is Numba code that allocates nothing
and holds no lock, so that a search can call `simulate` from its own compiled
loop, and threads can run it side by side, each with a `workspace` of its own.
Placements are not checked; `Simulator.evaluate` does that.
"""

import numpy as np

from tfplace.simulate import queues
from tfplace.simulate.jit import Index, inlined, kernel
from tfplace.simulate.tables import (
  EVENTS,
  TRANSFERS,
  WAKEUPS,
  Tables,
  Workspace,
  pack,
  workspace,
)

__all__ = ["Tables", "Workspace", "pack", "simulate", "workspace"]


@kernel
def simulate(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  cutoff: float = np.inf,
) -> float:
  """Simulates one step.

  Args:
    tables: from `pack`.
    devices: [num_ops] int32 device of each op.
    work: from `workspace`; afterwards it holds peaks, busy times, bytes moved
      and the start of every op and transfer (see `Workspace`).
    cutoff: microseconds; give up once the step is known to take longer, by
      the ops that have started and the shortest paths from there to the end.

  Returns:
    The step time in microseconds. Infinity, and a workspace that means
    nothing, if it exceeds `cutoff`, an op cannot run on its device, or a
    transfer has no link.
  """
  _reset(tables, devices, work)
  now = 0.0
  step_time_us = 0.0
  limit = cutoff * (1 + 1e-12)  # the sums of `tail_us` are rounded otherwise
  while True:
    for i in range(tables.num_devices):
      is_done = work.running[i] >= 0 and work.device_us[i] <= now
      if is_done and not _complete(tables, devices, work, i, now):
        return np.inf
    _happen(tables, devices, work, now)
    _start_transfers(tables, devices, work, now)
    device = np.int64(0)  # a literal would be a type of its own
    while device < tables.num_devices:
      if _can_start(work, device, now):
        end = _start_op(tables, work, device, now)
        least = end + tables.tail_us[work.running[device]]
        if not least <= limit:  # NaN too: the op cannot run here
          return np.inf
        step_time_us = max(step_time_us, end)
        if end <= now:
          if not _complete(tables, devices, work, device, now):
            return np.inf
          _start_transfers(tables, devices, work, now)
          device = np.int64(0)
          continue
      device += 1
    now = _advance(tables, work)
    if now == np.inf:
      return step_time_us


@inlined
def _reset(tables: Tables, devices: np.ndarray, work: Workspace) -> None:
  queues.clear(work.ops)
  queues.clear(work.transfers)
  work.counts[:] = 0
  work.running[:] = -1
  work.device_us[:] = 0.0
  work.channel_us[:] = 0.0
  work.channel_queued[:] = 0
  work.busy_us[:] = 0.0
  work.peak_bytes[:] = 0.0
  work.memory[:] = 0.0
  work.moved_bytes[0] = 0.0
  for i in range(tables.num_ops):
    work.pending[i] = tables.in_degree[i]
    work.memory[devices[i]] += tables.persistent_bytes[i]
  for i in range(len(tables.sources)):
    op = np.int64(tables.sources[i])
    work.ops.time[op] = 0.0
    queues.push(work.ops, np.int64(devices[op]), op)


@inlined
def _can_start(work: Workspace, device: Index, now: float) -> bool:
  return (
    work.running[device] < 0
    and work.device_us[device] <= now
    and not queues.is_empty(work.ops, device)
  )


@inlined
def _start_op(
  tables: Tables, work: Workspace, device: Index, now: float
) -> float:
  """Starts the first ready op of a free device and returns its end."""
  op = queues.pop(work.ops, device)
  work.ops.time[op] = now
  time_us = tables.time_us[op, device]
  end = now + time_us
  work.running[device] = op
  work.device_us[device] = end
  work.busy_us[device] += time_us
  work.memory[device] += tables.start_bytes[op]
  return end


@inlined
def _complete(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  device: Index,
  now: float,
) -> bool:
  """Ends the op that runs on `device`; false if a link is missing."""
  op = np.int64(work.running[device])
  work.running[device] = -1
  if tables.time_us[op, device] > 0:
    work.device_us[device] = now + tables.op_overhead_us[device]
  freed = tables.run_bytes[op]
  for i in range(tables.in_offsets[op], tables.in_offsets[op + 1]):
    freed += _release(tables, work, np.int64(tables.in_slots[i]), device)
  work.memory[device] -= freed
  is_linked = True
  for i in range(tables.slot_offsets[op], tables.slot_offsets[op + 1]):
    is_linked &= _publish(tables, devices, work, np.int64(i), device, now)
  return is_linked


@inlined
def _release(
  tables: Tables, work: Workspace, slot: Index, device: Index
) -> float:
  """One need less of `slot` on `device`; returns the bytes freed there."""
  at = slot * tables.num_devices + device
  work.left[at] -= 1
  return tables.slot_bytes[slot] if work.left[at] == 0 else 0.0


@inlined
def _publish(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  slot: Index,
  device: Index,
  now: float,
) -> bool:
  """Gives an output to its readers here and queues it for other devices."""
  at = slot * tables.num_devices
  first, last = tables.reader_offsets[slot], tables.reader_offsets[slot + 1]
  if last - first == 1:  # most slots: no need to count by device
    reader = np.int64(tables.readers[first])
    target = np.int64(devices[reader])
    work.left[at + device] = 1
    if target == device:
      _receive(work, reader, device, now)
      return True
    work.left[at + target] = 1
    return _queue_transfer(tables, work, slot, device, target, now)
  work.left[at : at + tables.num_devices] = 0
  for i in range(first, last):
    reader = np.int64(tables.readers[i])
    work.left[at + devices[reader]] += 1
    if devices[reader] == device:
      _receive(work, reader, device, now)
  is_linked = True
  for other in range(tables.num_devices):
    if other != device and work.left[at + other] > 0:
      work.left[at + device] += 1
      is_linked &= _queue_transfer(tables, work, slot, device, other, now)
  return is_linked


@inlined
def _receive(work: Workspace, op: Index, device: Index, now: float) -> None:
  """An input of `op` is there; the last one makes it ready."""
  work.pending[op] -= 1
  if work.pending[op] == 0:
    work.ops.time[op] = now
    queues.push(work.ops, device, op)


@inlined
def _queue_transfer(
  tables: Tables,
  work: Workspace,
  slot: Index,
  device: Index,
  target: Index,
  now: float,
) -> bool:
  """Queues a transfer on its link's channel; false if there is no link."""
  channel = np.int64(tables.channel[device, target])
  if channel < 0:
    return False
  transfer = work.counts[TRANSFERS]
  work.counts[TRANSFERS] = transfer + 1
  work.transfers.time[transfer] = now
  work.transfers.key[transfer] = (
    tables.slot_key[slot] * tables.num_devices + target
  )
  queues.push(work.transfers, channel, transfer)
  if not work.channel_queued[channel]:
    work.channel_queued[channel] = 1
    if work.channel_us[channel] <= now:
      _wake(work, channel)
    else:
      queues.push_event(work, work.channel_us[channel], -1 - channel)
  return True


@inlined
def _wake(work: Workspace, channel: Index) -> None:
  work.wakeups[work.counts[WAKEUPS]] = channel
  work.counts[WAKEUPS] += 1


@inlined
def _happen(
  tables: Tables, devices: np.ndarray, work: Workspace, now: float
) -> None:
  """Arrivals of this instant, and channels that become free in it."""
  while work.counts[EVENTS] > 0 and work.event_us[0] <= now:
    event = queues.pop_event(work)
    if event >= 0:
      _arrive(tables, devices, work, event, now)
    else:
      _wake(work, -1 - event)


@inlined
def _arrive(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  transfer: Index,
  now: float,
) -> None:
  key = work.transfers.key[transfer]
  rank = key // tables.num_devices
  slot = np.int64(tables.slot_at[rank])
  target = key - rank * tables.num_devices
  source = np.int64(devices[tables.slot_src[slot]])
  work.memory[source] -= _release(tables, work, slot, source)
  for i in range(tables.reader_offsets[slot], tables.reader_offsets[slot + 1]):
    reader = np.int64(tables.readers[i])
    if devices[reader] == target:
      _receive(work, reader, target, now)


@inlined
def _start_transfers(
  tables: Tables, devices: np.ndarray, work: Workspace, now: float
) -> None:
  """Starts what the free channels can start in this instant."""
  for i in range(work.counts[WAKEUPS]):
    channel = np.int64(work.wakeups[i])
    while not queues.is_empty(work.transfers, channel):
      if work.channel_us[channel] > now:
        queues.push_event(work, work.channel_us[channel], -1 - channel)
        break
      _start_transfer(tables, devices, work, channel, now)
    else:
      work.channel_queued[channel] = 0
  work.counts[WAKEUPS] = 0


@inlined
def _start_transfer(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  channel: Index,
  now: float,
) -> None:
  transfer = queues.pop(work.transfers, channel)
  work.transfers.time[transfer] = now
  key = work.transfers.key[transfer]
  rank = key // tables.num_devices
  slot = np.int64(tables.slot_at[rank])
  target = key - rank * tables.num_devices
  source = np.int64(devices[tables.slot_src[slot]])
  size = tables.slot_bytes[slot]
  sent = now + size / tables.bandwidth[source, target]
  work.channel_us[channel] = sent + tables.gap_us[source, target]
  work.memory[target] += size
  work.moved_bytes[0] += size
  arrival = sent + tables.latency_us[source, target]
  if arrival <= now:
    _arrive(tables, devices, work, transfer, now)
  else:
    queues.push_event(work, arrival, transfer)


@inlined
def _advance(tables: Tables, work: Workspace) -> float:
  """Ends an instant: notes the peaks and returns the next, or infinity."""
  result = work.event_us[0] if work.counts[EVENTS] > 0 else np.inf
  for device in range(tables.num_devices):
    work.peak_bytes[device] = max(work.peak_bytes[device], work.memory[device])
    if work.running[device] >= 0 or not queues.is_empty(work.ops, device):
      result = min(result, work.device_us[device])
  return result
