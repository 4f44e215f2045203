"""Which device or link holds a placement back.

Each is made twice as fast, one after the other, with the placement and the
order of ops as they are: what is busy is not always on the critical path.

Simulated anew, a step can take longer on faster hardware, for each device runs
what is ready first and a change of order may make it worse (R. L. Graham,
"Bounds on multiprocessing timing anomalies", 1969). With the order of the ops
on each device and of the transfers on each channel fixed, the step is a longest
path, and nothing faster makes it longer.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from tfplace.core.problem import Problem
from tfplace.report.units import (
  channel_names,
  device_names,
)
from tfplace.simulate import Schedule
from tfplace.simulate.jit import kernel

DEVICE_KIND, LINK_KIND = "device", "link"
FASTER = 2.0  # speed of a device; bandwidth of a link, whose latency halves
_NONE = -1


class Times(NamedTuple):
  """How long everything takes, microseconds.

  Attributes:
    op: [num_ops] float64.
    overhead: [num_ops] float64, idle time of the device after the op.
    send: [num_transfers] float64.
    latency: [num_transfers] float64.
    gap: [num_transfers] float64, of the channel after the transfer.
  """

  op: np.ndarray
  overhead: np.ndarray
  send: np.ndarray
  latency: np.ndarray
  gap: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class FixedOrder:
  """The order of a step: nodes are its ops, then its transfers.

  Attributes:
    order: [num_nodes] nodes, each after all that it waits for.
    before: [num_nodes] the node before it on its device or channel, or -1.
    in_offsets: [num_nodes + 1] into `in_nodes`.
    in_nodes: the nodes whose output each needs.
  """

  order: np.ndarray
  before: np.ndarray
  in_offsets: np.ndarray
  in_nodes: np.ndarray

  def step_time_us(self, times: Times) -> float:
    """The step with other times, in this order."""
    ready = np.concatenate((times.op, times.send + times.latency))
    hold = np.concatenate((times.op + times.overhead, times.send + times.gap))
    start = np.zeros(len(self.order))
    waits = self.before, self.in_offsets, self.in_nodes
    _fill_starts(start, self.order, *waits, ready, hold)
    count = len(times.op)
    return float((start[:count] + times.op).max(initial=0.0))


def fixed_order(schedule: Schedule) -> FixedOrder:
  """The order of a simulated step."""
  moves, devices = schedule.transfers, schedule.placement.devices
  graph = schedule.placement.problem.graph
  rank = graph.topological_position
  holder = np.concatenate(
    (devices, moves.channel + schedule.placement.problem.cluster.num_devices)
  )
  # At one instant, what takes no time comes first, by the graph's own order.
  by_holder = np.lexsort(
    (
      np.concatenate((rank, rank[moves.src_op])),
      np.concatenate((schedule.op_end_us, moves.free_us)),
      np.concatenate((schedule.op_start_us, moves.start_us)),
      holder,
    )
  )
  before = np.full(len(holder), _NONE)
  same = holder[by_holder[1:]] == holder[by_holder[:-1]]
  before[by_holder[1:][same]] = by_holder[:-1][same]
  into, out_of = _inputs(schedule)
  offsets, in_nodes = _by_node(into, out_of, len(holder))
  waits = np.flatnonzero(before >= 0)
  after = _by_node(
    np.concatenate((out_of, before[waits])),
    np.concatenate((into, waits)),
    len(holder),
  )
  order = np.zeros(len(holder), np.int64)
  missing = np.diff(offsets) + (before >= 0)
  _fill_order(order, missing, *after)
  return FixedOrder(order, before, offsets, in_nodes)


def times_on(problem: Problem, schedule: Schedule) -> Times:
  """What the ops and transfers of a step take on a problem's hardware.

  Args:
    problem: of the same ops, with the same devices first.
    schedule: the step.
  """
  moves, devices = schedule.transfers, schedule.placement.devices
  cluster, ends = problem.cluster, (schedule.transfers.src, moves.dst)
  op_us = problem.time_us[np.arange(len(devices)), devices]
  return Times(
    op=op_us,
    overhead=np.where(op_us > 0, cluster.op_overhead_us[devices], 0.0),
    send=moves.num_bytes / cluster.bandwidth[ends],
    latency=cluster.latency_us[ends],
    gap=cluster.gap_us[ends],
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
      latency; launch gaps and gaps between transfers stay.
    gain_us: how much shorter that step is, 0 or more.
  """

  kind: str
  name: str
  index: int
  busy_us: float
  if_twice_as_fast_us: float
  gain_us: float


