"""The simulation kernel: one step by rules 1-7 of docs/simulation.md.

The kernel is Numba code that allocates nothing and holds no lock. A search can
call `simulate` from its own compiled loop, and threads can run it in parallel,
each with its own `workspace`. Placements are not checked; `Simulator.evaluate`
does that.
"""

from typing import NamedTuple

import numpy as np

from tfplace.simulate import queues, transfers
from tfplace.simulate.jit import Index, helper, inlined, kernel
from tfplace.simulate.links import compiled_receive_us as receive_us
from tfplace.simulate.queues import make_ready, receive, will_start
from tfplace.simulate.tables import Tables, pack
from tfplace.simulate.workspace import (
  BUSY,
  END,
  ENDED,
  ENDS,
  EVENTS,
  FREE,
  GROWN,
  LOAD,
  MEMORY,
  MOVED,
  PEAK,
  START,
  STARTS,
  Workspace,
  workspace,
)

__all__ = ["Tables", "Workspace", "pack", "simulate", "workspace"]


class Batch(NamedTuple):
  """Results of a batch of simulated placements.

  Attributes:
    step_time_us: [batch] float64; infinite if a placement cannot run.
    peak_memory_bytes: [batch, num_devices] float64.
    busy_us: [batch, num_devices] float64 op time without overhead.
    bytes_moved: [batch] float64.
    feasible: [batch] bool; True if a placement runs and fits in memory.
  """

  step_time_us: np.ndarray
  peak_memory_bytes: np.ndarray
  busy_us: np.ndarray
  bytes_moved: np.ndarray
  feasible: np.ndarray


def batch(tables: Tables, count: int) -> Batch:
  """Allocates the results of `count` placements."""
  return Batch(
    step_time_us=np.zeros(count),
    peak_memory_bytes=np.zeros((count, tables.num_devices)),
    busy_us=np.zeros((count, tables.num_devices)),
    bytes_moved=np.zeros(count),
    feasible=np.zeros(count, bool),
  )


def simulate_one(tables: Tables, devices: np.ndarray, work: Workspace) -> Batch:
  """Simulates [num_ops] int32 `devices`; returns a batch of one."""
  result = batch(tables, 1)
  none = np.empty((0, tables.num_ops))
  rows = np.ascontiguousarray(devices[np.newaxis], np.int32)
  simulate_rows(tables, rows, work, 0, 1, np.inf, result, none)
  return result


@kernel
def simulate_rows(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  first: int,
  last: int,
  cutoff: float,
  batch: Batch,
  starts: np.ndarray,
) -> None:
  """Simulates rows `first` to `last - 1` of `devices` into `batch`.

  `starts` has as many rows as `devices`, or none if starts are not requested.
  """
  for row in range(first, last):
    step_time_us = simulate(tables, devices[row], work, cutoff)
    batch.step_time_us[row] = step_time_us
    batch.bytes_moved[row] = work.sums[MOVED]
    fits = step_time_us < np.inf
    for device in range(tables.num_devices):
      peak = work.devices[PEAK, device]
      batch.peak_memory_bytes[row, device] = peak
      batch.busy_us[row, device] = work.devices[BUSY, device]
      fits &= peak <= tables.devices[device].memory_bytes
    batch.feasible[row] = fits
    if row < len(starts):
      for op in range(tables.num_ops):
        starts[row, op] = work.nodes[op].time


