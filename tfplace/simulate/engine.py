"""The simulation kernel: one step by rules 1-7 of docs/simulation.md.

The kernel is Numba code that allocates nothing and holds no lock. A search can
call `simulate` from its own compiled loop, and threads can run it in parallel,
each with its own `workspace`. Placements are not checked; `Simulator.evaluate`
does that.
"""

import numpy as np

from tfplace.simulate import queues, transfers
from tfplace.simulate.jit import Index, inlined, kernel
from tfplace.simulate.links import compiled_receive_us as receive_us
from tfplace.simulate.queues import make_ready, receive, will_start
from tfplace.simulate.tables import Tables, pack
from tfplace.simulate.workspace import (
  ENDS,
  EVENTS,
  GROWN,
  STARTS,
  Workspace,
  workspace,
)

__all__ = ["Tables", "Workspace", "pack", "simulate", "workspace"]


@kernel
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
  # The type of `tables` makes this a constant, so dead code is not compiled.
  costly = tables.has_message_costs is not None
  _reset(tables, devices, work)
  now = 0.0
  step_time_us = 0.0
  limit = cutoff * (1 + 1e-12)  # The sums of `tail_us` round differently.
  is_limited = limit < np.inf
  if is_limited and not _load(tables, devices, work, limit):
    return np.inf
  while True:
    if work.due_us[ENDS] <= now:
      for i in range(tables.num_devices):
        is_done = work.end_us[i] <= now
        if is_done and not _complete(tables, devices, work, i, now, costly):
          return np.inf
    transfers.process_events(tables, devices, work, now, costly)
    transfers.start(tables, devices, work, now, costly)
    device = np.int64(0)  # A literal would have a type of its own.
    while work.due_us[STARTS] <= now and device < tables.num_devices:
      if work.start_us[device] <= now:
        node = queues.take(tables, work, device, costly)
        if not costly or node < tables.num_ops:
          end = _start_op(tables, devices, work, node, device, now, costly)
          least = end + tables.ops[node].tail_us
          if is_limited:
            least = max(least, end + _still(tables, work, device))
          # NaN, for an op that cannot run here, also ends the simulation.
          if not least <= limit:
            return np.inf
          step_time_us = max(step_time_us, end)
        else:
          end = _start_receive(tables, work, node, device, now)
        if end <= now:
          if not _complete(tables, devices, work, device, now, costly):
            return np.inf
          transfers.start(tables, devices, work, now, costly)
          device = np.int64(0)
          continue
      device += 1
    now = _advance(tables, work, now)
    if now == np.inf:
      return step_time_us


@inlined
def _reset(tables: Tables, devices: np.ndarray, work: Workspace) -> None:
  queues.clear(work.ops)
  queues.clear(work.transfers)
  work.counts[:] = 0
  work.end_us[:] = np.inf
  work.free_us[:] = 0.0
  work.start_us[:] = np.inf
  work.due_us[:] = np.inf
  work.channel_us[:] = 0.0
  work.channel_queued[:] = 0
  work.busy_us[:] = 0.0
  work.peak_bytes[:] = 0.0
  work.memory[:] = 0.0
  work.ended_us[:] = 0.0
  work.moved_bytes[0] = 0.0
  for i in range(tables.num_ops):
    work.ops.nodes[i].pending = tables.in_degree[i]
    work.memory[devices[i]] += tables.persistent_bytes[i]
  for i in range(len(tables.sources)):
    op = np.int64(tables.sources[i])
    make_ready(tables, work, op, np.int64(devices[op]), 0.0)


@inlined
def _load(
  tables: Tables, devices: np.ndarray, work: Workspace, limit: float
) -> bool:
  """Sums the work of each device; returns False if one exceeds the limit."""
  work.load_us[:] = 0.0
  for op in range(tables.num_ops):
    device = devices[op]
    time_us = tables.time_us[op, tables.kind[device]]
    if time_us > 0:
      time_us += tables.op_overhead_us[device]
    work.load_us[device] += time_us
  is_less = True
  for device in range(tables.num_devices):
    # Sums in another order differ in the last digits.
    work.load_us[device] *= 1 - 1e-9
    least = work.load_us[device] - tables.op_overhead_us[device]
    is_less &= least <= limit
  return is_less


