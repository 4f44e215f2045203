"""Kernel code for transfers, by rule 3 (channel) of docs/simulation.md."""

import numpy as np

from tfplace.simulate import queues
from tfplace.simulate.jit import Index, inlined
from tfplace.simulate.links import compiled_receive_us as receive_us
from tfplace.simulate.links import compiled_send_us as send_us
from tfplace.simulate.links import compiled_transfer_ends as transfer_ends
from tfplace.simulate.queues import make_receive_ready, receive
from tfplace.simulate.tables import Tables
from tfplace.simulate.workspace import (
  EVENTS,
  GROWN,
  TRANSFERS,
  WAKEUPS,
  Workspace,
)

# Added to keys of receives, which go before ops.
_BEFORE_OPS = np.int64(-1 << 62)


@inlined
def sending_us(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  op: Index,
  device: Index,
) -> float:
  """Sums the time of an op's sends on its device."""
  total_us = 0.0
  about = tables.ops[op]
  for i in range(about.slots, about.slots_end):
    slot = tables.slots[i]
    reader = np.int64(slot.reader)
    if reader >= 0:
      target = np.int64(devices[reader])
      if target != device:
        total_us += send_us(tables, slot.bytes, device, target)
      continue
    is_sent = False
    for j in range(slot.readers, slot.readers_end):
      is_sent |= devices[tables.readers[j]] != device
    if not is_sent:
      continue
    for other in range(tables.num_devices):
      work.reader[other] = -1
    for j in range(slot.readers, slot.readers_end):
      work.reader[devices[tables.readers[j]]] = 0
    for other in range(tables.num_devices):
      if other != device and work.reader[other] == 0:
        total_us += send_us(tables, slot.bytes, device, other)
  return total_us


@inlined
def queue(
  tables: Tables,
  work: Workspace,
  slot: Index,
  reader: Index,
  source: Index,
  target: Index,
  now: float,
) -> bool:
  """Queues a transfer on its link's channel; returns False without a link.

  `reader` is the only reader on `target`, or -1.
  """
  channel = np.int64(tables.channel[source, target])
  if channel < 0:
    return False
  transfer = work.counts[TRANSFERS]
  work.counts[TRANSFERS] = transfer + 1
  about = tables.slots[slot]
  node = work.transfers.nodes[transfer]
  node.time = now
  node.key = np.int64(about.key) * tables.num_devices + target
  node.bytes = about.bytes
  node.source = source
  node.target = target
  node.reader = reader
  node.slot = slot if about.reader < 0 else -1
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
def process_events(
  tables: Tables, devices: np.ndarray, work: Workspace, now: float, costly: bool
) -> None:
  """Handles the arrivals and freed channels of this instant."""
  while work.counts[EVENTS] > 0 and work.event_us[0] <= now:
    event = queues.pop_event(work)
    if event >= 0:
      _arrive(tables, devices, work, event, now, costly)
    else:
      _wake(work, -1 - event)


@inlined
def _arrive(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  transfer: Index,
  now: float,
  costly: bool,
) -> None:
  node = work.transfers.nodes[transfer]
  source, target = np.int64(node.source), np.int64(node.target)
  slot, reader = np.int64(node.slot), np.int64(node.reader)
  freed = node.bytes
  if slot >= 0:
    freed = release(tables, work, slot, source)
  work.memory[source] -= freed
  recv_us = 0.0
  if costly:
    recv_us = receive_us(tables, node.bytes, source, target)
  if recv_us > 0:
    receiving: Index = tables.num_ops + transfer
    work.ops.nodes[receiving].key = node.key + _BEFORE_OPS
    make_receive_ready(tables, work, receiving, target, now)
  else:
    deliver(tables, devices, work, slot, reader, target, now)


@inlined
def deliver(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  slot: Index,
  reader: Index,
  target: Index,
  now: float,
) -> None:
  """Delivers a slot to its only reader on `target`, or to all readers if -1."""
  if reader >= 0:
    receive(tables, work, reader, target, now)
    return
  about = tables.slots[slot]
  for i in range(about.readers, about.readers_end):
    reader = np.int64(tables.readers[i])
    if devices[reader] == target:
      receive(tables, work, reader, target, now)


@inlined
def release(
  tables: Tables, work: Workspace, slot: Index, device: Index
) -> float:
  """Removes one need of a shared slot on `device`; returns the freed bytes."""
  about = tables.slots[slot]
  at = about.left + device
  work.left[at] -= 1
  return about.bytes if work.left[at] == 0 else 0.0


@inlined
def start(
  tables: Tables, devices: np.ndarray, work: Workspace, now: float, costly: bool
) -> None:
  """Starts transfers on all free channels."""
  for i in range(work.counts[WAKEUPS]):
    channel = np.int64(work.wakeups[i])
    while not queues.is_empty(work.transfers, channel):
      if work.channel_us[channel] > now:
        queues.push_event(work, work.channel_us[channel], -1 - channel)
        break
      _start_one(tables, devices, work, channel, now, costly)
    else:
      work.channel_queued[channel] = 0
  work.counts[WAKEUPS] = 0


@inlined
def _start_one(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  channel: Index,
  now: float,
  costly: bool,
) -> None:
  transfer = queues.pop(work.transfers, channel)
  node = work.transfers.nodes[transfer]
  node.time = now
  source, target = np.int64(node.source), np.int64(node.target)
  _, arrival, free = transfer_ends(tables, now, node.bytes, source, target)
  work.channel_us[channel] = free
  work.memory[target] += node.bytes
  work.counts[GROWN] = 1
  work.moved_bytes[0] += node.bytes
  if arrival <= now:
    _arrive(tables, devices, work, transfer, now, costly)
  else:
    queues.push_event(work, arrival, transfer)
