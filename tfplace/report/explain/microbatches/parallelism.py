"""Distribution of microbatches over devices, classified by parallelism.

The patterns are data parallelism, a pipeline, pipelines side by side and a
mixture. They are inferred from the placement, weighted by op time, because a
search does not know them and rarely follows one exactly.
"""

import dataclasses

import numpy as np

from tfplace.core import phases
from tfplace.core.paths import DisjointSets
from tfplace.report.explain.config import CONFIG
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


@dataclasses.dataclass(frozen=True, eq=False)
class MicrobatchGroup:
  """A group of microbatches, and the devices that work only on these.

  Attributes:
    microbatches: indices, ascending.
    devices: indices, ascending.
  """

  microbatches: tuple[int, ...]
  devices: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Parallelism:
  """Distribution of the microbatches' work over devices.

  Attributes:
    pattern: one of the names above.
    followed: fraction of the work that follows the pattern.
    time_us: [num_microbatches, num_devices] op time.
    together: fraction of that time in layers with one device for all
      microbatches.
    apart: fraction in other layers with one device per microbatch.
    groups: microbatches and devices without connections between groups.
    stages: device -> the layers that it computes most of, as (first, last)
      names of blocks of neighbors in forward order.
  """

  pattern: str
  followed: float
  time_us: np.ndarray
  together: float
  apart: float
  groups: tuple[MicrobatchGroup, ...]
  stages: dict[int, tuple[tuple[str, str], ...]]

  @property
  def divided(self) -> float:
    """Fraction of time in layers divided within a microbatch."""
    return max(0.0, 1.0 - self.together - self.apart)


@dataclasses.dataclass(frozen=True, eq=False)
class _Work:
  """Ops of microbatches: [n] int64, and float64 microseconds."""

  layer: np.ndarray
  microbatch: np.ndarray
  device: np.ndarray
  time_us: np.ndarray
  num_devices: int

  def by(self, key: np.ndarray) -> "_Sums":
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
  """Time of each key [num_keys], in total and on its main device."""

  key: np.ndarray
  whole_us: np.ndarray
  main_us: np.ndarray
  device: np.ndarray

  @property
  def share(self) -> float:
    return float(self.main_us.sum() / max(self.whole_us.sum(), 1e-300))


def find_parallelism(schedule: Schedule) -> Parallelism:
  """Analyzes the microbatches of a step."""
  placement = schedule.placement
  graph, num_devices = placement.problem.graph, len(schedule.memory)
  layers = find_layers(
    graph.names, placement.problem.fastest_us, graph.layer_paths
  )
  work = _work(schedule, layers, np.flatnonzero(graph.microbatch >= 0))
  count = int(graph.microbatch.max()) + 1
  cell = work.microbatch * num_devices + work.device
  time_us = np.bincount(cell, work.time_us, count * num_devices)
  time_us = time_us.reshape(count, num_devices)
  groups, (together, apart) = _groups(time_us), _shares(work, count)
  return Parallelism(
    *_pattern(work, time_us, groups),
    time_us,
    together,
    apart,
    groups,
    _stages(work, layers, _forward_order(schedule, layers)),
  )


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceLayers:
  """Layers by device, in the whole step and not only in its microbatches.

  Attributes:
    stages: see `Parallelism.stages`.
    parts: device -> names of the layers that take most of its time, longest
      first.
    updates: the same of layers of which it only runs updates of variables.
  """

  stages: dict[int, tuple[tuple[str, str], ...]]
  parts: dict[int, tuple[str, ...]]
  updates: dict[int, tuple[str, ...]]


