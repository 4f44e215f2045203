"""Explanation of a placement: data of `tfplace.explanation.v1`."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfplace.formats import codec
from tfplace.graph.order import RANK
from tfplace.graph.placement import Placement
from tfplace.graph.quantities import format_bytes, format_share, format_us
from tfplace.report.explain.bottleneck import FixedOrder, Load, find_loads
from tfplace.report.explain.microbatches import (
  MicrobatchReport,
  report_microbatches,
)
from tfplace.report.path import PathSummary, summarize_path
from tfplace.report.rows import (
  as_schedule,
  channel_busy_us,
  channel_names,
  device_names,
)
from tfplace.report.summary import device_contents
from tfplace.simulate import Schedule

FORMAT = "tfplace.explanation.v1"
_MIN_GAIN = 0.01  # least fraction of the step that a bottleneck gains


@dataclasses.dataclass(frozen=True)
class DeviceUse:
  """Use of one device.

  Attributes:
    name: its short name.
    kind: its kind.
    busy_us: time in which it computes.
    share_of_peak: time that its matrix products and convolutions take at the
      data-sheet peak of their precision, over the step time (MFU, Chowdhery et
      al., PaLM, 2022); None without ops or where the peak is unknown.
    peak_memory_bytes: largest number of bytes in its memory.
    memory_bytes: its memory.
    holds: layers or microbatches that it computes, in words.
  """

  name: str
  kind: str
  busy_us: float
  share_of_peak: float | None
  peak_memory_bytes: float
  memory_bytes: float
  holds: str


@dataclasses.dataclass(frozen=True)
class LinkUse:
  """Name of a channel and the time in which it sends."""

  name: str
  busy_us: float


@dataclasses.dataclass(frozen=True)
class Explanation:
  """Explanation of a step time. Devices and links have short names (`GPU:0`).

  Attributes:
    graph: name of the graph.
    cluster: name of the cluster.
    order: order of ops.
    step_time_us: simulated step time.
    lower_bound_us: proven minimum.
    ratio_to_bound: step time over bound; None for bound 0.
    share_of_peak: MFU, time at the data-sheet peak over step time: mean of the
      devices in use; None where no peak is known.
    feasible: fits in memory.
    devices: time, memory and contents of each.
    links: time of each channel.
    critical_path: its time by kind, part and layer.
    bottleneck: the device or link that shortens the step most.
    if_twice_as_fast: per device and link, in the same order of ops.
    summary: the sentences above the tables.
    microbatching: pattern, times and limits of a microbatched step.
  """

  graph: str
  cluster: str
  order: str
  step_time_us: float
  lower_bound_us: float
  ratio_to_bound: float | None
  share_of_peak: float | None
  feasible: bool
  devices: tuple[DeviceUse, ...]
  links: tuple[LinkUse, ...]
  critical_path: PathSummary
  bottleneck: Load | None
  if_twice_as_fast: tuple[Load, ...]
  summary: tuple[str, ...]
  microbatching: MicrobatchReport | None

  def to_json(self) -> dict[str, Any]:
    """Converts to JSON, with times in microseconds and sizes in bytes."""
    data = {"format": FORMAT, **codec.to_json(self)}
    if self.bottleneck is not None:
      data["bottleneck"] = {k: data["bottleneck"][k] for k in ("kind", "name")}
    if self.microbatching is None:
      del data["microbatching"]
    return data


def explain(step: Schedule | Placement) -> Explanation:
  """Explains a placement by its simulated step.

  Args:
    step: the placement. Its problem's bound is the proven one after
      `bounds.tightened`, else that of rule 7 (bound) of docs/simulation.md.
  """
  schedule = as_schedule(step)
  problem, step_us = schedule.placement.problem, schedule.step_time_us
  order, bound_us = FixedOrder(schedule), problem.lower_bound_us
  loads, devices = find_loads(order), _devices(schedule)
  shares = [d.share_of_peak for d in devices if d.share_of_peak is not None]
  gaining = (load for load in loads if load.gain_us > _MIN_GAIN * step_us)
  links = zip(channel_names(schedule), channel_busy_us(schedule), strict=True)
  explanation = Explanation(
    graph=problem.graph.name,
    cluster=problem.cluster.name,
    order=problem.order,
    step_time_us=step_us,
    lower_bound_us=bound_us,
    ratio_to_bound=step_us / bound_us if bound_us > 0 else None,
    share_of_peak=float(np.mean(shares)) if shares else None,
    feasible=all(d.peak_memory_bytes <= d.memory_bytes for d in devices),
    devices=devices,
    links=tuple(LinkUse(name, float(us)) for name, us in links),
    critical_path=summarize_path(schedule),
    bottleneck=next(gaining, None),
    if_twice_as_fast=loads,
    summary=(),
    microbatching=report_microbatches(order),
  )
  return dataclasses.replace(explanation, summary=tuple(_summary(explanation)))


def _devices(schedule: Schedule) -> tuple[DeviceUse, ...]:
  placement = schedule.placement
  peak_us = placement.problem.graph.peak_us
  names, contents = device_names(schedule), device_contents(schedule)
  result = []
  for i, device in enumerate(placement.problem.cluster.devices):
    share, busy_us = None, float(schedule.busy_us[i])
    if device.kind in peak_us and busy_us > 0:
      at_peak_us = peak_us[device.kind][placement.devices == i].sum()
      share = float(at_peak_us / schedule.step_time_us)
    result.append(
      DeviceUse(
        names[i],
        device.kind,
        busy_us,
        share,
        float(schedule.peak_memory_bytes[i]),
        device.memory_bytes,
        contents[i],
      )
    )
  return tuple(result)


def _summary(explanation: Explanation) -> Iterator[str]:
  step_us, ratio = explanation.step_time_us, explanation.ratio_to_bound
  by_rank = ", its ops in order of rank" * (explanation.order == RANK)
  bound = ""
  if ratio is not None:
    bound_us = format_us(explanation.lower_bound_us)
    bound = f": {ratio:.2f} times the lower bound of {bound_us}"
  yield (
    f"A step of {explanation.graph} on {explanation.cluster} takes"
    f" {format_us(step_us)}, simulated{by_rank}{bound}."
  )
  for device in explanation.devices:
    if device.peak_memory_bytes > device.memory_bytes:
      yield (
        f"It does not fit: {device.name} needs"
        f" {format_bytes(device.peak_memory_bytes)} and has"
        f" {format_bytes(device.memory_bytes)}."
      )
  if explanation.share_of_peak is not None:
    share = format_share(explanation.share_of_peak, 1)
    yield f"Devices in use reach {share} of their data-sheet peak (MFU)."
  best = explanation.bottleneck
  if best is not None:
    yield (
      f"The bottleneck is {best.kind} {best.name}, busy for"
      f" {format_share(best.busy_us, step_us)} of the step: twice as fast, it"
      f" would shorten the step by {format_share(best.gain_us, step_us)}."
    )
  else:
    yield "No device or link is a bottleneck by itself."
  parts = explanation.microbatching
  if parts is not None:
    yield (
      f"Its {parts.microbatches} microbatches: {parts.pattern} for"
      f" {format_share(parts.followed, 1)} of the work, with a bubble of"
      f" {format_share(parts.bubble, 1)}."
    )