@helper
def simulate(
  tables: Tables, devices: np.ndarray, work: Workspace, cutoff: float
) -> float:
  """Simulates one step.

  Args:
    tables: packed problem from `pack`.
    devices: [num_ops] int32 device of each op.
    work: workspace; receives peaks, busy times, bytes moved and the start of
      each op and transfer (see `Workspace`).
    cutoff: microseconds; the simulation stops once the started ops and the
      shortest paths from there prove a longer step.

  Returns:
    The step time in microseconds. Infinity, with an undefined workspace, if it
    exceeds `cutoff`, an op cannot run on its device, or a link is missing.
  """
  _reset(tables, devices, work)
  now = 0.0
  step_time_us = 0.0
  limit = cutoff * (1 + 1e-12)  # The sums of `tail_us` round differently.
  is_limited = limit < np.inf
  if is_limited and not _load(tables, devices, work, limit):
    return np.inf
  while now < np.inf:
    # Phase 1: ops, receives and transfers that are due complete.
    if work.sums[ENDS] <= now:
      for i in range(tables.num_devices):
        is_done = work.devices[END, i] <= now
        if is_done and not _complete(tables, devices, work, i, now):
          return np.inf
    transfers.process_events(tables, devices, work, now)
    # Phase 2: free channels start transfers.
    transfers.start(tables, work, now)
    if work.counts[EVENTS] > 0 and work.event_us[0] <= now:
      continue
    # Phase 3: free devices start ops and receives.
    device = np.int64(0)  # A literal would have a type of its own.
    while work.sums[STARTS] <= now and device < tables.num_devices:
      if work.devices[START, device] <= now:
        node = queues.take(tables, work, device)
        if tables.has_message_costs is None or node < tables.num_ops:
          end = _start_op(tables, devices, work, node, device, now)
          least = end + tables.ops[node].tail_us
          if is_limited:
            least = max(least, end + _remaining_us(tables, work, node, device))
          # NaN, for an op that cannot run here, also ends the simulation.
          if not least <= limit:
            return np.inf
          step_time_us = max(step_time_us, end)
        else:
          end = _start_receive(tables, work, node, device, now)
        if end <= now:
          break  # It completes in this instant.
      device += 1
    else:
      now = _advance(tables, work, now)
  return step_time_us


@inlined
def _reset(tables: Tables, devices: np.ndarray, work: Workspace) -> None:
  for i in range(len(work.queues)):
    work.queues[i].head = -1
    work.queues[i].root = -1
  for i in range(len(work.channels)):
    work.channels[i].free_us = 0.0
    work.channels[i].is_queued = 0
  for i in range(len(work.counts)):
    work.counts[i] = 0
  work.sums[ENDS] = np.inf
  work.sums[STARTS] = np.inf
  work.sums[MOVED] = 0.0
  for i in range(tables.num_devices):
    for row in range(len(work.devices)):
      work.devices[row, i] = 0.0
    work.devices[END, i] = np.inf
    work.devices[START, i] = np.inf
  for i in range(tables.num_ops):
    work.nodes[i].pending = tables.in_degree[i]
    work.devices[MEMORY, devices[i]] += tables.persistent_bytes[i]
  for i in range(len(tables.sources)):
    op = np.int64(tables.sources[i])
    make_ready(tables, work, op, np.int64(devices[op]), 0.0)


@inlined
def _load(
  tables: Tables, devices: np.ndarray, work: Workspace, limit: float
) -> bool:
  """Sums the work of each device; returns False if one exceeds the limit."""
  for op in range(tables.num_ops):
    device = np.int64(devices[op])
    work.devices[LOAD, device] += _occupied_us(tables, op, device)
  is_less = True
  for i in range(tables.num_devices):
    # Sums in another order differ in the last digits.
    work.devices[LOAD, i] *= 1 - 1e-9
    gap_us = tables.devices[i].op_overhead_us
    is_less &= work.devices[LOAD, i] - gap_us <= limit
  return is_less


@inlined
def _occupied_us(tables: Tables, op: Index, device: Index) -> float:
  """Returns the time of an op with the idle gap after it."""
  about = tables.devices[device]
  time_us = tables.time_us[op, about.kind]
  return time_us + about.op_overhead_us if time_us > 0 else time_us


@inlined
def _remaining_us(
  tables: Tables, work: Workspace, op: Index, device: Index
) -> float:
  """Subtracts the started op from its device's remaining work.

  Returns the least time from its end to the end of the device's last op.
  """
  work.devices[LOAD, device] -= _occupied_us(tables, op, device)
  return work.devices[LOAD, device] - tables.devices[device].op_overhead_us


@inlined
def _start_op(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  op: Index,
  device: Index,
  now: float,
) -> float:
  about = tables.devices[device]
  time_us = tables.time_us[op, about.kind]
  end = now + time_us
  if tables.has_message_costs is not None:
    end += transfers.sending_us(tables, devices, work, op, device)
    work.devices[ENDED, device] = end
  _occupy(work, op, device, now, end)
  if time_us > 0:
    work.devices[FREE, device] = end + about.op_overhead_us
  work.devices[BUSY, device] += time_us
  work.devices[MEMORY, device] += tables.ops[op].start_bytes
  work.counts[GROWN] = 1
  return end


