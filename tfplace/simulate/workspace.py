"""The state of one simulation, which the kernel writes. No simulating here."""

from typing import NamedTuple

import numpy as np

from tfplace.simulate.tables import Tables

_NODE = [  # of a queue
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
TRANSFERS = 0  # in `Workspace.counts`: transfers queued so far
EVENTS = 1  # events in the heap
WAKEUPS = 2  # entries of `wakeups`
GROWN = 3  # whether memory has been allocated in this instant
ENDS = 0  # in `Workspace.due_us`: the least of `end_us`
STARTS = 1  # the least of `start_us`


class Queues(NamedTuple):
  """Priority queues, one per device or channel; see `queues`.

  Attributes:
    head: [num_queues] int32 first node of the sorted list, -1 if empty.
    tail: [num_queues] int32 its last node; meaningless if empty.
    root: [num_queues] int32 root of the heap, -1 if empty.
    nodes: [num_nodes] records:
      time: first key.
      key: second key.
      left: next node in a list, or child in a heap; -1 where there is none.
      right: child in a heap, or -1.
      pending: of an op, inputs still missing.
      bytes, source, target: of a transfer.
      reader: the only one there of what a transfer carries, or -1.
      slot: what a transfer carries, -1 where only `reader` reads it.
  """

  head: np.ndarray
  tail: np.ndarray
  root: np.ndarray
  nodes: np.ndarray

  @property
  def time(self) -> np.ndarray:
    """[num_nodes] float64 of `nodes`."""
    return self.nodes["time"]

  @property
  def key(self) -> np.ndarray:
    """[num_nodes] int64 of `nodes`."""
    return self.nodes["key"]


class Workspace(NamedTuple):
  """State of one simulation; one per thread, reused from call to call.

  After `engine.simulate`, these hold the results:

  Attributes:
    peak_bytes: [num_devices] float64.
    busy_us: [num_devices] float64.
    moved_bytes: [1] float64.
    ops: what is ready on each device, ops and receives; where ops go by rank,
      receives have num_devices queues of their own behind. The first num_ops of
      `ops.time` are the starts of the ops, and number num_ops + i is that of
      transfer i's receive, where messages cost time of devices.
    ready_us: [num_ops] float64 when each op became ready, and
    ended_us: [num_devices] float64 when each device's last op ended; of use
      only where ops go by rank and messages cost time of devices.
    transfers: queued transfers, numbered as they were queued;
      `transfers.time` is the start and `transfers.key` is
      slot key * num_devices + destination of the first `counts[TRANSFERS]`.
    counts: [4] int64; see the constants above.
    left: [num_shared * num_devices] int32 readers, and on the producer's
      device transfers, that still need the bytes there.
    reader: [num_devices] int32 one of the readers there of a slot.
    running: [num_devices] int32 op; meaningless if none runs.
    end_us: [num_devices] float64 end of the running op, or infinity.
    free_us: [num_devices] float64 when it can start another one.
    start_us: [num_devices] float64 when it will, as far as is known.
    due_us: [2] float64, see the constants above; where it is no later than
      now, it may be out of date.
    load_us: [num_devices] float64 work that has not started, with the idle
      times after it; only where there is a cutoff.
    memory: [num_devices] float64 bytes in use.
    channel_us: [num_channels] float64 when each channel is free.
    channel_queued: [num_channels] uint8, whether it is in `wakeups` or has an
      event.
    wakeups: [num_channels] int32 channels to look at in this instant.
    event_us: [num_edges + num_channels] float64 heap of events.
    event_id: [num_edges + num_channels] int32, an arriving transfer, or
      -1 - channel.
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
  """Memory for simulations of `tables`, one at a time."""
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
