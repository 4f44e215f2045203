"""Schedules: the times of all ops and transfers, memory, critical path.

Schedules serve reports, while searches call the kernel directly. The kernel
counts memory as time passes. A schedule sums intervals instead, so the two
results check each other.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from tfplace.graph.paths import transfers
from tfplace.graph.placement import Placement
from tfplace.simulate import engine
from tfplace.simulate.links import receive_us, send_us, transfer_ends
from tfplace.simulate.tables import Tables
from tfplace.simulate.workspace import TRANSFERS, Workspace


class MemoryCurve(NamedTuple):
  """Memory use of a device as a step function of time.

  Attributes:
    time_us: [num_steps] float64, ascending from 0.
    num_bytes: [num_steps] float64 in use from `time_us[i]` on.
  """

  time_us: np.ndarray
  num_bytes: np.ndarray


class MemoryBlocks(NamedTuple):
  """Bytes that devices hold for a part of the step, besides persistent ones.

  Each array is [num_blocks]: outputs, copies of them on other devices, and
  temporary memory.

  Attributes:
    op: int64 op that allocates the block; of a copy, its producer.
    device: int64 device that holds it.
    num_bytes: float64.
    start_us: float64 allocation.
    end_us: float64 release.
    is_temporary: bool; True for temporary memory of the op.
  """

  op: np.ndarray
  device: np.ndarray
  num_bytes: np.ndarray
  start_us: np.ndarray
  end_us: np.ndarray
  is_temporary: np.ndarray


def memory_blocks(
  tables: Tables,
  devices: np.ndarray,
  *,
  op_start_us: np.ndarray,
  op_end_us: np.ndarray,
  sent: "Transfers",
  transfer_key: np.ndarray,
  temp_bytes: np.ndarray,
) -> MemoryBlocks:
  """Lists what each device holds by rule 6 (memory) of docs/simulation.md.

  Args:
    tables: packed problem from `pack`.
    devices: [num_ops] int32.
    op_start_us: [num_ops] float64.
    op_end_us: [num_ops] float64.
    sent: the transfers.
    transfer_key: [num_transfers] slot * num_devices + destination.
    temp_bytes: [num_ops] float64.
  """
  slots, num_slots = tables.slots, len(tables.slots)
  source = devices[slots["src"]]
  home = np.arange(num_slots) * tables.num_devices + source
  slot = transfer_key // tables.num_devices

  until = np.zeros(num_slots * tables.num_devices)
  reader_slot = np.repeat(
    np.arange(num_slots), slots["readers_end"] - slots["readers"]
  )
  reader_key = reader_slot * tables.num_devices + devices[tables.readers]
  np.maximum.at(until, reader_key, op_end_us[tables.readers])
  np.maximum.at(until, home, op_end_us[slots["src"]])
  np.maximum.at(until, home[slot], sent.arrival_us)

  read = np.bincount(slots["src"], slots["bytes"], tables.num_ops)
  unread = tables.ops["start_bytes"] - read - temp_bytes
  ops = np.arange(tables.num_ops)
  groups = (  # The columns are op, device, bytes, start and end.
    (ops, devices, temp_bytes, op_start_us, op_end_us),
    (ops, devices, unread, op_start_us, op_end_us),
    (
      slots["src"],
      source,
      slots["bytes"],
      op_start_us[slots["src"]],
      until[home],
    ),
    (
      slots["src"][slot],
      transfer_key % tables.num_devices,
      slots["bytes"][slot],
      sent.start_us,
      until[transfer_key],
    ),
  )
  columns = list(map(np.concatenate, zip(*groups, strict=True)))
  is_temporary = np.arange(len(columns[0])) < tables.num_ops
  some = columns[2] > 0
  return MemoryBlocks(*(c[some] for c in (*columns, is_temporary)))


def memory_curves(
  tables: Tables, devices: np.ndarray, blocks: MemoryBlocks
) -> list[MemoryCurve]:
  """Sums each device's persistent bytes and blocks over time.

  Args:
    tables: packed problem from `pack`.
    devices: [num_ops] int32.
    blocks: result of `memory_blocks`.
  """
  always = np.bincount(devices, tables.persistent_bytes, tables.num_devices)
  curves = []
  for d in range(tables.num_devices):
    here = blocks.device == d
    parts = (blocks.num_bytes, blocks.start_us, blocks.end_us)
    curves.append(_curve(always[d], *(part[here] for part in parts)))
  return curves


def _curve(
  always: float, size: np.ndarray, start: np.ndarray, end: np.ndarray
) -> MemoryCurve:
  some = size > 0
  times = np.concatenate(([0.0], start[some], end[some]))
  changes = np.concatenate(([always], size[some], -size[some]))
  # Sum all changes of an instant, because frees precede allocations.
  instants, at = np.unique(times, return_inverse=True)
  return MemoryCurve(
    instants, np.cumsum(np.bincount(at, changes, len(instants)))
  )


@dataclasses.dataclass(frozen=True, eq=False)
class Transfers:
  """The transfers of a step, in queue order.

  Attributes:
    src_op: [num_transfers] int32 producer.
    output: [num_transfers] int32 output of the producer, -1 for control.
    src: [num_transfers] int32 sending device.
    dst: [num_transfers] int32 receiving device.
    channel: [num_transfers] int32.
    num_bytes: [num_transfers] float64.
    start_us: [num_transfers] float64 start on the channel.
    sent_us: [num_transfers] float64 start + bytes / bandwidth.
    arrival_us: [num_transfers] float64 `sent_us` + latency.
    free_us: [num_transfers] float64 time when the channel is free again.
    send_start_us: [num_transfers] float64 start of the send on the producer's
      device, after the op's own time.
    send_end_us: [num_transfers] float64 end of that send.
    recv_start_us: [num_transfers] float64 start of the receive; the arrival if
      there is no receive.
    recv_end_us: [num_transfers] float64 time when the input reaches readers.
  """

  src_op: np.ndarray
  output: np.ndarray
  src: np.ndarray
  dst: np.ndarray
  channel: np.ndarray
  num_bytes: np.ndarray
  start_us: np.ndarray
  sent_us: np.ndarray
  arrival_us: np.ndarray
  free_us: np.ndarray
  send_start_us: np.ndarray
  send_end_us: np.ndarray
  recv_start_us: np.ndarray
  recv_end_us: np.ndarray

  @property
  def is_received(self) -> np.ndarray:
    """[num_transfers] bool; True if receiving occupies the destination."""
    return self.recv_end_us > self.arrival_us

  def __len__(self) -> int:
    return len(self.src_op)


@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
  """The events of one simulated step.

  Attributes:
    placement: simulated placement.
    step_time_us: step time by rule 5 (step time) of docs/simulation.md.
    op_start_us: [num_ops] float64.
    op_end_us: [num_ops] float64 end of each op, including its sends.
    transfers: all transfers.
    peak_memory_bytes: [num_devices] float64.
    busy_us: [num_devices] float64 op time without overhead.
    memory: one curve per device.
    blocks: what the curves sum up, besides persistent bytes.
  """

  placement: Placement
  step_time_us: float
  op_start_us: np.ndarray
  op_end_us: np.ndarray
  transfers: Transfers
  peak_memory_bytes: np.ndarray
  busy_us: np.ndarray
  memory: tuple[MemoryCurve, ...]
  blocks: MemoryBlocks

  @functools.cached_property
  def transfer_of_edge(self) -> np.ndarray:
    """[num_edges] int64 transfer of each edge, -1 within a device."""
    sent = self.transfers
    graph, devices = self.placement.problem.graph, self.placement.devices
    _, transfer_of = transfers(graph, devices)
    # Convert from the order of keys to queue order.
    number = np.lexsort((sent.dst, sent.output, sent.src_op))
    is_sent = transfer_of >= 0
    transfer_of[is_sent] = number[transfer_of[is_sent]]
    return transfer_of


def make_schedule(
  placement: Placement, tables: Tables, work: Workspace
) -> Schedule:
  """Simulates a placement and reads all times from the workspace."""
  devices = placement.devices.copy()
  batch = engine.simulate_one(tables, devices, work)
  start = work.nodes["time"][: tables.num_ops].copy()
  computed = start + placement.problem.time_us[np.arange(len(devices)), devices]
  first, count = tables.num_ops, int(work.counts[TRANSFERS])
  key = work.nodes["key"][first : first + count]
  sent, end = _transfers(placement, tables, work, key=key, computed=computed)
  blocks = memory_blocks(
    tables,
    devices,
    op_start_us=start,
    op_end_us=end,
    sent=sent,
    transfer_key=key,
    temp_bytes=placement.problem.graph.temp_bytes,
  )
  return Schedule(
    placement=placement,
    step_time_us=float(batch.step_time_us[0]),
    op_start_us=start,
    op_end_us=end,
    transfers=sent,
    peak_memory_bytes=batch.peak_memory_bytes[0],
    busy_us=batch.busy_us[0],
    memory=tuple(memory_curves(tables, devices, blocks)),
    blocks=blocks,
  )


def _transfers(
  placement: Placement,
  tables: Tables,
  work: Workspace,
  *,
  key: np.ndarray,
  computed: np.ndarray,
) -> tuple[Transfers, np.ndarray]:
  """Reads the transfers, and the [num_ops] ends of ops with their sends.

  Args:
    key: [num_transfers] slot key * num_devices + destination.
    computed: [num_ops] end of each op's own time.
  """
  graph, cluster = placement.problem.graph, placement.problem.cluster
  rank, dst = np.divmod(key, tables.num_devices)
  slot = np.argsort(tables.slots["key"])[rank]
  output = np.unique(np.stack((graph.edge_src, graph.edge_output)), axis=1)[1]
  src_op, num_bytes = tables.slots["src"][slot], tables.slots["bytes"][slot]
  src = placement.devices[src_op]
  first, receives = tables.num_ops, tables.num_ops + len(tables.readers)
  start = work.nodes["time"][first : first + len(key)].copy()
  sent, arrival, free = transfer_ends(cluster, start, num_bytes, src, dst)
  before, after, end = _sends(
    key, src_op, send_us(cluster, num_bytes, src, dst), computed
  )
  taken = receive_us(cluster, num_bytes, src, dst)
  recv_start = arrival.copy()
  if tables.has_message_costs:
    nodes = work.nodes["time"][receives : receives + len(key)]
    recv_start = np.where(taken > 0, nodes, arrival)
  transfers = Transfers(
    src_op=src_op,
    output=output[slot].astype(np.int32),
    src=src,
    dst=dst.astype(np.int32),
    channel=cluster.channel[src, dst],
    num_bytes=num_bytes,
    start_us=start,
    sent_us=sent,
    arrival_us=arrival,
    free_us=free,
    send_start_us=before,
    send_end_us=after,
    recv_start_us=recv_start,
    recv_end_us=recv_start + taken,
  )
  return transfers, end


def _sends(
  key: np.ndarray, src_op: np.ndarray, taken: np.ndarray, computed: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the start and end of each send and the [num_ops] ends of ops.

  The sends of an op follow its own time in the order of `key`. Their times are
  summed before the sum is added to the op's end, as in the engine.
  """
  total = np.zeros(len(computed))
  before, after = np.empty(len(key)), np.empty(len(key))
  for i in np.argsort(key):
    op = src_op[i]
    before[i] = computed[op] + total[op]
    total[op] += taken[i]
    after[i] = computed[op] + total[op]
  return before, after, computed + total
