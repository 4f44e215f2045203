"""How the microbatches of a split step are spread over devices, in the words of
the field: data parallelism, a pipeline, pipelines side by side, a mixture.

Found from the placement alone, by the time that ops take: the search knows no
such patterns, and hardly ever follows one to the last op.
"""

import dataclasses

import numpy as np

from tfplace.core.paths import DisjointSets
from tfplace.report import phases
from tfplace.report.explain.layers import (
  OTHER,
  Layers,
  find_layers,
  forward_starts,
)
from tfplace.report.rows import compute_end_us
from tfplace.simulate import Schedule

ONE_DEVICE = "one device"
DATA_PARALLEL = "data parallel"
PIPELINE = "pipeline"
PIPELINES = "pipelines side by side"
MIXTURE = "mixture"
FOLLOWED = 0.8  # of the work, that makes a pattern
PURE = 0.9  # of the work of a layer: what is so but for odd ops
_USED = 0.1  # of an even share of a microbatch: a device that works on it


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
  """Microbatches and the devices that work on them, and on no others.

  Attributes:
    microbatches: numbers, ascending.
    devices: indices, ascending.
  """

  microbatches: tuple[int, ...]
  devices: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Spread:
  """Which device works on what of the microbatches.

  Attributes:
    pattern: one of the names above.
    followed: share of the work that is where the pattern has it.
    time_us: [num_microbatches, num_devices] what their ops take.
    together: share of that time in layers whose microbatches share one device.
    apart: the same in the other layers with one device for each microbatch.
    groups: what is apart from each other.
    stages: device -> the layers that it computes most of, as blocks of
      neighbours in the order of the forward pass: the first and the last name.
  """

  pattern: str
  followed: float
  time_us: np.ndarray
  together: float
  apart: float
  groups: tuple[Group, ...]
  stages: dict[int, tuple[tuple[str, str], ...]]

  @property
  def divided(self) -> float:
    """Share of the time in layers that are divided within a microbatch."""
    return max(0.0, 1.0 - self.together - self.apart)


@dataclasses.dataclass(frozen=True, eq=False)
class _Work:
  """Ops of microbatches: [n] each; int64, and float64 microseconds."""

  layer: np.ndarray
  microbatch: np.ndarray
  device: np.ndarray
  time_us: np.ndarray
  num_devices: int

  def by(self, key: np.ndarray) -> "_Sums":
    """Sums over the ops of one key [n], whole numbers."""
    pairs, of = np.unique(
      key.astype(np.int64) * self.num_devices + self.device,
      return_inverse=True,
    )
    us = np.bincount(of, self.time_us, len(pairs))
    keys, device = np.divmod(pairs, self.num_devices)
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    main = np.lexsort((us, keys))[np.append(first[1:], len(keys)) - 1]
    whole_us = np.add.reduceat(us, first) if len(us) else us
    return _Sums(keys[first], whole_us, us[main], device[main])


@dataclasses.dataclass(frozen=True, eq=False)
class _Sums:
  """Of each key [num_keys]: its time, that on its main device, that device."""

  key: np.ndarray
  whole_us: np.ndarray
  main_us: np.ndarray
  device: np.ndarray

  @property
  def share(self) -> float:
    """Of all time, what is on the main device of its key."""
    return float(self.main_us.sum() / max(self.whole_us.sum(), 1e-300))


def find_spread(schedule: Schedule) -> Spread:
  """Looks at the microbatches of a split step."""
  placement = schedule.placement
  graph, num_devices = placement.problem.graph, len(schedule.memory)
  layers = find_layers(
    graph.names, placement.problem.fastest_us, graph.layer_paths
  )
  own = np.flatnonzero(graph.microbatch >= 0)
  op_us = compute_end_us(schedule) - schedule.op_start_us
  work = _Work(
    layers.layer_of[own],
    graph.microbatch[own].astype(np.int64),
    placement.devices[own].astype(np.int64),
    op_us[own],
    num_devices,
  )
  count = int(graph.microbatch.max()) + 1
  cell = work.microbatch * num_devices + work.device
  time_us = np.bincount(cell, work.time_us, count * num_devices)
  time_us = time_us.reshape(count, num_devices)
  groups, (together, apart) = _groups(time_us), _shares(work, count)
  return Spread(
    *_pattern(work, time_us, groups),
    time_us,
    together,
    apart,
    groups,
    _stages(work, layers, _forward_order(schedule, layers)),
  )


