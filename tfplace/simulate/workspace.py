"""The mutable state of one simulation."""

from typing import NamedTuple

import numpy as np

from tfplace.simulate.tables import Tables

_NODE = [  # Fields of all queue nodes.
  ("time", np.float64),
  ("key", np.int64),
  ("left", np.int32),
  ("right", np.int32),
]
OP_NODE = np.dtype([*_NODE, ("pending", np.int32)], align=True)
TRANSFER_NODE = np.dtype(
  [
    *_NODE,
    ("bytes", np.float64),
    ("source", np.int32),
    ("target", np.int32),
    ("reader", np.int32),
    ("slot", np.int32),
  ],
  align=True,
)
TRANSFERS = 0  # Index in `Workspace.counts`: number of queued transfers.
EVENTS = 1  # Number of events in the heap.
WAKEUPS = 2  # Number of entries of `wakeups`.
GROWN = 3  # Nonzero if memory was allocated in this instant.
ENDS = 0  # Index in `Workspace.due_us`: minimum of `end_us`.
STARTS = 1  # Minimum of `start_us`.


class Queues(NamedTuple):
  """Priority queues, one per device or channel; see `queues`.

  Attributes:
    head: [num_queues] int32 first node of the sorted list, -1 if empty.
    tail: [num_queues] int32 last node of the list; undefined if empty.
    root: [num_queues] int32 root of the heap, -1 if empty.
    nodes: [num_nodes] records:
        time: first key.
        key: second key.
        left: next node in a list, or child in a heap; -1 for none.
        right: child in a heap, or -1.
        pending: number of missing inputs of an op.
        bytes, source, target: size and devices of a transfer.
        reader: only reader of a transfer at its destination, or -1.
        slot: slot of a transfer, -1 if only `reader` reads it.
  """

  head: np.ndarray
  tail: np.ndarray
  root: np.ndarray
  nodes: np.ndarray

  @property
  def time(self) -> np.ndarray:
    """[num_nodes] float64 `time` of `nodes`."""
    return self.nodes["time"]

  @property
  def key(self) -> np.ndarray:
    """[num_nodes] int64 `key` of `nodes`."""
    return self.nodes["key"]


class Workspace(NamedTuple):
  """State of one simulation; each thread reuses its own.

  After `engine.simulate`, `peak_bytes`, `busy_us`, `moved_bytes`, and the times
  of `ops` and `transfers` hold the results.

  Attributes:
    peak_bytes: [num_devices] float64.
    busy_us: [num_devices] float64.
    moved_bytes: [1] float64.
    ops: ready ops and receives of each device. With ranks, receives use
      num_devices further queues. The first num_ops of `ops.time` are the starts
      of ops, and entry num_ops + i is the start of transfer i's receive, if
      transfers occupy devices.
    ready_us: [num_ops] float64 ready time of each op; only used with ranks and
      transfers that occupy devices.
    ended_us: [num_devices] float64 end of each device's last op; used likewise.
    transfers: transfers, numbered in queue order. For the first
      `counts[TRANSFERS]`, `transfers.time` is the start and `transfers.key` is
      slot key * num_devices + destination.
    counts: [4] int64; see the constants above.
    left: [num_shared * num_devices] int32 number of readers (and, on the
      producer's device, transfers) that still need a shared slot.
    reader: [num_devices] int32 a reader of the current slot on each device.
    running: [num_devices] int32 running op; undefined if idle.
    end_us: [num_devices] float64 end of the running op, or infinity.
    free_us: [num_devices] float64 earliest start of the next op.
    start_us: [num_devices] float64 planned start of the next op, or infinity.
    due_us: [2] float64 minima, see the constants above; a value of now or
      earlier may be outdated.
    load_us: [num_devices] float64 work not yet started, with idle gaps; only
      used with a cutoff.
    memory: [num_devices] float64 bytes in use.
    channel_us: [num_channels] float64 time when each channel is free.
    channel_queued: [num_channels] uint8, nonzero if the channel is in `wakeups`
      or has an event.
    wakeups: [num_channels] int32 channels to check in this instant.
    event_us: [num_edges + num_channels] float64 heap of events.
    event_id: [num_edges + num_channels] int32 arriving transfer, or -1 -
      channel.
  """

  peak_bytes: np.ndarray
  busy_us: np.ndarray
  moved_bytes: np.ndarray
  ops: Queues
  ready_us: np.ndarray
  ended_us: np.ndarray
  transfers: Queues
  counts: np.ndarray
  left: np.ndarray
  reader: np.ndarray
  running: np.ndarray
  end_us: np.ndarray
  free_us: np.ndarray
  start_us: np.ndarray
  due_us: np.ndarray
  load_us: np.ndarray
  memory: np.ndarray
  channel_us: np.ndarray
  channel_queued: np.ndarray
  wakeups: np.ndarray
  event_us: np.ndarray
  event_id: np.ndarray


def workspace(tables: Tables) -> Workspace:
  """Allocates a workspace for simulations of `tables`."""
  devices, edges = tables.num_devices, len(tables.readers)
  channels = int(tables.channel.max()) + 1
  receives = edges if tables.has_message_costs else 0
  ops = np.zeros(tables.num_ops + receives, OP_NODE)
  ops["key"][: tables.num_ops] = tables.op_key
  return Workspace(
    peak_bytes=np.zeros(devices),
    busy_us=np.zeros(devices),
    moved_bytes=np.zeros(1),
    ops=_queues(2 * devices, ops),
    ready_us=np.zeros(tables.num_ops),
    ended_us=np.zeros(devices),
    transfers=_queues(channels, np.zeros(edges, TRANSFER_NODE)),
    counts=np.zeros(4, np.int64),
    left=np.zeros(tables.num_shared * devices, np.int32),
    reader=np.zeros(devices, np.int32),
    running=np.zeros(devices, np.int32),
    end_us=np.zeros(devices),
    free_us=np.zeros(devices),
    start_us=np.zeros(devices),
    due_us=np.zeros(2),
    load_us=np.zeros(devices),
    memory=np.zeros(devices),
    channel_us=np.zeros(channels),
    channel_queued=np.zeros(channels, np.uint8),
    wakeups=np.zeros(channels, np.int32),
    event_us=np.zeros(edges + channels),
    event_id=np.zeros(edges + channels, np.int32),
  )


def _queues(num_queues: int, nodes: np.ndarray) -> Queues:
  return Queues(
    head=np.zeros(num_queues, np.int32),
    tail=np.zeros(num_queues, np.int32),
    root=np.zeros(num_queues, np.int32),
    nodes=nodes,
  )
