"""Bottlenecks of a microbatched step: the bubble and its causes.

The bubble is the idle time of devices. Each cause is quantified by a change of
the simulated step in a fixed order (as in `bottleneck`): balanced work of the
microbatches, free communication, an update that takes no time, no overhead.
Fill and drain of the pipeline is the time that devices wait for microbatches on
others, with balanced work and free communication.
"""

import dataclasses

import numpy as np

from tfplace.core import phases
from tfplace.report.explain.bottleneck import (
  Times,
  fixed_order,
  times_on,
)
from tfplace.report.explain.config import CONFIG
from tfplace.report.explain.microbatches.parallelism import (
  Parallelism,
  find_parallelism,
)
from tfplace.report.rows import device_names
from tfplace.simulate import Schedule

BALANCE = "stage balance"
LINKS = "links"
THE_UPDATE = "the update"
FILL = "fill and drain"
OVERHEAD = "overhead of ops"


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

  @property
  def own_us(self) -> float:
    """Computation time of microbatches."""
    return self.forward_us + self.backward_us

  @property
  def busy_us(self) -> float:
    """Computation time."""
    return self.own_us + self.shared_us


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
    step_time_us: the step time.
    parallelism: distribution of the microbatches over devices.
    devices: time of each device.
    workers: devices of the kinds that run microbatches.
    limits: limits on the step time, largest first.
    tail_us: time after the end of all microbatches.
  """

  step_time_us: float
  parallelism: Parallelism
  devices: tuple[DeviceShare, ...]
  workers: tuple[int, ...]
  limits: tuple[Limit, ...]
  tail_us: float

  @property
  def num_microbatches(self) -> int:
    return len(self.parallelism.time_us)

  @property
  def bubble(self) -> float:
    """Mean idle fraction of the step over the workers."""
    whole_us = self.step_time_us * len(self.workers)
    busy_us = sum(self.devices[i].busy_us for i in self.workers)
    return 1.0 - busy_us / whole_us if whole_us > 0 else 0.0


def report_microbatches(schedule: Schedule) -> MicrobatchReport | None:
  """Analyzes a microbatched step; returns None for a single microbatch."""
  graph = schedule.placement.problem.graph
  if not phases.is_split(graph):
    return None
  phase, parallelism = phases.phases(graph), find_parallelism(schedule)
  workers = _workers(schedule, parallelism)
  own = schedule.op_end_us[graph.microbatch >= 0]
  return MicrobatchReport(
    schedule.step_time_us,
    parallelism,
    _device_shares(schedule, phase),
    tuple(workers.tolist()),
    _limits(schedule, phase, workers),
    schedule.step_time_us - float(own.max()),
  )


def _workers(schedule: Schedule, parallelism: Parallelism) -> np.ndarray:
  devices = schedule.placement.problem.cluster.devices
  us = parallelism.time_us.sum(axis=0)
  of_kind: dict[str, float] = {}
  for device, own_us in zip(devices, us.tolist(), strict=True):
    of_kind[device.kind] = of_kind.get(device.kind, 0.0) + own_us
  least_us = CONFIG.worker_share * float(us.sum())
  is_worker = [of_kind[device.kind] >= least_us for device in devices]
  return np.flatnonzero(is_worker)


def _device_shares(
  schedule: Schedule, phase: np.ndarray
) -> tuple[DeviceShare, ...]:
  sent, at = schedule.transfers, schedule.placement.devices
  count, step_us = len(schedule.memory), schedule.step_time_us
  times = times_on(schedule.placement.problem, schedule)
  by_phase = np.zeros((count, len(phases.NAMES)))
  np.add.at(by_phase, (at, phase), times.op)
  forward, backward = by_phase[:, phases.FORWARD], by_phase[:, phases.BACKWARD]
  # The last op's overhead may extend beyond the step.
  overhead = np.minimum(times.overhead, step_us - schedule.op_end_us)
  overhead_us = np.bincount(at, overhead, count)
  message_us = np.bincount(
    sent.src, sent.send_end_us - sent.send_start_us, count
  ) + np.bincount(sent.dst, sent.recv_end_us - sent.recv_start_us, count)
  busy_us = by_phase.sum(axis=1)
  waiting_us = np.maximum(step_us - busy_us - overhead_us - message_us, 0.0)
  columns = (
    forward,
    backward,
    busy_us - forward - backward,
    overhead_us,
    message_us,
    waiting_us,
  )
  rows = np.stack(columns, axis=1).tolist()
  names = device_names(schedule)
  return tuple(
    DeviceShare(*row)
    for row in zip(names, *zip(*rows, strict=True), strict=True)
  )


def _limits(
  schedule: Schedule, phase: np.ndarray, workers: np.ndarray
) -> tuple[Limit, ...]:
  order = fixed_order(schedule)
  times = times_on(schedule.placement.problem, schedule)
  is_update = phase == phases.UPDATE
  even = _even(schedule, times, workers)
  changed = {
    BALANCE: even,
    LINKS: _free(times),
    THE_UPDATE: times._replace(
      op=np.where(is_update, 0.0, times.op),
      overhead=np.where(is_update, 0.0, times.overhead),
    ),
    OVERHEAD: times._replace(overhead=np.zeros_like(times.overhead)),
  }
  now_us = order.step_time_us(times)
  limits = [
    Limit(name, max(0.0, now_us - order.step_time_us(other)))
    for name, other in changed.items()
  ]
  # Another order may have less waiting time, but never more than the current
  # one.
  waiting_us = [
    _waiting_us(schedule, order.starts_us(x), x, workers)
    for x in (times, _free(even))
  ]
  limits.append(Limit(FILL, min(waiting_us)))
  return tuple(sorted(limits, key=lambda limit: -limit.gain_us))


def _free(times: Times) -> Times:
  return times._replace(
    sends=np.zeros_like(times.sends),
    transfer=np.zeros_like(times.transfer),
    latency=np.zeros_like(times.latency),
    gap=np.zeros_like(times.gap),
    receive=np.zeros_like(times.receive),
  )


def _even(schedule: Schedule, times: Times, workers: np.ndarray) -> Times:
  at, count = schedule.placement.devices, len(schedule.memory)
  own = schedule.placement.problem.graph.microbatch >= 0
  taken_us = np.bincount(at[own], (times.op + times.overhead)[own], count)
  some = workers[taken_us[workers] > 0]
  factor = np.ones(count)
  factor[some] = taken_us[workers].mean() / taken_us[some]
  factor = np.where(own, factor[at], 1.0)
  return times._replace(op=times.op * factor, overhead=times.overhead * factor)


def _waiting_us(
  schedule: Schedule, start_us: np.ndarray, times: Times, workers: np.ndarray
) -> float:
  """Returns the mean wait of workers until the last microbatch has ended."""
  graph, at = schedule.placement.problem.graph, schedule.placement.devices
  own = graph.microbatch >= 0
  start = start_us[: graph.num_ops]
  end = start + times.op + times.sends
  last_us = float(end[own].max())
  taken = np.minimum(end + times.overhead, last_us) - start
  taken_us = np.bincount(at, np.maximum(taken, 0.0), len(schedule.memory))
  used = np.intersect1d(workers, at[own & (times.op > 0)])
  waiting_us = np.maximum(last_us - taken_us[used], 0.0)
  return float(waiting_us.sum() / max(len(used), 1))
