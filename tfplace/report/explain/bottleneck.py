"""Which device or link holds a placement back: each is made twice as fast, one
after the other, with the placement and the order of ops as they are.

What is busy is not always on the critical path. Simulated anew, a step can take
longer on faster hardware, for each device runs what is ready first and a change
of order may make it worse (R. L. Graham, "Bounds on multiprocessing timing
anomalies", 1969). With the order on each device and channel fixed, the step is
a longest path, and nothing faster makes it longer.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from tfplace.core.paths import topological_order
from tfplace.core.problem import Problem
from tfplace.report.rows import DEVICE, step_rows
from tfplace.simulate import Schedule
from tfplace.simulate.jit import kernel
from tfplace.simulate.links import receive_us, send_us

FASTER = 2.0  # speed of a device; bandwidth of a link, whose latency halves


class Times(NamedTuple):
  """How long everything takes, microseconds.

  Attributes:
    op: [num_ops] float64.
    sends: [num_ops] float64, of the device, after the op.
    overhead: [num_ops] float64, idle time of the device after both.
    transfer: [num_transfers] float64.
    latency: [num_transfers] float64.
    gap: [num_transfers] float64, of the channel after the transfer.
    receive: [num_receives] float64, of the device.
  """

  op: np.ndarray
  sends: np.ndarray
  overhead: np.ndarray
  transfer: np.ndarray
  latency: np.ndarray
  gap: np.ndarray
  receive: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class FixedOrder:
  """The order of a step: nodes are its ops, then its transfers, then the
  receives that take time of a device.

  Attributes:
    order: [num_nodes] nodes, each after all that it waits for.
    in_offsets: [num_nodes + 1] into `in_nodes`.
    in_nodes: what each waits for: node i, to have its output, or
      num_nodes + i, to have its device or channel.
  """

  order: np.ndarray
  in_offsets: np.ndarray
  in_nodes: np.ndarray

  def step_time_us(self, times: Times) -> float:
    """The step with other times, in this order."""
    us = times.op + times.sends
    return float((self.starts_us(times)[: len(us)] + us).max(initial=0.0))

  def starts_us(self, times: Times) -> np.ndarray:
    """[num_nodes] when each starts, as early as its order allows."""
    us = times.op + times.sends
    ready = us, times.transfer + times.latency, times.receive
    free = us + times.overhead, times.transfer + times.gap, times.receive
    delay = np.concatenate((*ready, *free))
    start = np.zeros(len(self.order))
    _fill_starts(start, self.order, self.in_offsets, self.in_nodes, delay)
    return start


def fixed_order(schedule: Schedule) -> FixedOrder:
  """The order of a simulated step."""
  sent, graph = schedule.transfers, schedule.placement.problem.graph
  received = np.flatnonzero(sent.is_received)
  transfers = graph.num_ops + np.arange(len(sent))
  receives = graph.num_ops + len(sent) + np.arange(len(received))
  num_nodes = graph.num_ops + len(sent) + len(received)
  # A reader waits for the producer, or for the transfer or its receive.
  brings = transfers.copy()
  brings[received] = receives
  at = schedule.transfer_of_edge
  source = np.where(at < 0, graph.edge_src, np.append(brings, -1)[at])
  behind, ahead = _neighbours(schedule)
  into = np.concatenate((graph.edge_dst, transfers, receives, behind))
  out_of = np.concatenate(
    (source, sent.src_op, transfers[received], ahead + num_nodes)
  )
  in_offsets, in_nodes = _by_node(into, out_of, num_nodes)
  order = topological_order(*_by_node(out_of % num_nodes, into, num_nodes))
  return FixedOrder(order, in_offsets, in_nodes)


def _neighbours(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
  """Nodes, and the one that runs before each on its device or channel."""
  sent, problem = schedule.transfers, schedule.placement.problem
  received = np.flatnonzero(sent.is_received)
  channels = sent.channel + problem.cluster.num_devices
  holder = (schedule.placement.devices, channels, sent.dst[received])
  starts = schedule.op_start_us, sent.start_us, sent.recv_start_us[received]
  ends = schedule.op_end_us, sent.free_us, sent.recv_end_us[received]
  # At one instant, what takes no time comes first, by the graph's own order.
  rank = problem.graph.topological_position
  ranks = rank, rank[sent.src_op], rank[sent.src_op[received]]
  keys = [np.concatenate(parts) for parts in (ranks, ends, starts, holder)]
  in_turn = np.lexsort(keys)
  of = keys[-1][in_turn]
  same = of[1:] == of[:-1]
  return in_turn[1:][same], in_turn[:-1][same]


def _by_node(
  node: np.ndarray, value: np.ndarray, num_nodes: int
) -> tuple[np.ndarray, np.ndarray]:
  """Values by node: offsets [num_nodes + 1], values."""
  counts = np.bincount(node, minlength=num_nodes)
  offsets = np.concatenate(([0], np.cumsum(counts)))
  return offsets, value[np.argsort(node, kind="stable")]


@kernel
def _fill_starts(
  start: np.ndarray,
  order: np.ndarray,
  in_offsets: np.ndarray,
  in_nodes: np.ndarray,
  delay: np.ndarray,
) -> None:
  """Fills `start` [num_nodes]; `delay` [2 * num_nodes] as `in_nodes` has it."""
  for node in order:
    for i in range(in_offsets[node], in_offsets[node + 1]):
      needed = in_nodes[i]
      earliest = start[needed % len(start)] + delay[needed]
      start[node] = max(start[node], earliest)


def times_on(problem: Problem, schedule: Schedule) -> Times:
  """What the ops and transfers of a step take on a problem's hardware.

  Args:
    problem: of the same ops, with the same devices first.
    schedule: the step.
  """
  sent, devices = schedule.transfers, schedule.placement.devices
  cluster, ends = problem.cluster, (sent.src, sent.dst)
  op_us = problem.time_us[np.arange(len(devices)), devices]
  sends_us = send_us(cluster, sent.num_bytes, *ends)
  return Times(
    op=op_us,
    sends=np.bincount(sent.src_op, sends_us, len(devices)),
    overhead=np.where(op_us > 0, cluster.op_overhead_us[devices], 0.0),
    transfer=sent.num_bytes / cluster.bandwidth[ends],
    latency=cluster.latency_us[ends],
    gap=cluster.gap_us[ends],
    receive=receive_us(cluster, sent.num_bytes, *ends)[sent.is_received],
  )


@dataclasses.dataclass(frozen=True)
class Load:
  """The work of one device or link in a step, and the gain of a faster one.

  Attributes:
    kind: "device" or "link".
    name: its short name.
    index: of the device or channel.
    busy_us: computing, or sending.
    if_twice_as_fast_us: the step in the same order with this device's ops in
      half the time, or this link with twice the bandwidth and half the
      latency; overheads, gaps, sends and receives stay.
    gain_us: how much shorter that step is, 0 or more.
  """

  kind: str
  name: str
  index: int
  busy_us: float
  if_twice_as_fast_us: float
  gain_us: float


def find_loads(schedule: Schedule) -> tuple[Load, ...]:
  """Every device with ops and every link that sends, by their gain."""
  order = fixed_order(schedule)
  times = times_on(schedule.placement.problem, schedule)
  now_us = order.step_time_us(times)
  loads = []
  for row in step_rows(schedule):
    if len(row.items):
      faster = _faster(schedule, times, row.kind, row.index)
      us = min(now_us, order.step_time_us(faster))
      loads.append(
        Load(row.kind, row.name, row.index, row.busy_us, us, now_us - us)
      )
  return tuple(sorted(loads, key=lambda load: (-load.gain_us, -load.busy_us)))


def _faster(schedule: Schedule, times: Times, kind: str, index: int) -> Times:
  if kind == DEVICE:
    factor = np.where(schedule.placement.devices == index, 1 / FASTER, 1.0)
    return times._replace(op=times.op * factor)
  factor = np.where(schedule.transfers.channel == index, 1 / FASTER, 1.0)
  return times._replace(
    transfer=times.transfer * factor, latency=times.latency * factor
  )