def find_loads(schedule: Schedule) -> tuple[Load, ...]:
  """Every device that computes and every link that sends, by their gain."""
  order = fixed_order(schedule)
  times = times_on(schedule.placement.problem, schedule)
  now_us = order.step_time_us(times)
  loads = []
  for kind, index, name, busy_us in _busy(schedule):
    faster = _faster(schedule, times, kind, index)
    step_us = min(now_us, order.step_time_us(faster))
    loads.append(Load(kind, name, index, busy_us, step_us, now_us - step_us))
  return tuple(sorted(loads, key=lambda load: (-load.gain_us, -load.busy_us)))


def _busy(schedule: Schedule) -> list[tuple[str, int, str, float]]:
  """Kind, index, name and busy time of all that does something."""
  result = []
  for i, name in enumerate(device_names(schedule)):
    if i in schedule.placement.devices:
      result.append((DEVICE_KIND, i, name, float(schedule.busy_us[i])))
  busy_us, names = link_busy_us(schedule), channel_names(schedule)
  for i in np.unique(schedule.transfers.channel).tolist():
    result.append((LINK_KIND, i, names[i], float(busy_us[i])))
  return result


def link_busy_us(schedule: Schedule) -> np.ndarray:
  """[num_channels] float64: time that each channel sends."""
  moves = schedule.transfers
  return np.bincount(
    moves.channel,
    moves.sent_us - moves.start_us,
    schedule.placement.problem.cluster.num_channels,
  )


def _faster(schedule: Schedule, times: Times, kind: str, index: int) -> Times:
  if kind == DEVICE_KIND:
    factor = np.where(schedule.placement.devices == index, 1 / FASTER, 1.0)
    return times._replace(op=times.op * factor)
  factor = np.where(schedule.transfers.channel == index, 1 / FASTER, 1.0)
  return times._replace(
    send=times.send * factor, latency=times.latency * factor
  )


def _by_node(
  node: np.ndarray, value: np.ndarray, num_nodes: int
) -> tuple[np.ndarray, np.ndarray]:
  """Values by node: offsets [num_nodes + 1], values."""
  counts = np.bincount(node, minlength=num_nodes)
  offsets = np.concatenate(([0], np.cumsum(counts)))
  return offsets, value[np.argsort(node, kind="stable")]


def _inputs(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
  """Pairs of a node and one whose output it needs."""
  moves, graph = schedule.transfers, schedule.placement.problem.graph
  transfer = schedule.transfer_of_edge
  source = np.where(transfer < 0, graph.edge_src, graph.num_ops + transfer)
  into = np.concatenate((graph.edge_dst, graph.num_ops + np.arange(len(moves))))
  out_of = np.concatenate((source, moves.src_op))
  return into, out_of


@kernel
def _fill_order(
  order: np.ndarray,
  missing: np.ndarray,
  out_offsets: np.ndarray,
  out_nodes: np.ndarray,
) -> None:
  """[num_nodes] nodes, each after those that it waits for (Kahn)."""
  count = 0
  for node in range(len(missing)):
    if missing[node] == 0:
      order[count] = node
      count += 1
  for i in range(len(order)):
    node = order[i]
    for j in range(out_offsets[node], out_offsets[node + 1]):
      missing[out_nodes[j]] -= 1
      if missing[out_nodes[j]] == 0:
        order[count] = out_nodes[j]
        count += 1


@kernel
def _fill_starts(
  start: np.ndarray,
  order: np.ndarray,
  before: np.ndarray,
  in_offsets: np.ndarray,
  in_nodes: np.ndarray,
  ready: np.ndarray,
  hold: np.ndarray,
) -> None:
  """[num_nodes] when each starts, as early as its order allows."""
  for node in order:
    earliest = 0.0
    if before[node] >= 0:
      earliest = start[before[node]] + hold[before[node]]
    for i in range(in_offsets[node], in_offsets[node + 1]):
      needed = in_nodes[i]
      earliest = max(earliest, start[needed] + ready[needed])
    start[node] = earliest
