"""Compiled features of the schedule of a placement that is to be changed.

They tell which decisions are on the critical path of the simulated step, what
they wait for, and how busy another device is at that time. Latest ends are
those of the critical path method: the schedule as it is, without waits for
channels.
"""

import math
from typing import NamedTuple

import numpy as np

from tfplace.graph.problem import Problem
from tfplace.simulate import Simulator
from tfplace.simulate.jit import Index, helper, inlined, kernel
from tfplace.simulate.links import arrival_us

# Features of a decision on a device. Times and sizes are scaled by `_size`.
(
  CRITICAL_WORK,
  CRITICAL_SHARE,  # of the decision's work
  SOFTLY_CRITICAL_SHARE,
  CRITICAL_WAIT,  # for the device
  FROM_DEVICE,  # transfers on the critical path
  TO_DEVICE,
  BUSY_SHARE,  # of the device meanwhile
  OCCUPIED_SHARE,
  LATE_IN,
  INPUT_DELAY,
  LATE_OUT,
  SENT,
  WORK,
  LATE,
) = range(14)
NUM_FEATURES = 1 + LATE

_BINS = 2048  # of the step, to look up how busy a device is
_KEPT = 4  # Schedules to cache; each chain of a search has its own placement.
_HARD = 0.003  # slack, relative to the step, that counts 1 / e
_SOFT = 0.03
_NONE = -1e30


class OpTables(NamedTuple):
  """Ops and edges of a problem, as in `tables.PartialTables`."""

  op_us: np.ndarray
  overhead_us: np.ndarray
  links: np.ndarray
  in_offsets: np.ndarray
  in_src: np.ndarray
  in_bytes: np.ndarray
  decision_of: np.ndarray


class Schedule(NamedTuple):
  """Simulated step; arrays are [num_ops] unless stated otherwise.

  Attributes:
    order: Ops by start, producers first.
    devices: Device of each op.
    start, end: Times in microseconds.
    latest: Latest end that does not lengthen the step.
    hard, soft: Weights from 0 to 1 that fall with the slack.
    busy, critical: [D, bins + 1] work of the device before each bin, in bins;
      the second counts work by `hard`.
    free: [D] latest end of a device's next op, used while `latest` is filled.
    step_us: Step time.
  """

  order: np.ndarray
  devices: np.ndarray
  start: np.ndarray
  end: np.ndarray
  latest: np.ndarray
  hard: np.ndarray
  soft: np.ndarray
  busy: np.ndarray
  critical: np.ndarray
  free: np.ndarray
  step_us: float


class Sums(NamedTuple):
  """Sums over the ops of each decision; [N, D] unless stated otherwise.

  Attributes:
    work, critical, soft, wait: [N] work, the same weighted, and waits of
      critical ops for their device.
    sent: [N] transfers on the critical path that a decision has a part in.
    from_device, to_device: Such transfers from and to a device.
    delay: How much later inputs would arrive on a device.
    late_in, late_out: Excess of the earliest end over the latest one, and of
      the arrival at readers over their latest start; without queues.
    there, busy, occupied: Work on a device, and the same times the busy and
      the critically busy fraction of that device meanwhile.
  """

  work: np.ndarray
  critical: np.ndarray
  soft: np.ndarray
  wait: np.ndarray
  sent: np.ndarray
  from_device: np.ndarray
  to_device: np.ndarray
  delay: np.ndarray
  late_in: np.ndarray
  late_out: np.ndarray
  there: np.ndarray
  busy: np.ndarray
  occupied: np.ndarray


class Simulated:
  """Schedules of placements of one problem; safe in several threads.

  Args:
    tables: Tables of the problem, at any number of decisions.
  """

  def __init__(self, problem: Problem, tables: OpTables) -> None:
    self._simulator = Simulator(problem)
    self._position = problem.graph.topological_position
    self._tables = tables
    self._known: tuple[Schedule, ...] = ()

  def schedule(self, devices: np.ndarray) -> Schedule | None:
    """Simulates [num_ops] devices; None if the step cannot run."""
    devices = np.array(devices, np.int32)  # The caller may change its own.
    for known in self._known:  # One read: another thread may replace it.
      if np.array_equal(known.devices, devices):
        return known
    num_ops, num_devices = self._tables.op_us.shape
    starts = np.empty((1, num_ops))
    step_us = self._simulator.run(devices, starts=starts).step_time_us[0]
    if not 0.0 < step_us < np.inf:
      return None
    order = np.lexsort((self._position, starts[0]))
    end, latest, hard, soft = np.zeros((4, num_ops))
    busy, critical = np.zeros((2, num_devices, _BINS + 1))
    schedule = Schedule(
      order=order,
      devices=devices,
      start=starts[0],
      end=end,
      latest=latest,
      hard=hard,
      soft=soft,
      busy=busy,
      critical=critical,
      free=np.full(num_devices, np.inf),
      step_us=float(step_us),
    )
    _weigh(self._tables, schedule)
    self._known = (schedule, *self._known)[:_KEPT]
    return schedule