@inlined
def _still(tables: Tables, work: Workspace, device: Index) -> float:
  """Subtracts the running op from its device's remaining work.

  Returns the least time from its end to the end of the device's last op.
  """
  time_us = tables.time_us[work.running[device], tables.kind[device]]
  if time_us > 0:
    time_us += tables.op_overhead_us[device]
  work.load_us[device] -= time_us
  return work.load_us[device] - tables.op_overhead_us[device]


@inlined
def _start_op(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  op: Index,
  device: Index,
  now: float,
  costly: bool,
) -> float:
  time_us = tables.time_us[op, tables.kind[device]]
  end = now + time_us
  if costly:
    end += transfers.sending_us(tables, devices, work, op, device)
    work.ended_us[device] = end
  _occupy(work, op, device, now, end)
  if time_us > 0:
    work.free_us[device] = end + tables.op_overhead_us[device]
  work.busy_us[device] += time_us
  work.memory[device] += tables.ops[op].start_bytes
  work.counts[GROWN] = 1
  return end


@inlined
def _start_receive(
  tables: Tables, work: Workspace, node: Index, device: Index, now: float
) -> float:
  transfer: Index = node - tables.num_ops
  about = work.transfers.nodes[transfer]
  source = np.int64(about.source)
  end = now + receive_us(tables, about.bytes, source, device)
  _occupy(work, node, device, now, end)
  return end


@inlined
def _occupy(
  work: Workspace, node: Index, device: Index, now: float, end: float
) -> None:
  work.ops.nodes[node].time = now
  work.running[device] = node
  work.end_us[device] = end
  work.due_us[ENDS] = min(work.due_us[ENDS], end)
  work.start_us[device] = np.inf
  work.free_us[device] = end


@inlined
def _complete(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  device: Index,
  now: float,
  costly: bool,
) -> bool:
  """Ends the op or receive on `device`; returns False if a link is missing."""
  work.end_us[device] = np.inf
  if not queues.is_idle(tables, work, device, costly):
    will_start(work, device)
  node = np.int64(work.running[device])
  if costly and node >= tables.num_ops:
    transfer: Index = node - tables.num_ops
    got = work.transfers.nodes[transfer]
    slot, reader = np.int64(got.slot), np.int64(got.reader)
    transfers.deliver(tables, devices, work, slot, reader, device, now)
    return True
  about = tables.ops[node]
  freed = about.end_bytes
  for i in range(about.shared, about.shared_end):
    slot = np.int64(tables.shared_inputs[i])
    freed += transfers.release(tables, work, slot, device)
  work.memory[device] -= freed
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
  reader = np.int64(tables.slots[slot].reader)
  if reader < 0:
    return _share(tables, devices, work, slot, device, now)
  target = np.int64(devices[reader])
  if target != device:
    return transfers.queue(tables, work, slot, reader, device, target, now)
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
  work.left[at : at + tables.num_devices] = 0
  for i in range(about.readers, about.readers_end):
    reader = np.int64(tables.readers[i])
    target = np.int64(devices[reader])
    work.left[at + target] += 1
    work.reader[target] = reader
    if target == device:
      receive(tables, work, reader, device, now)
  is_linked = True
  for other in range(tables.num_devices):
    if other != device and work.left[at + other] > 0:
      work.left[at + device] += 1
      alone = np.int64(work.reader[other])
      if work.left[at + other] > 1:
        alone = np.int64(-1)
      is_linked &= transfers.queue(
        tables, work, slot, alone, device, other, now
      )
  return is_linked


@inlined
def _advance(tables: Tables, work: Workspace, now: float) -> float:
  """Ends an instant: updates peaks and returns the next time, or infinity."""
  if work.counts[GROWN]:
    work.counts[GROWN] = 0
    for i in range(tables.num_devices):
      work.peak_bytes[i] = max(work.peak_bytes[i], work.memory[i])
  if work.due_us[ENDS] <= now:
    work.due_us[ENDS] = _least(work.end_us)
  if work.due_us[STARTS] <= now:
    work.due_us[STARTS] = _least(work.start_us)
  result = min(work.due_us[ENDS], work.due_us[STARTS])
  if work.counts[EVENTS] > 0:
    result = min(result, work.event_us[0])
  return result


@inlined
def _least(values: np.ndarray) -> float:
  result = np.inf
  for value in values:
    result = min(result, value)
  return result
