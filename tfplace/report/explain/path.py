"""What the critical path of a step is made of, device by device and link by
link: work that the next of the path needed, work that it merely waited
behind, and idle gaps. The parts add up to the step time.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from tfplace.report.explain.layers import find_layers
from tfplace.report.units import channel_names, device_names
from tfplace.simulate import Schedule
from tfplace.simulate.critical_path import CHANNEL, DEVICE, INPUT

DEVICE_PART, LINK_PART = "device", "link"


@dataclasses.dataclass(frozen=True)
class Part:
  """What one device or one channel contributes to the critical path.

  Attributes:
    kind: "device" or "link".
    name: its short name.
    count: ops, or transfers, on the path.
    needed_us: computing or sending that the next of the path needed.
    queue_us: computing or sending that the next of the path only waited
      behind: its inputs were there, and the device or link was taken.
    idle_us: launch gaps of a device; latency and gaps of a link.
  """

  kind: str
  name: str
  count: int
  needed_us: float
  queue_us: float
  idle_us: float

  @property
  def work_us(self) -> float:
    return self.needed_us + self.queue_us

  @property
  def total_us(self) -> float:
    return self.work_us + self.idle_us


@dataclasses.dataclass(frozen=True)
class LayerShare:
  """What the ops of one layer compute on the critical path.

  Attributes:
    name: of the layer.
    count: its ops on the path.
    compute_us: that they take.
    devices: short names of the devices where they run, most time first.
  """

  name: str
  count: int
  compute_us: float
  devices: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class PathSummary:
  """The critical path, added up.

  Attributes:
    parts: largest first; only those that are on the path.
    layers: largest first.
  """

  parts: tuple[Part, ...]
  layers: tuple[LayerShare, ...]

  @property
  def compute_us(self) -> float:
    """Ops that run, with what they send, and receives."""
    return sum(p.work_us for p in self.parts if p.kind == DEVICE_PART)

  @property
  def transfer_us(self) -> float:
    """Tensors that are sent."""
    return sum(p.work_us for p in self.parts if p.kind == LINK_PART)

  @property
  def idle_us(self) -> float:
    """Launch gaps, latency and gaps between transfers."""
    return sum(p.idle_us for p in self.parts)

  @property
  def queue_us(self) -> float:
    """Of computing and sending, what the next only waited behind."""
    return sum(p.queue_us for p in self.parts)


@dataclasses.dataclass(frozen=True)
class _Piece:
  """One segment of the path, split."""

  kind: str
  holder: int  # device or channel
  index: int  # op, of a receive the sender, or transfer
  work_us: float
  idle_us: float
  is_queue: bool


def summarize_path(schedule: Schedule) -> PathSummary:
  """Adds up the critical path of a simulated step."""
  pieces = list(_pieces(schedule))
  return PathSummary(_parts(schedule, pieces), _layers(schedule, pieces))


def _pieces(schedule: Schedule) -> Iterator[_Piece]:
  """Each segment lasts until the next one starts."""
  path, moves = schedule.critical_path, schedule.transfers
  for segment, after in itertools.zip_longest(path, path[1:]):
    until = schedule.step_time_us if after is None else after.start_us
    reason = INPUT if after is None else after.waited_for
    index = segment.index
    if segment.kind == "op":
      kind, holder = DEVICE_PART, int(schedule.placement.devices[index])
      done = segment.end_us
    elif segment.kind == "receive":
      kind, holder = DEVICE_PART, int(moves.dst[index])
      index, done = int(moves.src_op[index]), segment.end_us
    else:
      kind, holder = LINK_PART, int(moves.channel[index])
      done = min(float(moves.sent_us[index]), until)
    yield _Piece(
      kind,
      holder,
      index,
      done - segment.start_us,
      until - done,
      reason in (DEVICE, CHANNEL),
    )


def _parts(schedule: Schedule, pieces: Sequence[_Piece]) -> tuple[Part, ...]:
  names = {
    DEVICE_PART: device_names(schedule),
    LINK_PART: channel_names(schedule),
  }
  parts: dict[tuple[str, int], Part] = {}
  for piece in pieces:
    key = piece.kind, piece.holder
    old = parts.get(key)
    if old is None:
      old = Part(piece.kind, names[piece.kind][piece.holder], 0, 0.0, 0.0, 0.0)
    parts[key] = dataclasses.replace(
      old,
      count=old.count + 1,
      needed_us=old.needed_us + (not piece.is_queue) * piece.work_us,
      queue_us=old.queue_us + piece.is_queue * piece.work_us,
      idle_us=old.idle_us + piece.idle_us,
    )
  return tuple(sorted(parts.values(), key=lambda part: -part.total_us))


def _layers(
  schedule: Schedule, pieces: Sequence[_Piece]
) -> tuple[LayerShare, ...]:
  problem = schedule.placement.problem
  short = device_names(schedule)
  graph = problem.graph
  layers = find_layers(graph.names, problem.fastest_us, graph.layer_paths)
  time_us = np.zeros((len(layers.names), problem.cluster.num_devices))
  count = np.zeros(len(layers.names), int)
  for piece in pieces:
    if piece.kind == DEVICE_PART:
      layer = layers.layer_of[piece.index]
      time_us[layer, piece.holder] += piece.work_us
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
