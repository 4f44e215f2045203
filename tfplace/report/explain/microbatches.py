"""Bottlenecks of a microbatched step: the bubble and its causes.

The bubble is the idle time of devices. Each cause is quantified by a change of
the simulated step in a fixed order (as in `bottleneck`): balanced work of the
microbatches, free communication, an update that takes no time, no overhead.
Fill and drain of the pipeline is the time that devices wait for microbatches on
others, with balanced work and free communication.
"""

import collections
import dataclasses

import numpy as np

from tfplace.graph import phases
from tfplace.report.explain.bottleneck import FixedOrder, Times
from tfplace.report.parallelism import find_parallelism
from tfplace.report.rows import device_names
from tfplace.simulate import Schedule

BALANCE = "stage balance"
LINKS = "links"
THE_UPDATE = "the update"
FILL = "fill and drain"
OVERHEAD = "overhead of ops"
_WORKER_SHARE = 0.05  # least share of microbatch time of a worker's kind


@dataclasses.dataclass(frozen=True)
class DeviceShare:
  """Time of one device in a microbatched step, microseconds.

  Attributes:
    name: its short name.
    forward_us: forward passes.
    backward_us: backward passes.
    shared_us: the update and other work that all microbatches share.
    overhead_us: idle time after ops that took time.
    message_us: sends and receives that occupy the device.
    waiting_us: the rest.
  """

  name: str
  forward_us: float
  backward_us: float
  shared_us: float
  overhead_us: float
  message_us: float
  waiting_us: float


@dataclasses.dataclass(frozen=True)
class Limit:
  """One limit on the step time.

  Attributes:
    name: one of the names above.
    gain_us: reduction of the step time without it, at least 0; for "fill and
      drain", the mean waiting time of devices.
  """

  name: str
  gain_us: float


@dataclasses.dataclass(frozen=True, eq=False)
class MicrobatchReport:
  """Report on a microbatched step.

  Attributes:
    microbatches: their number.
    pattern: how devices share them; see `Parallelism`.
    followed: fraction of the work that follows the pattern.
    microbatch_us: [num_microbatches][num_devices] op time.
    bubble: mean idle fraction of the step over the devices of the kinds that
      run microbatches.
    devices: time of each device.
    tail_us: time after the end of all microbatches.
    limits: limits on the step time, largest first.
  """

  microbatches: int
  pattern: str
  followed: float
  microbatch_us: list[list[float]]
  bubble: float
  devices: tuple[DeviceShare, ...]
  tail_us: float
  limits: tuple[Limit, ...]


def report_microbatches(order: FixedOrder) -> MicrobatchReport | None:
  """Analyzes a microbatched step; returns None for a single microbatch."""
  schedule, step_us = order.schedule, order.schedule.step_time_us
  graph = schedule.placement.problem.graph
  if not phases.is_microbatched(graph):
    return None
  phase, parallel = phases.phases(graph), find_parallelism(schedule)
  workers = _workers(schedule, parallel.time_us.sum(axis=0))
  busy_us = float(schedule.busy_us[workers].mean())
  return MicrobatchReport(
    len(parallel.time_us),
    parallel.pattern,
    parallel.followed,
    parallel.time_us.tolist(),
    1.0 - busy_us / step_us if step_us > 0 else 0.0,
    _device_shares(schedule, order.times, phase),
    step_us - float(schedule.op_end_us[graph.microbatch >= 0].max()),
    _limits(order, phase, workers),
  )


def _workers(schedule: Schedule, microbatch_us: np.ndarray) -> np.ndarray:
  """Returns the devices of the kinds that run microbatches."""
  kinds = [d.kind for d in schedule.placement.problem.cluster.devices]
  of_kind: collections.Counter[str] = collections.Counter()
  for kind, us in zip(kinds, microbatch_us.tolist(), strict=True):
    of_kind[kind] += us
  least_us = _WORKER_SHARE * float(microbatch_us.sum())
  return np.flatnonzero([of_kind[kind] >= least_us for kind in kinds])


def _device_shares(
  schedule: Schedule, times: Times, phase: np.ndarray
) -> tuple[DeviceShare, ...]:
  sent, at = schedule.transfers, schedule.placement.devices
  count, step_us = len(schedule.memory), schedule.step_time_us
  forward, backward = (
    np.bincount(at, np.where(phase == which, times.op, 0.0), count)
    for which in (phases.FORWARD, phases.BACKWARD)
  )
  # The last op's overhead may extend beyond the step.
  overhead = np.minimum(times.overhead, step_us - schedule.op_end_us)
  overhead_us = np.bincount(at, overhead, count)
  message_us = np.bincount(
    sent.src, sent.send_end_us - sent.send_start_us, count
  ) + np.bincount(sent.dst, sent.recv_end_us - sent.recv_start_us, count)
  busy_us = np.bincount(at, times.op, count)
  waiting_us = np.maximum(step_us - busy_us - overhead_us - message_us, 0.0)
  shared = busy_us - forward - backward
  columns = (forward, backward, shared, overhead_us, message_us, waiting_us)
  rows = np.stack(columns, axis=1).tolist()
  names = device_names(schedule)
  return tuple(
    DeviceShare(name, *row) for name, row in zip(names, rows, strict=True)
  )


def _limits(
  order: FixedOrder, phase: np.ndarray, workers: np.ndarray
) -> tuple[Limit, ...]:
  times, remains = order.times, phase != phases.UPDATE
  even = _even(order, workers)
  gains = {
    BALANCE: order.gain_us(even),
    LINKS: order.gain_us(times.without_communication()),
    THE_UPDATE: order.gain_us(times.scaled(op=remains, overhead=remains)),
    OVERHEAD: order.gain_us(times.scaled(overhead=0)),
    # Another order may wait less, but never more than the current one.
    FILL: min(
      _waiting_us(order, x, workers)
      for x in (times, even.without_communication())
    ),
  }
  limits = (Limit(name, us) for name, us in gains.items())
  return tuple(sorted(limits, key=lambda limit: -limit.gain_us))


def _even(order: FixedOrder, workers: np.ndarray) -> Times:
  """Spreads the work of the microbatches evenly over the workers."""
  placement, times = order.schedule.placement, order.times
  divided = placement.problem.graph.microbatch >= 0
  count = len(order.schedule.memory)
  taken = np.where(divided, times.op + times.overhead, 0.0)
  taken_us = np.bincount(placement.devices, taken, count)
  some = workers[taken_us[workers] > 0]
  factor = np.ones(count)
  factor[some] = taken_us[workers].mean() / taken_us[some]
  factor = np.where(divided, factor[placement.devices], 1.0)
  return times.scaled(op=factor, overhead=factor)


def _waiting_us(order: FixedOrder, times: Times, workers: np.ndarray) -> float:
  """Returns the mean wait of workers until the last microbatch has ended."""
  placement = order.schedule.placement
  graph, at = placement.problem.graph, placement.devices
  divided = graph.microbatch >= 0
  start = order.starts_us(times)[: graph.num_ops]
  end = start + times.op + times.sends
  last_us = float(end[divided].max())
  taken = np.minimum(end + times.overhead, last_us) - start
  taken_us = np.bincount(at, np.maximum(taken, 0.0), len(order.schedule.memory))
  used = np.intersect1d(workers, at[divided & (times.op > 0)])
  waiting_us = np.maximum(last_us - taken_us[used], 0.0)
  return float(waiting_us.sum() / max(len(used), 1))
