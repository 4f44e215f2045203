"""Summary of the critical path by device, link and layer.

Work on the path from when the next segment has its inputs, and only queues for
the device or channel, is counted as queueing. Sends and receives that occupy a
device, and idle time, are counted separately. All parts add up to the step
time.
"""

import dataclasses
import itertools

import numpy as np

from tfplace.report.layers import layers_of
from tfplace.report.rows import (
  DEVICE,
  LINK,
  channel_names,
  compute_end_us,
  device_names,
  segment_row,
)
from tfplace.simulate import Schedule, Segment, critical_path


@dataclasses.dataclass(frozen=True)
class Part:
  """Contribution of one device or channel to the critical path.

  Attributes:
    kind: "device" or "link".
    name: its short name.
    count: number of ops and receives, or of transfers, on the path.
    needed_us: work before the next segment had its inputs.
    queue_us: work that the next segment, which had its inputs, queued behind.
    idle_us: launch overhead of ops; latency and gaps of a link.
    message_us: time of a device for sends and receives.
  """

  kind: str
  name: str
  count: int
  needed_us: float
  queue_us: float
  idle_us: float
  message_us: float = 0.0

  @property
  def work_us(self) -> float:
    return self.needed_us + self.queue_us

  @property
  def total_us(self) -> float:
    return self.work_us + self.idle_us + self.message_us


@dataclasses.dataclass(frozen=True)
class LayerShare:
  """Contribution of one layer's ops to the critical path.

  Attributes:
    name: name of the layer.
    count: number of its ops on the path.
    compute_us: their computation time.
    devices: short names of their devices, by decreasing time.
  """

  name: str
  count: int
  compute_us: float
  devices: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class PathSummary:
  """Kinds of time on the critical path, which add up to the step.

  Attributes:
    compute_us: computation.
    transfer_us: communication on links.
    queue_us: the part of both that ready segments queued behind.
    idle_us: overheads of ops, latencies, and gaps between transfers.
    message_us: communication overhead on the endpoint devices.
    parts: the same by device and link, longest first.
    layers: computation by layer, longest first.
  """

  compute_us: float
  transfer_us: float
  queue_us: float
  idle_us: float
  message_us: float
  parts: tuple[Part, ...]
  layers: tuple[LayerShare, ...]


def summarize_path(schedule: Schedule) -> PathSummary:
  """Summarizes the critical path of a simulated step."""
  path, layers = critical_path.segments(schedule), layers_of(schedule)
  computed_us, short = compute_end_us(schedule), device_names(schedule)
  sums: dict[tuple[str, int], np.ndarray] = {}
  layer_us = np.zeros((len(layers.names), len(short)))
  layer_count = np.zeros(len(layers.names), int)
  for segment, after in itertools.zip_longest(path, path[1:]):
    row = segment_row(schedule, segment)
    times = _times(schedule, computed_us, segment, after)
    sums.setdefault(row, np.zeros(5))[:] += (1, *times)
    if segment.kind == critical_path.OP:
      layer = layers.layer_of[segment.index]
      layer_us[layer, row[1]] += times[0] + times[1]
      layer_count[layer] += 1
  names = {DEVICE: short, LINK: channel_names(schedule)}
  parts = [
    Part(kind, names[kind][index], int(total[0]), *total[1:].tolist())
    for (kind, index), total in sums.items()
  ]
  shares = [
    LayerShare(
      layers.names[i],
      int(layer_count[i]),
      float(layer_us[i].sum()),
      tuple(short[d] for d in np.argsort(-layer_us[i]) if layer_us[i, d] > 0),
    )
    for i in np.flatnonzero(layer_count)
  ]
  return PathSummary(
    sum(part.work_us for part in parts if part.kind == DEVICE),
    sum(part.work_us for part in parts if part.kind == LINK),
    sum(part.queue_us for part in parts),
    sum(part.idle_us for part in parts),
    sum(part.message_us for part in parts),
    tuple(sorted(parts, key=lambda part: -part.total_us)),
    tuple(sorted(shares, key=lambda share: -share.compute_us)),
  )


def _times(
  schedule: Schedule,
  computed_us: np.ndarray,
  segment: Segment,
  after: Segment | None,
) -> tuple[float, float, float, float]:
  """Divides a segment, up to the start of the next, as the times of `Part`."""
  until = schedule.step_time_us if after is None else after.start_us
  start, end = segment.start_us, segment.end_us
  if segment.kind == critical_path.OP:
    done = float(computed_us[segment.index])
  elif segment.kind == critical_path.RECEIVE:
    done = start
  else:
    done = end = min(float(schedule.transfers.sent_us[segment.index]), until)
  ready = done if after is None else min(max(after.ready_us, start), done)
  return ready - start, done - ready, until - end, end - done
