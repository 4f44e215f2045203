"""Rows of a timeline: devices, channels and the critical path through them."""

import dataclasses

import numpy as np

from tfplace.core.placement import Placement
from tfplace.report.names import named_devices
from tfplace.simulate import Schedule, Segment, Simulator
from tfplace.simulate.critical_path import OP as OP_SEGMENT
from tfplace.simulate.critical_path import TRANSFER as TRANSFER_SEGMENT

DEVICE, LINK = "device", "link"
OP, SEND, RECEIVE, TRANSFER = range(4)  # kinds of intervals in a row


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
  """Activity of one device or channel in a step.

  Attributes:
    kind: "device" or "link".
    index: index of the device or channel.
    name: its short name.
    busy_us: time in which the device computes or the channel sends bytes.
    what: [n] int64 kinds: OP, SEND or RECEIVE on a device, TRANSFER on a
      channel.
    items: [n] int64 index of the op or transfer.
    start_us: [n] float64 start of each interval.
    end_us: [n] float64 end of the op's own time, of the send or receive, or of
      the last byte's departure.
    critical_us: [m, 2] float64 start and end of segments of the critical path.
  """

  kind: str
  index: int
  name: str
  busy_us: float
  what: np.ndarray
  items: np.ndarray
  start_us: np.ndarray
  end_us: np.ndarray
  critical_us: np.ndarray


def as_schedule(step: Schedule | Placement) -> Schedule:
  """Simulates a placement; returns a schedule unchanged."""
  if isinstance(step, Placement):
    return Simulator(step.problem).schedule(step)
  return step


def device_names(schedule: Schedule) -> list[str]:
  """Returns the [num_devices] short names, with kinds where they differ."""
  return named_devices(schedule.placement.problem.cluster)


def channel_names(schedule: Schedule) -> list[str]:
  """Returns [num_channels] names with short device names."""
  cluster = schedule.placement.problem.cluster
  short = device_names(schedule)
  names = [""] * cluster.num_channels
  for link in cluster.links:
    src, dst = cluster.index[link.src], cluster.index[link.dst]
    own = f"{short[src]} -> {short[dst]}"
    names[cluster.channel[src, dst]] = link.channel or own
  # Longest first, since a name may be a prefix of another.
  full = [device.name for device in cluster.devices]
  for i in sorted(range(len(full)), key=lambda i: -len(full[i])):
    names = [name.replace(full[i], short[i]) for name in names]
  return names


def channel_busy_us(schedule: Schedule) -> np.ndarray:
  """Returns [num_channels] float64 time in which each channel sends."""
  sent = schedule.transfers
  return np.bincount(
    sent.channel,
    sent.sent_us - sent.start_us,
    schedule.placement.problem.cluster.num_channels,
  )


def step_rows(schedule: Schedule) -> list[Row]:
  """Builds a row for each device, then one for each channel in use."""
  sent, at = schedule.transfers, schedule.placement.devices
  critical, computed = _critical_spans(schedule), compute_end_us(schedule)
  ops = np.arange(len(at))
  send = np.flatnonzero(sent.send_end_us > sent.send_start_us)
  received = np.flatnonzero(sent.is_received)
  groups = (  # what, items, holder, start, end
    (OP, ops, at, schedule.op_start_us, computed),
    (SEND, send, sent.src, sent.send_start_us, sent.send_end_us),
    (RECEIVE, received, sent.dst, sent.recv_start_us, sent.recv_end_us),
    (TRANSFER, np.arange(len(sent)), sent.channel, sent.start_us, sent.sent_us),
  )

  def row(kind: str, index: int, name: str, busy_us: float) -> Row:
    parts = []
    for each, of, holder, starts, ends in groups:
      if (each == TRANSFER) == (kind == LINK):
        own = of[holder[of] == index]
        parts.append((np.full(len(own), each), own, starts[own], ends[own]))
    what, items, start, end = map(np.concatenate, zip(*parts, strict=True))
    spans = np.reshape(critical.get((kind, index), []), (-1, 2))
    return Row(kind, index, name, busy_us, what, items, start, end, spans)

  devices = zip(device_names(schedule), schedule.busy_us.tolist(), strict=True)
  rows = [row(DEVICE, i, *named) for i, named in enumerate(devices)]
  names, busy_us = channel_names(schedule), channel_busy_us(schedule).tolist()
  used = np.unique(sent.channel).tolist()
  return rows + [row(LINK, i, names[i], busy_us[i]) for i in used]


def compute_us(schedule: Schedule) -> np.ndarray:
  """Returns the [num_ops] time of the ops themselves, without their sends."""
  at = schedule.placement.devices
  return schedule.placement.problem.time_us[np.arange(len(at)), at]


def compute_end_us(schedule: Schedule) -> np.ndarray:
  """Returns the [num_ops] ends of the ops' own time, before their sends."""
  return schedule.op_start_us + compute_us(schedule)