def describe(
  tables: OpTables, schedule: Schedule | None, num_decisions: int
) -> np.ndarray:
  """Returns [num_decisions, D, NUM_FEATURES] float32; 0 without a schedule."""
  shape = num_decisions, tables.op_us.shape[1]
  features = np.zeros((*shape, NUM_FEATURES), np.float32)
  if schedule is not None:
    sums = Sums(*np.zeros((5, num_decisions)), *np.zeros((8, *shape)))
    ready = np.zeros(shape[1])
    _describe(tables, schedule, sums, ready, features)
  return features


@kernel
def _weigh(tables: OpTables, schedule: Schedule) -> None:
  _find_latest(tables, schedule)
  _fill_bins(tables, schedule)


@kernel
def _describe(
  tables: OpTables,
  schedule: Schedule,
  sums: Sums,
  ready: np.ndarray,
  features: np.ndarray,
) -> None:
  sums.late_in[:] = _NONE
  sums.late_out[:] = _NONE
  for op in range(len(schedule.start)):
    _add_inputs(tables, schedule, sums, op, ready)
    _add_op(tables, schedule, sums, op, ready)
  for decision in range(len(features)):
    for device in range(features.shape[1]):
      row = features[decision, device]
      _fill_row(sums, schedule.step_us, decision, device, row)


@inlined
def _arrival(
  tables: OpTables, end: float, num_bytes: float, src: Index, dst: Index
) -> float:
  if src == dst:
    return end
  return arrival_us(tables.links, end, num_bytes, src, dst)


@helper
def _find_latest(tables: OpTables, schedule: Schedule) -> None:
  devices, latest = schedule.devices, schedule.latest
  latest[:] = schedule.step_us
  for i in range(len(latest) - 1, -1, -1):
    op = schedule.order[i]
    device = np.int64(devices[op])
    time_us = tables.op_us[op, device]
    schedule.end[op] = schedule.start[op] + time_us
    if time_us > 0:
      latest[op] = min(latest[op], schedule.free[device])
    start = latest[op] - time_us
    if time_us > 0:
      free = start - tables.overhead_us[device]
      schedule.free[device] = min(schedule.free[device], free)
    for j in range(tables.in_offsets[op], tables.in_offsets[op + 1]):
      producer = tables.in_src[j]
      source = np.int64(devices[producer])
      passed = _arrival(tables, 0.0, tables.in_bytes[j], source, device)
      latest[producer] = min(latest[producer], start - passed)
    slack = max(0.0, latest[op] - schedule.end[op]) / schedule.step_us
    schedule.hard[op] = np.exp(-slack / _HARD)
    schedule.soft[op] = np.exp(-slack / _SOFT)


@helper
def _fill_bins(tables: OpTables, schedule: Schedule) -> None:
  scale = _BINS / schedule.step_us
  for op in range(len(schedule.start)):
    device = np.int64(schedule.devices[op])
    first, last = schedule.start[op] * scale, schedule.end[op] * scale
    for at in range(int(first), min(_BINS, math.ceil(last))):
      part = min(last, at + 1.0) - max(first, float(at))
      schedule.busy[device, at + 1] += part
      schedule.critical[device, at + 1] += part * schedule.hard[op]
  for row in range(len(schedule.busy)):
    for at in range(_BINS):
      schedule.busy[row, at + 1] += schedule.busy[row, at]
      schedule.critical[row, at + 1] += schedule.critical[row, at]


