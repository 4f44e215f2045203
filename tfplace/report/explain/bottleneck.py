"""Sensitivity of the step time to the speed of each device and link.

Each device and link is made twice as fast, one at a time, with the same
placement and order of ops. Being busy is not the same as being critical. A new
simulation could even take longer on faster hardware, because devices run ready
ops first and a changed order can be worse (R. L. Graham, "Bounds on
multiprocessing timing anomalies", 1969). With a fixed order on each device and
channel, the step time is a longest path, which faster hardware never lengthens.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from tfplace.graph.csr import csr, topological_order
from tfplace.report.rows import DEVICE, step_rows
from tfplace.simulate import Schedule
from tfplace.simulate.jit import kernel
from tfplace.simulate.links import receive_us, send_us

FASTER = 2.0  # speed of a device; bandwidth of a link, whose latency halves


class Times(NamedTuple):
  """Durations in microseconds.

  Attributes:
    op: [num_ops] float64.
    sends: [num_ops] float64 device time for sends after the op.
    overhead: [num_ops] float64 idle time of the device after both.
    transfer: [num_transfers] float64.
    latency: [num_transfers] float64.
    gap: [num_transfers] float64 channel time after the transfer.
    receive: [num_receives] float64 device time.
  """

  op: np.ndarray
  sends: np.ndarray
  overhead: np.ndarray
  transfer: np.ndarray
  latency: np.ndarray
  gap: np.ndarray
  receive: np.ndarray

  def scaled(self, **factors: float | np.ndarray) -> "Times":
    """Multiplies some of the durations."""
    return self._replace(
      **{name: getattr(self, name) * by for name, by in factors.items()}
    )

  def without_communication(self) -> "Times":
    """Returns the durations with free communication."""
    return self.scaled(sends=0, transfer=0, latency=0, gap=0, receive=0)


def _times(schedule: Schedule) -> Times:
  """Returns the durations of a step."""
  sent, devices = schedule.transfers, schedule.placement.devices
  problem, ends = schedule.placement.problem, (sent.src, sent.dst)
  cluster = problem.cluster
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


class FixedOrder:
  """Order of a simulated step, as a graph of ops, transfers and receives.

  Nodes are the ops, then the transfers, then the receives. Each waits for its
  inputs and for the node before it on its device or channel.

  Attributes:
    schedule: the step.
    times: its durations.
    step_us: its step time in this order.
  """

  def __init__(self, schedule: Schedule) -> None:
    self.schedule = schedule
    sent, graph = schedule.transfers, schedule.placement.problem.graph
    received = np.flatnonzero(sent.is_received)
    transfers = graph.num_ops + np.arange(len(sent))
    receives = graph.num_ops + len(sent) + np.arange(len(received))
    num_nodes = graph.num_ops + len(sent) + len(received)
    # A reader waits for the producer, the transfer or its receive.
    brings = transfers.copy()
    brings[received] = receives
    at = schedule.transfer_of_edge
    source = np.where(at < 0, graph.edge_src, np.append(brings, -1)[at])
    behind, ahead = _neighbors(schedule)
    into = np.concatenate((graph.edge_dst, transfers, receives, behind))
    # A node is i if its output is needed, num_nodes + i if its device is.
    out_of = np.concatenate(
      (source, sent.src_op, transfers[received], ahead + num_nodes)
    )
    self._in_offsets, by_node = csr(into, num_nodes)
    self._in_nodes = out_of[by_node]
    out_offsets, by_node = csr(out_of % num_nodes, num_nodes)
    self._order = topological_order(out_offsets, into[by_node])
    self.times = _times(schedule)
    self.step_us = self.step_time_us(self.times)

  def step_time_us(self, times: Times) -> float:
    """Returns the step time with other durations in this order."""
    us = times.op + times.sends
    return float((self.starts_us(times)[: len(us)] + us).max(initial=0.0))

  def gain_us(self, times: Times) -> float:
    """Returns the reduction of the step time by other durations, at least 0."""
    return max(0.0, self.step_us - self.step_time_us(times))

  def starts_us(self, times: Times) -> np.ndarray:
    """Returns the [num_nodes] earliest start times."""
    us = times.op + times.sends
    ready = us, times.transfer + times.latency, times.receive
    free = us + times.overhead, times.transfer + times.gap, times.receive
    delay = np.concatenate((*ready, *free))
    start = np.zeros(len(self._order))
    _fill_starts(start, self._order, self._in_offsets, self._in_nodes, delay)
    return start


def _neighbors(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
  """Pairs each node with the node before it on its device or channel."""
  sent, problem = schedule.transfers, schedule.placement.problem
  received = np.flatnonzero(sent.is_received)
  channels = sent.channel + problem.cluster.num_devices
  holder = (schedule.placement.devices, channels, sent.dst[received])
  starts = schedule.op_start_us, sent.start_us, sent.recv_start_us[received]
  ends = schedule.op_end_us, sent.free_us, sent.recv_end_us[received]
  # At one instant, items without duration come first, in the graph's order.
  rank = problem.graph.topological_position
  ranks = rank, rank[sent.src_op], rank[sent.src_op[received]]
  keys = [np.concatenate(parts) for parts in (ranks, ends, starts, holder)]
  in_turn = np.lexsort(keys)
  of = keys[-1][in_turn]
  same = of[1:] == of[:-1]
  return in_turn[1:][same], in_turn[:-1][same]


@kernel
def _fill_starts(
  start: np.ndarray,
  order: np.ndarray,
  in_offsets: np.ndarray,
  in_nodes: np.ndarray,
  delay: np.ndarray,
) -> None:
  """Fills `start` [num_nodes] from `delay` [2 * num_nodes] by `in_nodes`."""
  for node in order:
    for i in range(in_offsets[node], in_offsets[node + 1]):
      needed = in_nodes[i]
      earliest = start[needed % len(start)] + delay[needed]
      start[node] = max(start[node], earliest)


@dataclasses.dataclass(frozen=True)
class Load:
  """Work of one device or link, and the gain from doubling its speed.

  Attributes:
    kind: "device" or "link".
    name: its short name.
    index: index of the device or channel.
    busy_us: time computing or sending.
    if_twice_as_fast_us: step time in the same order with half the op times on
      this device, or with twice the bandwidth and half the latency of this
      link; overheads, gaps, sends and receives are unchanged.
    gain_us: reduction of the step time, at least 0.
  """

  kind: str
  name: str
  index: int
  busy_us: float
  if_twice_as_fast_us: float
  gain_us: float


def find_loads(order: FixedOrder) -> tuple[Load, ...]:
  """Lists all devices with ops and links in use, by decreasing gain."""
  schedule, loads = order.schedule, []
  for row in step_rows(schedule):
    if not len(row.items):
      continue
    if row.kind == DEVICE:
      holder, names = schedule.placement.devices, ["op"]
    else:
      holder, names = schedule.transfers.channel, ["transfer", "latency"]
    factor = np.where(holder == row.index, 1 / FASTER, 1.0)
    gain_us = order.gain_us(order.times.scaled(**dict.fromkeys(names, factor)))
    us = order.step_us - gain_us
    loads.append(Load(row.kind, row.name, row.index, row.busy_us, us, gain_us))
  return tuple(sorted(loads, key=lambda load: (-load.gain_us, -load.busy_us)))
