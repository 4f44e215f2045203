"""The critical path of a simulated step.

The critical path explains one schedule: the chain of ops, transfers and waits
that ends with the last op. It is not a bound.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from tfplace.simulate.schedule import Schedule

OP, TRANSFER, RECEIVE = "op", "transfer", "receive"  # Kinds of segments.
INPUT = "input"  # Started when its last input arrived or its output was ready.
DEVICE = "device"  # Started when its device became free.
CHANNEL = "channel"  # Started when its channel became free.
BEGIN = "begin"  # Started with the step.


@dataclasses.dataclass(frozen=True)
class Segment:
  """An op, transfer or receive on the critical path.

  Attributes:
    kind: "op", "transfer" or "receive".
    index: position of the op, or number of the transfer.
    start_us: start of the segment.
    end_us: end of the op or receive, or arrival of the transfer.
    ready_us: arrival of the op's last input, of the transfer at the receiving
      device, or end of the transfer's producer.
    waited_for: event that allowed the start: "input", "device", "channel" or
      "begin".
  """

  kind: str
  index: int
  ready_us: float
  start_us: float
  end_us: float
  waited_for: str


def segments(schedule: Schedule) -> tuple[Segment, ...]:
  """Returns the critical path from the start of the step to its last end.

  If an input arrives at the same time as the device or channel becomes free,
  the path follows the input.
  """
  if not len(schedule.op_end_us):
    return ()
  return tuple(_Walk(schedule).back_from(int(schedule.op_end_us.argmax())))


Step = tuple[str, int]  # Kind and index of a segment.


class _Walk:
  """Walks a schedule backward, from each start to the event that allowed it."""

  def __init__(self, schedule: Schedule) -> None:
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
    sent, ended = self.schedule.transfers, self.schedule.op_end_us
    kinds = {
      OP: (self.inputs_us(), self.schedule.op_start_us, ended),
      TRANSFER: (ended[sent.src_op], sent.start_us, sent.arrival_us),
      RECEIVE: (sent.arrival_us, sent.recv_start_us, sent.recv_end_us),
    }
    before = {
      OP: self.before_op,
      TRANSFER: self.before_transfer,
      RECEIVE: self.before_receive,
    }
    path: list[Segment] = []
    step: Step | None = (OP, op)
    while step:
      kind, index = step
      ready, start, end = (float(time[index]) for time in kinds[kind])
      step, reason = before[kind](index)
      path.append(Segment(kind, index, ready, start, end, reason))
    return path[::-1]

  def inputs_us(self) -> np.ndarray:
    """Returns the [num_ops] arrival of each op's last input."""
    graph, sent = self.schedule.placement.problem.graph, self.schedule.transfers
    at = self.schedule.transfer_of_edge
    arrival = np.append(sent.recv_end_us, 0.0)[at]
    arrival = np.where(at < 0, self.schedule.op_end_us[graph.edge_src], arrival)
    result = np.zeros(graph.num_ops)
    np.maximum.at(result, graph.edge_dst, arrival)
    return result

  def before_op(self, op: int) -> tuple[Step | None, str]:
    start = self.schedule.op_start_us[op]
    for step, arrival in self.inputs(op):
      if arrival == start:
        return step, INPUT
    return self.before_on_device(self.devices[op], start)

  def before_on_device(
    self, device: int, start_us: float
  ) -> tuple[Step | None, str]:
    """Finds the op or receive that occupied the device until `start_us`."""
    before = self.on_device.before(device, start_us)
    if before is None:
      return None, BEGIN
    if before < len(self.devices):
      return (OP, before), DEVICE
    return (RECEIVE, int(self.received[before - len(self.devices)])), DEVICE

  def inputs(self, op: int) -> Iterator[tuple[Step, float]]:
    """Yields the segment that delivers each input of `op`, and its end."""
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
  """Usage intervals of each device or channel."""

  def __init__(
    self, holder: np.ndarray, start_us: np.ndarray, until_us: np.ndarray
  ) -> None:
    order = np.lexsort((until_us, start_us, holder))
    cuts = np.flatnonzero(np.diff(holder[order])) + 1
    parts = np.split(order, cuts) if len(order) else []
    self.parts = {int(holder[part[0]]): part for part in parts}
    self.starts = {h: start_us[part] for h, part in self.parts.items()}

  def before(self, holder: int, time_us: float) -> int | None:
    """Returns the last user of `holder` to start before `time_us`, or None."""
    at = int(np.searchsorted(self.starts[int(holder)], time_us)) - 1
    return int(self.parts[int(holder)][at]) if at >= 0 else None
