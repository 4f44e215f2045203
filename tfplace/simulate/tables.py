"""The arrays that the kernel reads and writes: `Tables` are a problem's
constants, a `Workspace` is the state of one simulation. No simulating here.
"""

from typing import NamedTuple

import numpy as np

from tfplace.graph.problem import Problem


class Tables(NamedTuple):
  """A problem, laid out for the kernel; read-only, shared by all threads.

  A slot is one (producer, output) that some op reads, control outputs
  included; slots are numbered in the order (producer, output).

  Attributes:
    num_ops: number of ops.
    num_devices: number of devices.
    time_us: [num_ops, num_devices] float64, NaN where an op cannot run.
    op_overhead_us: [num_devices] float64.
    persistent_bytes: [num_ops] float64.
    run_bytes: [num_ops] float64, held from start to end of an op: temporary
      memory and outputs that nobody reads.
    start_bytes: [num_ops] float64, `run_bytes` and the outputs that are read.
    in_degree: [num_ops] int32 number of incoming edges.
    sources: [?] int32 ops without inputs, by position.
    slot_offsets: [num_ops + 1] int32 slots of each producer.
    slot_src: [num_slots] int32 producer.
    slot_output: [num_slots] int32 its output, -1 for control.
    slot_bytes: [num_slots] float64, 0 for control.
    reader_offsets: [num_slots + 1] int32 into `readers`.
    readers: [num_edges] int32 consumers of each slot, by position.
    in_offsets: [num_ops + 1] int32 into `in_slots`.
    in_slots: [?] int32 slots above 0 bytes that each op reads.
    op_key: [num_ops] int64, position in the rules: how ready ops of one time
      are ordered.
    slot_key: [num_slots] int64, the same of slots, for queued transfers.
    slot_at: [num_slots] int32, the inverse of `slot_key`.
    bandwidth: [num_devices, num_devices] float64 bytes/us.
    latency_us: [num_devices, num_devices] float64.
    gap_us: [num_devices, num_devices] float64.
    channel: [num_devices, num_devices] int32, -1 where there is no link.
    memory_bytes: [num_devices] float64 capacities.
    tail_us: [num_ops] float64, the least time from an op's end to the step's.
  """

  num_ops: int
  num_devices: int
  time_us: np.ndarray
  op_overhead_us: np.ndarray
  persistent_bytes: np.ndarray
  run_bytes: np.ndarray
  start_bytes: np.ndarray
  in_degree: np.ndarray
  sources: np.ndarray
  slot_offsets: np.ndarray
  slot_src: np.ndarray
  slot_output: np.ndarray
  slot_bytes: np.ndarray
  reader_offsets: np.ndarray
  readers: np.ndarray
  in_offsets: np.ndarray
  in_slots: np.ndarray
  op_key: np.ndarray
  slot_key: np.ndarray
  slot_at: np.ndarray
  bandwidth: np.ndarray
  latency_us: np.ndarray
  gap_us: np.ndarray
  channel: np.ndarray
  memory_bytes: np.ndarray
  tail_us: np.ndarray


class Queues(NamedTuple):
  """Priority queues, one per device or channel; see `queues`.

  Attributes:
    head: [num_queues] int32 first node of the sorted list, -1 if empty.
    tail: [num_queues] int32 its last node; meaningless if empty.
    root: [num_queues] int32 root of the heap, -1 if empty.
    next: [num_nodes] int32 next node in a list, -1 at its end.
    left: [num_nodes] int32 child in a heap, or -1.
    right: [num_nodes] int32 child in a heap, or -1.
    time: [num_nodes] float64 first key.
    key: [num_nodes] int64 second key.
  """

  head: np.ndarray
  tail: np.ndarray
  root: np.ndarray
  next: np.ndarray
  left: np.ndarray
  right: np.ndarray
  time: np.ndarray
  key: np.ndarray


