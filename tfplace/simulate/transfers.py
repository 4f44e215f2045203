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
  MEMORY,
  MOVED,
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
        total_us += send_us(tables.links, slot.bytes, device, target)
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
        total_us += send_us(tables.links, slot.bytes, device, other)
  return total_us


@inlined
def queue(
  tables: Tables,
  work: Workspace,
  slot: Index,
  only: Index,
  source: Index,
  target: Index,
  now: float,
) -> bool:
  """Queues a transfer on its link's channel; returns False without a link.

  `only` is the index of the only reader on `target`, or -1.
  """
  channel = np.int64(tables.links[source, target].channel)
  if channel < 0:
    return False
  transfer = work.counts[TRANSFERS]
  work.counts[TRANSFERS] = transfer + 1
  about = tables.slots[slot]
  sent = work.transfers[transfer]
  sent.bytes = about.bytes
  sent.source = source
  sent.target = target
  sent.readers = only if only >= 0 else about.readers
  sent.readers_end = only + 1 if only >= 0 else about.readers_end
  sent.slot = slot if about.reader < 0 else -1
  node: Index = tables.num_ops + transfer
  work.nodes[node].time = now
  work.nodes[node].key = np.int64(about.key) * tables.num_devices + target
  queues.push(work, 2 * tables.num_devices + channel, node)
  if not work.channels[channel].is_queued:
    work.channels[channel].is_queued = 1
    free_us = work.channels[channel].free_us
    if free_us <= now:
      _wake(work, channel)
    else:
      queues.push_event(work, free_us, -1 - channel)
  return True


@inlined
def _wake(work: Workspace, channel: Index) -> None:
  work.wakeups[work.counts[WAKEUPS]] = channel
  work.counts[WAKEUPS] += 1


@inlined
def process_events(
  tables: Tables, devices: np.ndarray, work: Workspace, now: float
) -> None:
  """Handles the arrivals and freed channels of this instant."""
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
  sent = work.transfers[transfer]
  source, target = np.int64(sent.source), np.int64(sent.target)
  freed = sent.bytes
  if sent.slot >= 0:
    freed = release(tables, work, np.int64(sent.slot), source)
  work.devices[MEMORY, source] -= freed
  recv_us = 0.0
  if tables.has_message_costs is not None:
    recv_us = receive_us(tables.links, sent.bytes, source, target)
  if recv_us > 0:
    node: Index = tables.num_ops + transfer
    receiving: Index = node + len(tables.readers)
    work.nodes[receiving].key = work.nodes[node].key + _BEFORE_OPS
    make_receive_ready(tables, work, receiving, target, now)
  else:
    deliver(tables, devices, work, transfer, now)


@inlined
def deliver(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  transfer: Index,
  now: float,
) -> None:
  """Delivers a transfer to its readers."""
  sent = work.transfers[transfer]
  target = np.int64(sent.target)
  for i in range(sent.readers, sent.readers_end):
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
def start(tables: Tables, work: Workspace, now: float) -> None:
  """Starts transfers on all free channels."""
  for i in range(work.counts[WAKEUPS]):
    channel = np.int64(work.wakeups[i])
    about, queue = work.channels[channel], 2 * tables.num_devices + channel
    while not queues.is_empty(work, queue):
      if about.free_us > now:
        queues.push_event(work, about.free_us, -1 - channel)
        break
      node = queues.pop(work, queue)
      work.nodes[node].time = now
      transfer: Index = node - tables.num_ops
      sent = work.transfers[transfer]
      source, target = np.int64(sent.source), np.int64(sent.target)
      ends = transfer_ends(tables.links, now, sent.bytes, source, target)
      _, arrival, about.free_us = ends
      work.devices[MEMORY, target] += sent.bytes
      work.counts[GROWN] = 1
      work.sums[MOVED] += sent.bytes
      queues.push_event(work, arrival, transfer)
    else:
      about.is_queued = 0
  work.counts[WAKEUPS] = 0