@helper
def _add_inputs(
  tables: OpTables,
  schedule: Schedule,
  sums: Sums,
  op: Index,
  ready: np.ndarray,
) -> None:
  """Adds the inputs of an op; fills in when they could be on each device."""
  decision = np.int64(tables.decision_of[op])
  home = np.int64(schedule.devices[op])
  latest = schedule.latest[op] - tables.op_us[op, home]
  arrived = 0.0
  ready[:] = 0.0
  for i in range(tables.in_offsets[op], tables.in_offsets[op + 1]):
    producer, size = tables.in_src[i], tables.in_bytes[i]
    source, end = np.int64(schedule.devices[producer]), schedule.end[producer]
    other = np.int64(tables.decision_of[producer])
    arrival = _arrival(tables, end, size, source, home)
    arrived = max(arrived, arrival)
    for device in range(len(ready)):
      there = end  # An input of the same decision would move along.
      if other != decision:
        there = _arrival(tables, end, size, source, device)
        late = _arrival(tables, end, size, device, home) - latest
        sums.late_out[other, device] = max(sums.late_out[other, device], late)
      ready[device] = max(ready[device], there)
    if other != decision and source != home:
      wait = max(0.0, schedule.start[op] - arrival) / schedule.step_us
      us = schedule.hard[op] * np.exp(-wait / _HARD) * (arrival - end)
      sums.from_device[decision, source] += us
      sums.to_device[other, home] += us
      sums.sent[decision] += us
      sums.sent[other] += us
  wait = max(0.0, schedule.start[op] - arrived)
  sums.wait[decision] += schedule.hard[op] * wait


@helper
def _add_op(
  tables: OpTables,
  schedule: Schedule,
  sums: Sums,
  op: Index,
  ready: np.ndarray,
) -> None:
  """Adds the work of an op, as it is and as it would be on each device."""
  decision = np.int64(tables.decision_of[op])
  work = tables.op_us[op, schedule.devices[op]]
  sums.work[decision] += work
  sums.critical[decision] += schedule.hard[op] * work
  sums.soft[decision] += schedule.soft[op] * work
  scale = _BINS / schedule.step_us
  for device in range(len(ready)):
    time_us = tables.op_us[op, device]
    if not time_us < np.inf:
      continue
    end = ready[device] + time_us
    late = end - schedule.latest[op]
    sums.late_in[decision, device] = max(sums.late_in[decision, device], late)
    delay = max(0.0, ready[device] - schedule.start[op])
    sums.delay[decision, device] += schedule.soft[op] * delay
    if time_us > 0:
      first = min(_BINS - 1, int(ready[device] * scale))
      last = max(first + 1, min(_BINS, int(end * scale) + 1))
      share = time_us / (last - first)
      busy, critical = schedule.busy[device], schedule.critical[device]
      sums.there[decision, device] += time_us
      sums.busy[decision, device] += share * (busy[last] - busy[first])
      occupied = share * (critical[last] - critical[first])
      sums.occupied[decision, device] += occupied


@inlined
def _size(us: float, step_us: float) -> float:
  """Maps a time from 0 to the step to 0 to 3.5."""
  return 0.5 * np.log1p(1000.0 * max(us, 0.0) / step_us)


@helper
def _fill_row(
  sums: Sums, step_us: float, decision: Index, device: Index, row: np.ndarray
) -> None:
  work = max(sums.work[decision], 1e-9)
  there = max(sums.there[decision, device], 1e-9)
  late_in = sums.late_in[decision, device] / step_us
  late_out = sums.late_out[decision, device] / step_us
  row[CRITICAL_WORK] = _size(sums.critical[decision], step_us)
  row[CRITICAL_SHARE] = sums.critical[decision] / work
  row[SOFTLY_CRITICAL_SHARE] = sums.soft[decision] / work
  row[CRITICAL_WAIT] = _size(sums.wait[decision], step_us)
  row[FROM_DEVICE] = _size(sums.from_device[decision, device], step_us)
  row[TO_DEVICE] = _size(sums.to_device[decision, device], step_us)
  row[BUSY_SHARE] = sums.busy[decision, device] / there
  row[OCCUPIED_SHARE] = sums.occupied[decision, device] / there
  row[LATE_IN] = np.tanh(20.0 * late_in)
  row[INPUT_DELAY] = _size(sums.delay[decision, device], step_us)
  row[LATE_OUT] = np.tanh(20.0 * late_out)
  row[SENT] = _size(sums.sent[decision], step_us)
  row[WORK] = _size(sums.work[decision], step_us)
  row[LATE] = np.tanh(100.0 * max(late_in, late_out))