class Workspace(NamedTuple):
  """State of one simulation; one per thread, reused from call to call.

  After `engine.simulate`, these hold the results:

  Attributes:
    peak_bytes: [num_devices] float64.
    busy_us: [num_devices] float64.
    moved_bytes: [1] float64.
    ops: ready ops; `ops.time` is [num_ops], the start of every op.
    transfers: queued transfers, numbered as they were queued;
      `transfers.time` is the start and `transfers.key` is
      slot_key * num_devices + destination of the first `counts[TRANSFERS]`.
    counts: [3] int64; see the constants below.
    pending: [num_ops] int32 inputs still missing.
    left: [num_slots * num_devices] int32 readers, and on the producer's
      device transfers, that still need the bytes there.
    running: [num_devices] int32 op, or -1.
    device_us: [num_devices] float64 end of the running op; if there is none,
      when the device is free.
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
  transfers: Queues
  counts: np.ndarray
  pending: np.ndarray
  left: np.ndarray
  running: np.ndarray
  device_us: np.ndarray
  memory: np.ndarray
  channel_us: np.ndarray
  channel_queued: np.ndarray
  wakeups: np.ndarray
  event_us: np.ndarray
  event_id: np.ndarray


TRANSFERS = 0  # in `Workspace.counts`: transfers queued so far
EVENTS = 1  # events in the heap
WAKEUPS = 2  # entries of `wakeups`


def pack(problem: Problem, position: np.ndarray | None = None) -> Tables:
  """Lays out `problem` for the kernel: once, then many simulations.

  Args:
    problem: what is simulated.
    position: [num_ops] each op's position for the rules that order what
      happens at one time, where the ops have been renumbered; None is 0, 1,
      ...
  """
  graph, cluster = problem.graph, problem.cluster
  if position is None:
    position = np.arange(graph.num_ops)
  slots = _slots(problem, position)
  slot_at = np.lexsort((slots["slot_output"], position[slots["slot_src"]]))
  run, start = _held_bytes(problem, slots["slot_src"], slots["slot_bytes"])
  in_degree = np.bincount(graph.edge_dst, minlength=graph.num_ops)
  sources = np.flatnonzero(in_degree == 0)
  return Tables(
    num_ops=graph.num_ops,
    num_devices=cluster.num_devices,
    time_us=problem.time_us.astype(np.float64),
    op_overhead_us=cluster.op_overhead_us.astype(np.float64),
    persistent_bytes=graph.persistent_bytes.astype(np.float64),
    run_bytes=run,
    start_bytes=start,
    in_degree=in_degree.astype(np.int32),
    sources=sources[np.argsort(position[sources])].astype(np.int32),
    op_key=position.astype(np.int64),
    slot_key=np.argsort(slot_at).astype(np.int64),
    slot_at=slot_at.astype(np.int32),
    bandwidth=cluster.bandwidth.astype(np.float64),
    latency_us=cluster.latency_us.astype(np.float64),
    gap_us=cluster.gap_us.astype(np.float64),
    channel=cluster.channel.astype(np.int32),
    memory_bytes=cluster.memory_bytes.astype(np.float64),
    tail_us=_tails(problem),
    **slots,
  )


def _tails(problem: Problem) -> np.ndarray:
  """[num_ops] microseconds that no placement's step ends earlier after an op.

  The longest path, each op at its fastest. After an op that takes time, its
  reader waits for the idle gap here or for a transfer elsewhere.
  """
  graph, cluster = problem.graph, problem.cluster
  offsets, edges = graph.out_csr
  least_gap = np.full(graph.num_edges, cluster.op_overhead_us.min())
  if cluster.links:
    latency = min(link.latency_us for link in cluster.links)
    fastest = max(link.bandwidth_bytes_per_us for link in cluster.links)
    least_gap = np.minimum(least_gap, latency + graph.edge_bytes / fastest)
  least_gap[problem.fastest_us[graph.edge_src] <= 0] = 0.0
  gaps, times = least_gap[edges].tolist(), problem.fastest_us.tolist()
  readers, bounds = graph.edge_dst[edges].tolist(), offsets.tolist()
  tails = [0.0] * graph.num_ops
  for op in graph.topological_order[::-1].tolist():
    for i in range(bounds[op], bounds[op + 1]):
      reader = readers[i]
      tails[op] = max(tails[op], gaps[i] + times[reader] + tails[reader])
  # Sums in another order than the engine's may differ in the last digits.
  return np.array(tails) * (1 - 1e-9)


def _slots(problem: Problem, position: np.ndarray) -> dict[str, np.ndarray]:
  """The tables about slots."""
  graph = problem.graph
  by_src = np.lexsort(
    (position[graph.edge_dst], graph.edge_output, graph.edge_src)
  )
  src, output = graph.edge_src[by_src], graph.edge_output[by_src]
  is_first = np.ones(len(src), bool)
  is_first[1:] = (src[1:] != src[:-1]) | (output[1:] != output[:-1])
  first = np.flatnonzero(is_first)
  slot_src, slot_output = src[first], output[first]
  sizes = np.zeros(len(first))
  data = slot_output >= 0
  sizes[data] = graph.output_bytes[
    graph.output_offsets[slot_src[data]] + slot_output[data]
  ]
  slot_of = np.empty(len(src), np.int32)
  slot_of[by_src] = np.cumsum(is_first) - 1
  _, by_dst = graph.in_csr
  read = by_dst[sizes[slot_of[by_dst]] > 0]
  return {
    "slot_offsets": _offsets(slot_src, graph.num_ops),
    "slot_src": slot_src.astype(np.int32),
    "slot_output": slot_output.astype(np.int32),
    "slot_bytes": sizes,
    "reader_offsets": np.append(first, len(src)).astype(np.int32),
    "readers": graph.edge_dst[by_src].astype(np.int32),
    "in_offsets": _offsets(graph.edge_dst[read], graph.num_ops),
    "in_slots": slot_of[read].astype(np.int32),
  }


def _held_bytes(
  problem: Problem, slot_src: np.ndarray, slot_bytes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """`run_bytes` and `start_bytes` of `Tables`."""
  graph = problem.graph
  producer = np.repeat(np.arange(graph.num_ops), np.diff(graph.output_offsets))
  outputs = np.bincount(producer, graph.output_bytes, graph.num_ops)
  start = graph.temp_bytes + outputs
  read = np.bincount(slot_src, slot_bytes, graph.num_ops)
  return start - read, start


def _offsets(keys: np.ndarray, num_keys: int) -> np.ndarray:
  counts = np.bincount(keys, minlength=num_keys)
  return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def workspace(tables: Tables) -> Workspace:
  """Memory for simulations of `tables`, one at a time."""
  ops, devices = tables.num_ops, tables.num_devices
  edges, slots = len(tables.readers), len(tables.slot_bytes)
  channels = int(tables.channel.max()) + 1
  return Workspace(
    peak_bytes=np.zeros(devices),
    busy_us=np.zeros(devices),
    moved_bytes=np.zeros(1),
    ops=_queues(devices, ops, tables.op_key),
    transfers=_queues(channels, edges, np.zeros(edges, np.int64)),
    counts=np.zeros(3, np.int64),
    pending=np.zeros(ops, np.int32),
    left=np.zeros(slots * devices, np.int32),
    running=np.zeros(devices, np.int32),
    device_us=np.zeros(devices),
    memory=np.zeros(devices),
    channel_us=np.zeros(channels),
    channel_queued=np.zeros(channels, np.uint8),
    wakeups=np.zeros(channels, np.int32),
    event_us=np.zeros(edges + channels),
    event_id=np.zeros(edges + channels, np.int32),
  )


def _queues(num_queues: int, num_nodes: int, key: np.ndarray) -> Queues:
  return Queues(
    head=np.zeros(num_queues, np.int32),
    tail=np.zeros(num_queues, np.int32),
    root=np.zeros(num_queues, np.int32),
    next=np.zeros(num_nodes, np.int32),
    left=np.zeros(num_nodes, np.int32),
    right=np.zeros(num_nodes, np.int32),
    time=np.zeros(num_nodes),
    key=key,
  )