def transfer_name(schedule: Schedule, transfer: int) -> str:
  """Names a transfer like a TensorFlow input: "op:0", or "^op" for control."""
  sent = schedule.transfers
  output = int(sent.output[transfer])
  op = schedule.placement.problem.graph.names[sent.src_op[transfer]]
  return f"^{op}" if output < 0 else f"{op}:{output}"


def segment_row(schedule: Schedule, segment: Segment) -> tuple[str, int]:
  """Returns the kind and index of the row that holds a path segment."""
  if segment.kind == OP_SEGMENT:
    return DEVICE, int(schedule.placement.devices[segment.index])
  if segment.kind == TRANSFER_SEGMENT:
    return LINK, int(schedule.transfers.channel[segment.index])
  return DEVICE, int(schedule.transfers.dst[segment.index])


def critical_ends_us(schedule: Schedule) -> list[float]:
  """Returns the end of each segment of the critical path.

  A segment ends when the next one starts, if not before: a channel starts its
  next transfer before the previous one has arrived.
  """
  path = schedule.critical_path
  following = [segment.start_us for segment in path[1:]]
  ends = [segment.end_us for segment in path]
  return [*map(min, ends, following), *ends[-1:]]


def _critical_spans(
  schedule: Schedule,
) -> dict[tuple[str, int], list[tuple[float, float]]]:
  result: dict[tuple[str, int], list[tuple[float, float]]] = {}
  ends_us = critical_ends_us(schedule)
  for segment, end_us in zip(schedule.critical_path, ends_us, strict=True):
    row = segment_row(schedule, segment)
    result.setdefault(row, []).append((segment.start_us, end_us))
  return result


@dataclasses.dataclass(frozen=True, eq=False)
class Bars:
  """Bars of one row, in order of time, without overlap.

  A long interval has its own bar. Adjacent short intervals share a bar whose
  height shows how busy it is, so the drawn area stays correct.

  Attributes:
    start_us: [num_bars] float64 start.
    end_us: [num_bars] float64 end.
    busy: [num_bars] float64 in 0 to 1, busy fraction of the bar.
    count: [num_bars] int64 number of merged intervals.
    item: [num_bars] int64 longest interval in the bar.
  """

  start_us: np.ndarray
  end_us: np.ndarray
  busy: np.ndarray
  count: np.ndarray
  item: np.ndarray


def make_bars(
  start_us: np.ndarray, end_us: np.ndarray, limit: int, span_us: float
) -> Bars:
  """Merges the intervals of one row into at most `limit` bars.

  Args:
    start_us: [n] float64 starts of intervals that do not overlap.
    end_us: [n] float64 ends; empty intervals are dropped.
    limit: maximum number of bars, at least 3.
    span_us: end of the time axis.
  """
  items = np.flatnonzero(end_us > start_us)
  items = items[np.argsort(start_us[items], kind="stable")]
  start, end = start_us[items], end_us[items]
  run = np.arange(len(items))
  if len(items) > limit:
    run = _runs(start, end, 3 * span_us / limit)
  count = np.bincount(run)
  first, time = np.cumsum(count) - count, end - start
  length = np.maximum.reduceat(end, first) - start[first] if len(run) else time
  busy = np.bincount(run, time) / np.maximum(length, 1e-300)
  longest = np.lexsort((time, run))[np.cumsum(count) - 1]
  ends = start[first] + length
  return Bars(start[first], ends, np.minimum(busy, 1.0), count, items[longest])


def _runs(start: np.ndarray, end: np.ndarray, unit_us: float) -> np.ndarray:
  """Numbers the runs of intervals: [n], ascending.

  A run is one interval longer than the unit, or all shorter ones in a cell of
  that length. Long intervals are fewer than units, and each divides a cell into
  two runs, so there are at most three runs per unit.
  """
  is_long = end - start > unit_us
  cell = (start / unit_us).astype(np.int64)
  is_first = np.ones(len(start), bool)
  is_first[1:] = is_long[1:] | is_long[:-1] | (np.diff(cell) > 0)
  return np.cumsum(is_first) - 1


def thin_steps(
  time: np.ndarray, value: np.ndarray, limit: int, span: float
) -> tuple[np.ndarray, np.ndarray]:
  """Thins a step function to at most `limit` steps, preserving every peak.

  Args:
    time: [n] ascending times.
    value: [n] values from `time[i]` on.
    limit: maximum number of steps, at least 3.

  Returns:
    Times and values. Each cell of about `2 * span / limit` has its largest
    value from its first time on and its last value from its last time on.
  """
  if len(time) <= limit or span <= 0:
    return time, value
  unit = 2 * span / (limit - 2)
  cell = (time / unit).astype(np.int64)
  first = np.flatnonzero(np.concatenate(([True], np.diff(cell) > 0)))
  last = np.append(first[1:], len(time)) - 1
  at = np.concatenate((time[first], time[last]))
  values = np.concatenate((np.maximum.reduceat(value, first), value[last]))
  order = np.argsort(at, kind="stable")
  return at[order], values[order]
