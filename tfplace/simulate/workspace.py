"""The mutable state of one simulation."""

from typing import NamedTuple

import numpy as np

from tfplace.simulate.tables import Tables

NODE = np.dtype(
  [
    ("time", np.float64),
    ("key", np.int64),
    ("left", np.int32),
    ("right", np.int32),
    ("pending", np.int32),
  ],
  align=True,
)
QUEUE = np.dtype([("head", np.int32), ("tail", np.int32), ("root", np.int32)])
TRANSFER = np.dtype(
  [
    ("bytes", np.float64),
    ("source", np.int32),
    ("target", np.int32),
    ("readers", np.int32),
    ("readers_end", np.int32),
    ("slot", np.int32),
  ],
  align=True,
)
CHANNEL = np.dtype([("free_us", np.float64), ("is_queued", np.int64)])

TRANSFERS = 0  # Index in `Workspace.counts`: number of queued transfers.
EVENTS = 1  # Number of events in the heap.
WAKEUPS = 2  # Number of entries of `wakeups`.
GROWN = 3  # Nonzero if memory was allocated in this instant.

ENDS = 0  # Index in `Workspace.sums`: minimum of row END.
STARTS = 1  # Minimum of row START.
MOVED = 2  # Bytes moved.

PEAK = 0  # Row of `Workspace.devices`: peak of bytes in use.
BUSY = 1  # Microseconds of ops, without overhead.
MEMORY = 2  # Bytes in use.
END = 3  # End of the running op, or infinity.
START = 4  # Planned start of the next op, or infinity.
FREE = 5  # Earliest start of the next op.
ENDED = 6  # End of the last op; used with ranks.
LOAD = 7  # Work not yet started, with idle gaps; used with a cutoff.


class Workspace(NamedTuple):
  """State of one simulation; each thread reuses its own.

  Nodes of queues are first the ops, then the transfers, numbered in queue
  order, and then their receives. After `engine.simulate`, rows PEAK and BUSY,
  the bytes moved and the times of all nodes hold the results.

  Attributes:
    devices: [8, num_devices] float64; see the constants above.
    running: [num_devices] int32 running node; undefined if idle.
    reader: [num_devices] int32 index of a reader of the current slot on each
      device.
    sums: [3] float64; see the constants above. A minimum of now or earlier may
      be outdated.
    counts: [4] int64; see the constants above.
    queues: [2 * num_devices + num_channels] priority queues (see `queues`) of
      ready ops and receives of each device, of receives with ranks, and of
      transfers of each channel:
        head: first node of the sorted list, -1 if empty.
        tail: last node of the list; undefined if empty.
        root: root of the heap, -1 if empty.
    nodes: [num_nodes]:
        time: first key, and then the start.
        key: second key; of a transfer, slot key * num_devices + destination.
        left: next node in a list, or child in a heap; -1 for none.
        right: child in a heap, or -1.
        pending: number of missing inputs of an op.
    ready_us: [num_ops] float64 ready time of each op; only used with ranks.
    transfers: [num_edges]:
        bytes, source, target: size and devices.
        readers, readers_end: range in `readers` that has those at the target.
        slot: its slot, -1 if that has one reader.
    left: [num_shared * num_devices] int32 number of readers (and, on the
      producer's device, transfers) that still need a shared slot.
    channels: [num_channels]:
        free_us: time when the channel is free.
        is_queued: nonzero if it is in `wakeups` or has an event.
    wakeups: [num_channels] int32 channels to check in this instant.
    event_us: [num_edges + num_channels] float64 heap of events.
    event_id: [num_edges + num_channels] int32 arriving transfer, or -1 -
      channel that becomes free.
  """

  devices: np.ndarray
  running: np.ndarray
  reader: np.ndarray
  sums: np.ndarray
  counts: np.ndarray
  queues: np.ndarray
  nodes: np.ndarray
  ready_us: np.ndarray
  transfers: np.ndarray
  left: np.ndarray
  channels: np.ndarray
  wakeups: np.ndarray
  event_us: np.ndarray
  event_id: np.ndarray


def workspace(tables: Tables) -> Workspace:
  """Allocates a workspace for simulations of `tables`."""
  devices, edges = tables.num_devices, len(tables.readers)
  channels = int(tables.links["channel"].max()) + 1
  receives = edges if tables.has_message_costs else 0
  nodes = np.zeros(tables.num_ops + edges + receives, NODE)
  nodes["key"][: tables.num_ops] = tables.op_key
  return Workspace(
    devices=np.zeros((8, devices)),
    running=np.zeros(devices, np.int32),
    reader=np.zeros(devices, np.int32),
    sums=np.zeros(3),
    counts=np.zeros(4, np.int64),
    queues=np.zeros(2 * devices + channels, QUEUE),
    nodes=nodes,
    ready_us=np.zeros(tables.num_ops),
    transfers=np.zeros(edges, TRANSFER),
    left=np.zeros(tables.num_shared * devices, np.int32),
    channels=np.zeros(channels, CHANNEL),
    wakeups=np.zeros(channels, np.int32),
    event_us=np.zeros(edges + channels),
    event_id=np.zeros(edges + channels, np.int32),
  )
