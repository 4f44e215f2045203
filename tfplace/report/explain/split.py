"""What holds a split step back: how long devices idle (the bubble), and what of
it is due to the balance of stages, links, the update, the pipeline's fill and
drain, and overhead of ops.

Each is asked by a change of the simulated step, whose ops and transfers stay in
their order (as in `bottleneck`): the microbatches' work spread evenly, free
communication, an update that takes no time, no overhead. Fill and drain are
what devices wait for microbatches on others, with work spread evenly and free
links.
"""

import dataclasses

import numpy as np

from tfplace.report import phases
from tfplace.report.explain.bottleneck import (
  Times,
  fixed_order,
  times_on,
)
from tfplace.report.explain.spread import Spread, find_spread
from tfplace.report.rows import device_names
from tfplace.simulate import Schedule

BALANCE = "stage balance"
LINKS = "links"
THE_UPDATE = "the update"
FILL = "fill and drain"
OVERHEAD = "overhead of ops"
_LEAST_WORK = 0.05  # of the microbatches' time, that makes a kind a worker


@dataclasses.dataclass(frozen=True)
class DeviceShare:
  """What one device does in a split step, microseconds.

  Attributes:
    name: its short name.
    forward_us: computing forward passes.
    backward_us: computing backward passes.
    shared_us: computing the update and what else all microbatches share.
    overhead_us: idle after an op that took time.
    message_us: sending and receiving, where that takes time of the device.
    waiting_us: nothing of these.
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
    """Computing microbatches."""
    return self.forward_us + self.backward_us

  @property
  def busy_us(self) -> float:
    """Computing."""
    return self.own_us + self.shared_us


@dataclasses.dataclass(frozen=True)
class Limit:
  """One thing that holds the step back.

  Attributes:
    name: one of the names above.
    gain_us: how much shorter the step would be without it, 0 or more; of "fill
      and drain", how long devices wait for it on average.
  """

  name: str
  gain_us: float


@dataclasses.dataclass(frozen=True, eq=False)
class SplitReport:
  """A split step, looked at by microbatch.

  Attributes:
    step_time_us: of the step.
    spread: which device works on what.
    devices: each device's share of the work.
    workers: the devices of the kinds that run microbatches.
    limits: what holds the step back, most first.
    tail_us: the end of the step, when all microbatches are done.
  """

  step_time_us: float
  spread: Spread
  devices: tuple[DeviceShare, ...]
  workers: tuple[int, ...]
  limits: tuple[Limit, ...]
  tail_us: float

  @property
  def microbatches(self) -> int:
    """How many there are."""
    return len(self.spread.time_us)

  @property
  def bubble(self) -> float:
    """The share of the step in which workers, on average, compute nothing."""
    whole_us = self.step_time_us * len(self.workers)
    busy_us = sum(self.devices[i].busy_us for i in self.workers)
    return 1.0 - busy_us / whole_us if whole_us > 0 else 0.0


def report_split(schedule: Schedule) -> SplitReport | None:
  """Looks at a step in microbatches; None where nothing was split."""
  graph = schedule.placement.problem.graph
  if not phases.is_split(graph):
    return None
  phase, spread = phases.phases(graph), find_spread(schedule)
  workers = _workers(schedule, spread)
  own = schedule.op_end_us[graph.microbatch >= 0]
  return SplitReport(
    schedule.step_time_us,
    spread,
    _device_shares(schedule, phase),
    tuple(workers.tolist()),
    _limits(schedule, phase, workers),
    schedule.step_time_us - float(own.max()),
  )


def _workers(schedule: Schedule, spread: Spread) -> np.ndarray:
  """Devices of the kinds that run microbatches, idle ones included."""
  devices = schedule.placement.problem.cluster.devices
  us = spread.time_us.sum(axis=0)
  of_kind: dict[str, float] = {}
  for device, own_us in zip(devices, us.tolist(), strict=True):
    of_kind[device.kind] = of_kind.get(device.kind, 0.0) + own_us
  least_us = _LEAST_WORK * float(us.sum())
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
  # The last op's overhead may last longer than the step.
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
  # In another order it may be less, but never more than what they wait now.
  waiting_us = [
    _waiting_us(schedule, order.starts_us(x), x, workers)
    for x in (times, _free(even))
  ]
  limits.append(Limit(FILL, min(waiting_us)))
  return tuple(sorted(limits, key=lambda limit: -limit.gain_us))


def _free(times: Times) -> Times:
  """The times with free communication."""
  return times._replace(
    sends=np.zeros_like(times.sends),
    transfer=np.zeros_like(times.transfer),
    latency=np.zeros_like(times.latency),
    gap=np.zeros_like(times.gap),
    receive=np.zeros_like(times.receive),
  )


def _even(schedule: Schedule, times: Times, workers: np.ndarray) -> Times:
  """The times with the microbatches' work spread evenly over the workers."""
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
  """How long workers with microbatches wait until the last one is done."""
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
