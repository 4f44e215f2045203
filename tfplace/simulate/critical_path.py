"""Why a simulated step takes as long as it does.

`critical_path` explains one schedule to people: the chain of ops, transfers and
waits that ends with the step's last op. It is no bound.
"""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  from tfplace.simulate.schedule import Schedule

OP, TRANSFER, RECEIVE = "op", "transfer", "receive"  # kinds of segments
INPUT = "input"  # its last input had just arrived, or its output was ready
DEVICE = "device"  # its device had just become free
CHANNEL = "channel"  # its channel had just become free
BEGIN = "begin"  # the step began


@dataclasses.dataclass(frozen=True)
class Segment:
  """One op, transfer or receive on the critical path.

  Attributes:
    kind: "op", "transfer" or "receive".
    index: position of the op, or number of the transfer.
    start_us: when it starts.
    end_us: when the op or receive ends, or the transfer arrives.
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
    self.received = np.flatnonzero(sent.is_received)
    self.on_device = _Occupied(
      np.concatenate((self.devices, sent.dst[self.received])),
      np.concatenate((schedule.op_start_us, sent.recv_start_us[self.received])),
      np.concatenate((schedule.op_end_us, sent.recv_end_us[self.received])),
    )
    self.on_channel = _Occupied(sent.channel, sent.start_us, sent.free_us)

  def back_from(self, op: int) -> list[Segment]:
    sent = self.schedule.transfers
    kinds = {
      OP: (self.schedule.op_start_us, self.schedule.op_end_us, self.before_op),
      TRANSFER: (sent.start_us, sent.arrival_us, self.before_transfer),
      RECEIVE: (sent.recv_start_us, sent.recv_end_us, self.before_receive),
    }
    path: list[Segment] = []
    step: Step | None = (OP, op)
    while step:
      kind, index = step
      start, end, before = kinds[kind]
      step, reason = before(index)
      path.append(
        Segment(kind, index, float(start[index]), float(end[index]), reason)
      )
    return path[::-1]

  def before_op(self, op: int) -> tuple[Step | None, str]:
    start = self.schedule.op_start_us[op]
    for step, arrival in self.inputs(op):
      if arrival == start:
        return step, INPUT
    return self.before_on_device(self.devices[op], start)

  def before_on_device(
    self, device: int, start_us: float
  ) -> tuple[Step | None, str]:
    """No input came then, so the device was busy with what ran before."""
    before = self.on_device.before(device, start_us)
    if before is None:
      return None, BEGIN
    if before < len(self.devices):
      return (OP, before), DEVICE
    return (RECEIVE, int(self.received[before - len(self.devices)])), DEVICE

  def inputs(self, op: int) -> Iterator[tuple[Step, float]]:
    """What brings each input of `op` to its device, and when."""
    graph, sent = self.schedule.placement.problem.graph, self.schedule.transfers
    offsets, edges = graph.in_csr
    for edge in edges[offsets[op] : offsets[op + 1]]:
      src = int(graph.edge_src[edge])
      transfer = int(self.schedule.transfer_of_edge[edge])
      if transfer < 0:
        yield (OP, src), self.schedule.op_end_us[src]
      else:
        kind = RECEIVE if sent.is_received[transfer] else TRANSFER
        yield (kind, transfer), sent.recv_end_us[transfer]

  def before_receive(self, transfer: int) -> tuple[Step | None, str]:
    sent = self.schedule.transfers
    start = sent.recv_start_us[transfer]
    if sent.arrival_us[transfer] == start:
      return (TRANSFER, transfer), INPUT
    return self.before_on_device(sent.dst[transfer], start)

  def before_transfer(self, transfer: int) -> tuple[Step | None, str]:
    sent = self.schedule.transfers
    src, start = int(sent.src_op[transfer]), sent.start_us[transfer]
    if self.schedule.op_end_us[src] == start:
      return (OP, src), INPUT
    before = self.on_channel.before(sent.channel[transfer], start)
    return (None, BEGIN) if before is None else ((TRANSFER, before), CHANNEL)


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