def find_device_layers(schedule: Schedule) -> DeviceLayers:
  """Finds the layers that each device computes."""
  problem = schedule.placement.problem
  graph = problem.graph
  layers = find_layers(
    graph.names, problem.fastest_us, graph.layer_paths, CONFIG.most_share
  )
  is_update = phases.updates(graph)
  computes = _work(schedule, layers, np.flatnonzero(~is_update))
  parts = _longest(layers, computes)
  # The optimizer's own scope is no layer.
  own = {name for names in parts.values() for name in names}
  updating = _work(schedule, layers, np.flatnonzero(is_update))
  updates = {
    device: tuple(n for n in names if n in own and n not in parts[device])
    for device, names in _longest(layers, updating).items()
  }
  order = _forward_order(schedule, layers)
  return DeviceLayers(_stages(computes, layers, order), parts, updates)


def _longest(layers: Layers, work: _Work) -> dict[int, tuple[str, ...]]:
  """Returns the layers of each device that take time, the longest first."""
  cell = work.layer * work.num_devices + work.device
  time_us = np.bincount(
    cell, work.time_us, len(layers.names) * work.num_devices
  ).reshape(-1, work.num_devices)
  return {
    device: tuple(
      layers.names[i]
      for i in np.argsort(-time_us[:, device], kind="stable").tolist()
      if time_us[i, device] > 0 and layers.names[i] != OTHER
    )
    for device in range(work.num_devices)
  }


def _work(schedule: Schedule, layers: Layers, ops: np.ndarray) -> _Work:
  placement = schedule.placement
  op_us = compute_end_us(schedule) - schedule.op_start_us
  return _Work(
    layers.layer_of[ops],
    placement.problem.graph.microbatch[ops].astype(np.int64),
    placement.devices[ops].astype(np.int64),
    op_us[ops],
    len(schedule.memory),
  )


def _shares(work: _Work, count: int) -> tuple[float, float]:
  """Returns the fractions with one device, and with one per microbatch."""
  layers, parts = work.by(work.layer), work.by(_pair(work, count))
  whole_us = max(layers.whole_us.sum(), 1e-300)
  is_one = layers.main_us >= CONFIG.layer_share * layers.whole_us
  at = np.searchsorted(layers.key, parts.key // count)
  each_us = np.bincount(at, parts.main_us, len(layers.key))
  is_each = ~is_one & (each_us >= CONFIG.layer_share * layers.whole_us)
  return (
    float(layers.whole_us[is_one].sum() / whole_us),
    float(layers.whole_us[is_each].sum() / whole_us),
  )


def _pair(work: _Work, count: int) -> np.ndarray:
  return work.layer * count + work.microbatch


def _groups(time_us: np.ndarray) -> tuple[MicrobatchGroup, ...]:
  """Finds connected groups in time_us [num_microbatches, num_devices]."""
  count, num_devices = time_us.shape
  least_us = CONFIG.used / num_devices * time_us.sum(axis=1, keepdims=True)
  pairs = np.argwhere((time_us >= least_us) & (time_us > 0)).tolist()
  sets = DisjointSets(count + num_devices)
  for microbatch, device in pairs:
    sets.union(microbatch, count + device)
  roots = sets.roots()
  return tuple(
    MicrobatchGroup(
      tuple(np.flatnonzero(roots[:count] == root).tolist()),
      tuple(np.flatnonzero(roots[count:] == root).tolist()),
    )
    for root in dict.fromkeys(roots[[m for m, _ in pairs]].tolist())
  )


def _pattern(
  work: _Work, time_us: np.ndarray, groups: tuple[MicrobatchGroup, ...]
) -> tuple[str, float]:
  """Returns the first pattern that most work follows, and its fraction."""
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
    if is_possible and sums.share >= CONFIG.pattern_share:
      return pattern, sums.share
  return MIXTURE, 1.0


def _forward_order(schedule: Schedule, layers: Layers) -> np.ndarray:
  """Returns layer indices in forward order; the model's own layers if known."""
  graph = schedule.placement.problem.graph
  is_layer = np.array([name != OTHER for name in layers.names])
  known = np.unique(layers.layer_of[graph.layer >= 0])
  known = known[is_layer[known]]
  if not len(known):
    known = np.flatnonzero(is_layer)
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
