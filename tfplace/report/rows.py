"""Rows of a timeline: devices, channels and the critical path through them."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tfplace.graph.cluster import Cluster
from tfplace.graph.placement import Placement
from tfplace.simulate import Schedule, Segment, Simulator, critical_path


def short_names(names: Sequence[str]) -> list[str]:
  """Strips common prefixes of device names, unless they become ambiguous."""
  parts = [name.strip("/").split("/") for name in names]
  shortest = min(map(len, parts), default=1)
  shared = 0
  while shared < shortest - 1 and len({p[shared] for p in parts}) == 1:
    shared += 1
  short = ["/".join(p[shared:]).replace("device:", "") for p in parts]
  return short if len(set(short)) == len(names) else list(names)


def named_devices(cluster: Cluster) -> list[str]:
  """Returns short names of devices: "GPU:0", or "GPU:0 (v100)" of `GPU-v100`.

  The kind is named where devices of a type are of several kinds.
  """
  short = short_names([device.name for device in cluster.devices])
  return [
    f"{name} ({label})" if label else name
    for name, label in zip(short, cluster.kind_labels, strict=True)
  ]


def listed(parts: Sequence[str]) -> str:
  """Joins ["a", "b", "c"] to "a, b and c"."""
  if len(parts) < 2:
    return "".join(parts)
  return f"{', '.join(parts[:-1])} and {parts[-1]}"


def shorten(name: str, limit: int = 64) -> str:
  """Shortens a long name by cutting out its middle."""
  if len(name) <= limit:
    return name
  keep = (limit - 1) // 2
  return f"{name[: limit - 1 - keep]}\N{HORIZONTAL ELLIPSIS}{name[-keep:]}"


DEVICE, LINK = "device", "link"


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
  """Activity of one device or channel in a step.

  Attributes:
    kind: "device" or "link".
    index: index of the device or channel.
    name: its short name.
    busy_us: time in which the device computes or the channel sends bytes.
    is_op: [n] bool, ops rather than sends and receives of a device, and
      transfers of a channel.
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
  is_op: np.ndarray
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
    pair = f"{short[src]} -> {short[dst]}"
    names[cluster.channel[src, dst]] = link.channel or pair
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
  computed = compute_end_us(schedule)
  critical: dict[tuple[str, int], list[tuple[float, float]]] = {}
  for segment, end_us in critical_spans(schedule):
    span = segment.start_us, end_us
    critical.setdefault(segment_row(schedule, segment), []).append(span)
  ops = np.arange(len(at))
  send = np.flatnonzero(sent.send_end_us > sent.send_start_us)
  received = np.flatnonzero(sent.is_received)
  all_sent = np.arange(len(sent))
  groups = {  # items, holder, start, end
    DEVICE: (
      (ops, at, schedule.op_start_us, computed),
      (send, sent.src, sent.send_start_us, sent.send_end_us),
      (received, sent.dst, sent.recv_start_us, sent.recv_end_us),
    ),
    LINK: ((all_sent, sent.channel, sent.start_us, sent.sent_us),),
  }

  def row(kind: str, index: int, name: str, busy_us: float) -> Row:
    parts = []
    for of, holder, starts, ends in groups[kind]:
      i = of[holder[of] == index]
      parts.append((np.full(len(i), of is ops), i, starts[i], ends[i]))
    is_op, items, start, end = map(np.concatenate, zip(*parts, strict=True))
    spans = np.reshape(critical.get((kind, index), []), (-1, 2))
    return Row(kind, index, name, busy_us, is_op, items, start, end, spans)

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
  if segment.kind == critical_path.OP:
    return DEVICE, int(schedule.placement.devices[segment.index])
  if segment.kind == critical_path.TRANSFER:
    return LINK, int(schedule.transfers.channel[segment.index])
  return DEVICE, int(schedule.transfers.dst[segment.index])


def critical_spans(schedule: Schedule) -> list[tuple[Segment, float]]:
  """Returns the segments of the critical path, and the end of each.

  A segment ends when the next one starts, if not before: a channel starts its
  next transfer before the previous one has arrived.
  """
  path = critical_path.segments(schedule)
  until_us = [*(segment.start_us for segment in path[1:]), math.inf]
  return [(s, min(s.end_us, us)) for s, us in zip(path, until_us, strict=False)]
