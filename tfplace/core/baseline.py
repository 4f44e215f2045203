"""Baseline of a step: what later placements of the same step are held to.

Plain data: `tfplace.plan.baseline` computes and compares it, `tfplace.formats`
reads and writes it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class DevicePeak:
  """Peak memory of one device.

  Attributes:
    name: name of the device.
    peak_memory_bytes: bytes that the device holds at its peak.
    memory_bytes: its capacity; infinite if unlimited.
  """

  name: str
  peak_memory_bytes: float
  memory_bytes: float


@dataclasses.dataclass(frozen=True)
class LayerCost:
  """Time, traffic and memory of one layer of a placed step.

  Attributes:
    name: path of the layer.
    time_us: time that its ops take of their devices, overhead included.
    sent_bytes: bytes of its outputs that are sent to other devices.
    held_bytes: device name -> bytes that its ops hold at the device's peak.
  """

  name: str
  time_us: float = 0.0
  sent_bytes: float = 0.0
  held_bytes: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Baseline:
  """A placed step, its figures and its layers (`tfplace.baseline.v1`).

  Attributes:
    graph: name of the graph.
    cluster: name of the cluster.
    cluster_digest: digest of its devices and links.
    strategy: strategy that placed the step.
    seed: seed of the strategy.
    variant: the step variant in words, such as "4 microbatches".
    order: order in which a device runs its ready ops.
    costs: cost model of the op times; "" if the graph does not say.
    training: whether it is a training step; None if the graph does not say.
    batch_size: examples per step; None if the graph does not say.
    step_time_us: simulated step time.
    devices: peak memory of each device.
    layers: cost of each layer. Ops outside of layers count as one.
    assignments: op name -> device name.
    extra: unknown keys of the file.
  """

  graph: str
  cluster: str
  cluster_digest: str
  strategy: str
  seed: int
  variant: str
  order: str
  costs: str
  training: bool | None
  batch_size: int | None
  step_time_us: float
  devices: tuple[DevicePeak, ...]
  layers: tuple[LayerCost, ...]
  assignments: Mapping[str, str]
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