def _shares(work: _Work, count: int) -> tuple[float, float]:
  """Time in layers with one device, and with one for each microbatch."""
  layers, parts = work.by(work.layer), work.by(_pair(work, count))
  whole_us = max(layers.whole_us.sum(), 1e-300)
  is_one = layers.main_us >= PURE * layers.whole_us
  at = np.searchsorted(layers.key, parts.key // count)
  each_us = np.bincount(at, parts.main_us, len(layers.key))
  is_each = ~is_one & (each_us >= PURE * layers.whole_us)
  return (
    float(layers.whole_us[is_one].sum() / whole_us),
    float(layers.whole_us[is_each].sum() / whole_us),
  )


def _pair(work: _Work, count: int) -> np.ndarray:
  """[n] a number of each layer of each microbatch."""
  return work.layer * count + work.microbatch


def _groups(time_us: np.ndarray) -> tuple[Group, ...]:
  """What time_us [num_microbatches, num_devices] joins, little of it aside."""
  count, num_devices = time_us.shape
  least_us = _USED / num_devices * time_us.sum(axis=1, keepdims=True)
  pairs = np.argwhere((time_us >= least_us) & (time_us > 0)).tolist()
  sets = DisjointSets(count + num_devices)
  for microbatch, device in pairs:
    sets.union(microbatch, count + device)
  roots = sets.roots()
  return tuple(
    Group(
      tuple(np.flatnonzero(roots[:count] == root).tolist()),
      tuple(np.flatnonzero(roots[count:] == root).tolist()),
    )
    for root in dict.fromkeys(roots[[m for m, _ in pairs]].tolist())
  )


def _pattern(
  work: _Work, time_us: np.ndarray, groups: tuple[Group, ...]
) -> tuple[str, float]:
  """The first pattern that most of the work follows, and how much of it."""
  if sum(len(group.devices) for group in groups) < 2:
    whole_us = max(float(time_us.sum()), 1e-300)
    return ONE_DEVICE, float(time_us.sum(axis=0).max()) / whole_us
  homes, layers = work.by(work.microbatch), work.by(work.layer)
  number = np.zeros(len(time_us), np.int64)
  for i, group in enumerate(groups):
    number[list(group.microbatches)] = i
  in_groups = work.by(work.layer * len(groups) + number[work.microbatch])
  for pattern, sums, is_possible in (
    (DATA_PARALLEL, homes, len(np.unique(homes.device)) > 1),
    (PIPELINE, layers, len(np.unique(layers.device)) > 1),
    (PIPELINES, in_groups, len(groups) > 1),
  ):
    if is_possible and sums.share >= FOLLOWED:
      return pattern, sums.share
  return MIXTURE, 1.0


def _forward_order(schedule: Schedule, layers: Layers) -> np.ndarray:
  """Numbers of the layers in the order in which they compute; the model's own,
  where the graph knows them."""
  graph = schedule.placement.problem.graph
  known = np.unique(layers.layer_of[graph.layer >= 0])
  if not len(known):
    known = np.flatnonzero([name != OTHER for name in layers.names])
  start = forward_starts(
    layers,
    schedule.op_start_us,
    compute_end_us(schedule) - schedule.op_start_us,
    phases.is_forward(graph),
  )
  return known[np.argsort(start[known], kind="stable")]


def _stages(
  work: _Work, layers: Layers, order: np.ndarray
) -> dict[int, tuple[tuple[str, str], ...]]:
  """The blocks of layers of each device, devices in the order of the first."""
  sums = work.by(work.layer)
  some = sums.whole_us > 0
  device_of = dict(
    zip(sums.key[some].tolist(), sums.device[some].tolist(), strict=True)
  )
  blocks: dict[int, list[tuple[str, str]]] = {}
  before = None
  for layer in order.tolist():
    if layer in device_of:
      name, device = layers.names[layer], device_of[layer]
      own = blocks.setdefault(device, [])
      begin = own.pop()[0] if device == before else name
      own.append((begin, name))
      before = device
  return {device: tuple(own) for device, own in blocks.items()}