@inlined
def _start_receive(
  tables: Tables, work: Workspace, node: Index, device: Index, now: float
) -> float:
  sent = work.transfers[node - tables.num_ops - len(tables.readers)]
  source = np.int64(sent.source)
  end = now + receive_us(tables.links, sent.bytes, source, device)
  _occupy(work, node, device, now, end)
  return end


@inlined
def _occupy(
  work: Workspace, node: Index, device: Index, now: float, end: float
) -> None:
  work.nodes[node].time = now
  work.running[device] = node
  work.devices[END, device] = end
  work.devices[START, device] = np.inf
  work.devices[FREE, device] = end
  work.sums[ENDS] = min(work.sums[ENDS], end)


@inlined
def _complete(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  device: Index,
  now: float,
) -> bool:
  """Ends the op or receive on `device`; returns False if a link is missing."""
  work.devices[END, device] = np.inf
  if not queues.is_idle(tables, work, device):
    will_start(work, device)
  node = np.int64(work.running[device])
  if tables.has_message_costs is not None and node >= tables.num_ops:
    transfer: Index = node - tables.num_ops - len(tables.readers)
    transfers.deliver(tables, devices, work, transfer, now)
    return True
  about = tables.ops[node]
  freed = about.end_bytes
  for i in range(about.shared, about.shared_end):
    slot = np.int64(tables.shared_inputs[i])
    freed += transfers.release(tables, work, slot, device)
  work.devices[MEMORY, device] -= freed
  is_linked = True
  for i in range(about.slots, about.slots_end):
    is_linked &= _publish(tables, devices, work, np.int64(i), device, now)
  return is_linked


@inlined
def _publish(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  slot: Index,
  device: Index,
  now: float,
) -> bool:
  """Passes an output to its local readers and queues its transfers."""
  about = tables.slots[slot]
  reader = np.int64(about.reader)
  if reader < 0:
    return _share(tables, devices, work, slot, device, now)
  target = np.int64(devices[reader])
  if target != device:
    only = np.int64(about.readers)
    return transfers.queue(tables, work, slot, only, device, target, now)
  receive(tables, work, reader, device, now)
  return True


@inlined
def _share(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  slot: Index,
  device: Index,
  now: float,
) -> bool:
  """Publishes a shared slot and counts its readers per device."""
  about = tables.slots[slot]
  at = np.int64(about.left)
  for other in range(tables.num_devices):
    work.left[at + other] = 0
  for i in range(about.readers, about.readers_end):
    reader = np.int64(tables.readers[i])
    target = np.int64(devices[reader])
    work.left[at + target] += 1
    work.reader[target] = i
    if target == device:
      receive(tables, work, reader, device, now)
  is_linked = True
  for other in range(tables.num_devices):
    if other != device and work.left[at + other] > 0:
      work.left[at + device] += 1
      only = np.int64(work.reader[other])
      if work.left[at + other] > 1:
        only = np.int64(-1)
      is_linked &= transfers.queue(tables, work, slot, only, device, other, now)
  return is_linked


@inlined
def _advance(tables: Tables, work: Workspace, now: float) -> float:
  """Ends an instant: updates peaks and returns the next time, or infinity."""
  if work.counts[GROWN]:
    work.counts[GROWN] = 0
    for i in range(tables.num_devices):
      peak = max(work.devices[PEAK, i], work.devices[MEMORY, i])
      work.devices[PEAK, i] = peak
  if work.sums[ENDS] <= now:
    work.sums[ENDS] = _least(work, END)
  if work.sums[STARTS] <= now:
    work.sums[STARTS] = _least(work, START)
  result = min(work.sums[ENDS], work.sums[STARTS])
  if work.counts[EVENTS] > 0:
    result = min(result, work.event_us[0])
  return result


@inlined
def _least(work: Workspace, row: int) -> float:
  result = np.inf
  for i in range(work.devices.shape[1]):
    result = min(result, work.devices[row, i])
  return result
