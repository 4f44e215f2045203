"""Summary of the critical path by device, link and layer.

Work on the path from when the next segment has its inputs, and only queues for
the device or channel, is counted as queueing. Sends and receives that occupy a
device, and idle time, are counted separately. All parts add up to the step
time.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tfplace.report.explain.layers import find_layers
from tfplace.report.rows import (
  DEVICE,
  LINK,
  channel_names,
  compute_end_us,
  device_names,
  segment_row,
)
from tfplace.simulate import Schedule, critical_path


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
  """Totals of the critical path by `parts` and `layers`, largest first."""

  parts: tuple[Part, ...]
  layers: tuple[LayerShare, ...]

  @property
  def compute_us(self) -> float:
    """Returns the computation time."""
    return sum(p.work_us for p in self.parts if p.kind == DEVICE)

  @property
  def transfer_us(self) -> float:
    """Returns the communication time on links."""
    return sum(p.work_us for p in self.parts if p.kind == LINK)

  @property
  def idle_us(self) -> float:
    """Returns overheads of ops, latencies and gaps between transfers."""
    return self.launch_us + self.latency_us

  @property
  def launch_us(self) -> float:
    """Returns the launch overhead of ops."""
    return sum(p.idle_us for p in self.parts if p.kind == DEVICE)

  @property
  def latency_us(self) -> float:
    """Returns the latencies of links and gaps between transfers."""
    return sum(p.idle_us for p in self.parts if p.kind == LINK)

  @property
  def message_us(self) -> float:
    """Returns the communication overhead on the endpoint devices."""
    return sum(p.message_us for p in self.parts)

  @property
  def queue_us(self) -> float:
    """Returns the work that ready segments queued behind."""
    return sum(self.queues_us.values())

  @property
  def queues_us(self) -> dict[str, float]:
    """Returns `queue_us` by kind of part, where it is not zero."""
    return {
      kind: us
      for kind in (DEVICE, LINK)
      if (us := sum(p.queue_us for p in self.parts if p.kind == kind)) > 0
    }


class _Piece(NamedTuple):
  """One segment of the path, up to the start of the next."""

  row: tuple[str, int]  # kind and index of the device or channel
  op: int  # -1 for a transfer or receive
  needed_us: float
  queue_us: float
  idle_us: float
  message_us: float


def summarize_path(schedule: Schedule) -> PathSummary:
  """Summarizes the critical path of a simulated step."""
  pieces = list(_pieces(schedule))
  return PathSummary(_parts(schedule, pieces), _layers(schedule, pieces))


def _pieces(schedule: Schedule) -> Iterator[_Piece]:
  path, computed_us = schedule.critical_path, compute_end_us(schedule)
  sent_us = schedule.transfers.sent_us
  for segment, after in itertools.zip_longest(path, path[1:]):
    until = schedule.step_time_us if after is None else after.start_us
    op, start, end = -1, segment.start_us, segment.end_us
    if segment.kind == critical_path.OP:
      op, done = segment.index, float(computed_us[segment.index])
    elif segment.kind == critical_path.RECEIVE:
      done = start
    else:
      done = end = min(float(sent_us[segment.index]), until)
    row = segment_row(schedule, segment)
    ready = done if after is None else min(max(after.ready_us, start), done)
    times = (ready - start, done - ready, until - end, end - done)
    yield _Piece(row, op, *times)


def _parts(schedule: Schedule, pieces: list[_Piece]) -> tuple[Part, ...]:
  names = {DEVICE: device_names(schedule), LINK: channel_names(schedule)}
  sums: dict[tuple[str, int], np.ndarray] = {}
  for piece in pieces:
    sums.setdefault(piece.row, np.zeros(5))[:] += (1, *piece[2:])
  parts = [
    Part(kind, names[kind][index], int(total[0]), *total[1:].tolist())
    for (kind, index), total in sums.items()
  ]
  return tuple(sorted(parts, key=lambda part: -part.total_us))


def _layers(schedule: Schedule, pieces: list[_Piece]) -> tuple[LayerShare, ...]:
  problem, short = schedule.placement.problem, device_names(schedule)
  graph = problem.graph
  layers = find_layers(graph.names, problem.fastest_us, graph.layer_paths)
  time_us = np.zeros((len(layers.names), problem.cluster.num_devices))
  count = np.zeros(len(layers.names), int)
  for piece in pieces:
    if piece.op >= 0:
      layer = layers.layer_of[piece.op]
      time_us[layer, piece.row[1]] += piece.needed_us + piece.queue_us
      count[layer] += 1
  shares = [
    LayerShare(
      layers.names[i],
      int(count[i]),
      float(time_us[i].sum()),
      tuple(short[d] for d in np.argsort(-time_us[i]) if time_us[i, d] > 0),
    )
    for i in np.flatnonzero(count)
  ]
  return tuple(sorted(shares, key=lambda share: -share.compute_us))
