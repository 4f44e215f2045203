"""Why a simulated step takes as long as it does.

`critical_path` explains one schedule to people: the chain of ops, transfers and
waits that ends with the step's last op. It is no bound. `critical_shares` gives
learners, for a batch of placements and from the ops' starts alone, how much of
the step each op answers for: the time of an op on the path is its own; the time
between an output and its arrival elsewhere, waits for the channel included, is
shared by producer and consumer; a wait for the device leads on to the op that
held it.
"""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tfplace.core.problem import Problem
from tfplace.simulate.jit import kernel

if TYPE_CHECKING:
  from tfplace.simulate.schedule import Schedule

INPUT = "input"  # its last input had just arrived, or its output was ready
DEVICE = "device"  # its device had just become free
CHANNEL = "channel"  # its channel had just become free
BEGIN = "begin"  # the step began


@dataclasses.dataclass(frozen=True)
class Segment:
  """One op or transfer on the critical path.

  Attributes:
    kind: "op" or "transfer".
    index: position of the op, or number of the transfer.
    start_us: when it starts.
    end_us: when the op ends, or the transfer arrives.
    waited_for: what let it start only then: "input", "device", "channel" or
      "begin".
  """

  kind: str
  index: int
  start_us: float
  end_us: float
  waited_for: str


def critical_path(schedule: "Schedule") -> tuple[Segment, ...]:
  """The critical path, from the begin of the step to its last end.

  Where an op or transfer starts both when its input comes and when its device
  or channel becomes free, the path follows the input.
  """
  if not len(schedule.op_end_us):
    return ()
  return tuple(_Walk(schedule).back_from(int(schedule.op_end_us.argmax())))


Step = tuple[str, int]  # kind and index of a segment


class _Walk:
  """Walks a schedule against time, from each start to what allowed it."""

  def __init__(self, schedule: "Schedule") -> None:
    self.schedule = schedule
    self.devices = schedule.placement.devices
    sent = schedule.transfers
    self.on_device = _Occupied(
      self.devices, schedule.op_start_us, schedule.op_end_us
    )
    self.on_channel = _Occupied(sent.channel, sent.start_us, sent.free_us)

  def back_from(self, op: int) -> list[Segment]:
    path: list[Segment] = []
    step: Step | None = ("op", op)
    while step:
      kind, index = step
      if kind == "op":
        start, end = self.schedule.op_start_us, self.schedule.op_end_us
        step, reason = self.before_op(index)
      else:
        start = self.schedule.transfers.start_us
        end = self.schedule.transfers.arrival_us
        step, reason = self.before_transfer(index)
      path.append(
        Segment(kind, index, float(start[index]), float(end[index]), reason)
      )
    return path[::-1]

  def before_op(self, op: int) -> tuple[Step | None, str]:
    start = self.schedule.op_start_us[op]
    for step, arrival in self.inputs(op):
      if arrival == start:
        return step, INPUT
    # Not an input, so the device was busy with the op before.
    before = self.on_device.before(self.devices[op], start)
    return (None, BEGIN) if before is None else (("op", before), DEVICE)

  def inputs(self, op: int) -> Iterator[tuple[Step, float]]:
    """What brings each input of `op` to its device, and when."""
    graph = self.schedule.placement.problem.graph
    offsets, edges = graph.in_csr
    for edge in edges[offsets[op] : offsets[op + 1]]:
      src = int(graph.edge_src[edge])
      transfer = int(self.schedule.transfer_of_edge[edge])
      if transfer < 0:
        yield ("op", src), self.schedule.op_end_us[src]
      else:
        arrival_us = self.schedule.transfers.arrival_us[transfer]
        yield ("transfer", transfer), arrival_us

  def before_transfer(self, transfer: int) -> tuple[Step | None, str]:
    sent = self.schedule.transfers
    src, start = int(sent.src_op[transfer]), sent.start_us[transfer]
    if self.schedule.op_end_us[src] == start:
      return ("op", src), INPUT
    before = self.on_channel.before(sent.channel[transfer], start)
    return (None, BEGIN) if before is None else (("transfer", before), CHANNEL)


class _Occupied:
  """Who held each device, or each channel, before a given time."""

  def __init__(
    self, holder: np.ndarray, start_us: np.ndarray, until_us: np.ndarray
  ) -> None:
    order = np.lexsort((until_us, start_us, holder))
    cuts = np.flatnonzero(np.diff(holder[order])) + 1
    parts = np.split(order, cuts) if len(order) else []
    self.parts = {int(holder[part[0]]): part for part in parts}
    self.starts = {h: start_us[part] for h, part in self.parts.items()}

  def before(self, holder: int, time_us: float) -> int | None:
    """The last to start before `time_us`."""
    at = int(np.searchsorted(self.starts[int(holder)], time_us)) - 1
    return int(self.parts[int(holder)][at]) if at >= 0 else None


def critical_shares(
  problem: Problem, devices: np.ndarray, starts: np.ndarray
) -> np.ndarray:
  """[B, num_ops] float64 microseconds; a row sums to the step time.

  Args:
    problem: what was simulated.
    devices: [B, num_ops] int32 placements with finite step times.
    starts: [B, num_ops] float64 start of every op, from `Simulator.run`.
  """
  graph = problem.graph
  offsets, edges = graph.in_csr
  sources = graph.edge_src[edges]
  overhead_us = problem.cluster.op_overhead_us
  shares = np.zeros(starts.shape)
  for row, (at, start) in enumerate(zip(devices, starts, strict=True)):
    end = start + problem.time_us[np.arange(graph.num_ops), at]
    order = np.lexsort((end, start, at)).astype(np.int32)
    bounds = np.searchsorted(
      at[order], np.arange(problem.cluster.num_devices + 1)
    )
    free = end + np.where(end > start, overhead_us[at], 0.0)
    last = int(end.argmax())
    times = (start, end, free, start[order])
    _walk(offsets, sources, at, *times, order, bounds, last, shares[row])
  return shares


@kernel
def _walk(
  offsets: np.ndarray,
  sources: np.ndarray,
  devices: np.ndarray,
  start: np.ndarray,
  end: np.ndarray,
  free: np.ndarray,
  ordered_start: np.ndarray,
  order: np.ndarray,
  bounds: np.ndarray,
  last: int,
  shares: np.ndarray,
) -> None:
  """Adds one placement's shares, from its last end back to the begin."""
  op, until = last, end[last]
  while op >= 0:
    shares[op] += until - start[op]
    until = start[op]
    here, there = -1, -1
    for i in range(offsets[op], offsets[op + 1]):
      source = sources[i]
      if devices[source] != devices[op]:
        if there < 0 or end[source] > end[there]:
          there = source
      elif end[source] == until:
        here = source
    if here < 0:
      # The last op to start before it on its device.
      low, high = bounds[devices[op]], bounds[devices[op] + 1]
      first = low
      while low < high:
        middle = (low + high) // 2
        if ordered_start[middle] < until:
          low = middle + 1
        else:
          high = middle
      held = order[low - 1] if low > first else -1
      if there < 0 or (held >= 0 and abs(free[held] - until) <= 1e-9 * until):
        here = held
    if here < 0 and there >= 0:
      half = 0.5 * (until - end[there])
      shares[op] += half
      shares[there] += half
      until = end[there]
      here = there
    op = here
