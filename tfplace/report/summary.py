"""Summary of a placed step: a row per device, and what holds the step back."""

import dataclasses
import io
from collections.abc import Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfplace.graph import phases
from tfplace.graph.quantities import format_bytes, format_share
from tfplace.report import parallelism
from tfplace.report.layers import (
  OTHER,
  Layers,
  forward_starts,
  layers_of,
  times_by_device,
)
from tfplace.report.path import summarize_path
from tfplace.report.rows import compute_us, device_names, listed, shorten
from tfplace.simulate import Schedule

_WIDTH = 100  # Characters of a printed table; long cells are wrapped.
_MOST_NUMBERS = 8  # Microbatches that a cell lists.
_MOST_LAYERS = 2  # The same of layers, and of blocks of neighboring layers.
_MOST_SHARE = 0.2  # A layer with more of the work is divided into its layers.
# Share of the critical path from which overheads dominate; our choice.
_OVERHEAD_BOUND = 0.5


@dataclasses.dataclass(frozen=True)
class DeviceRow:
  """Work of one device in a step.

  Attributes:
    name: short name, with the kind where devices of a type differ.
    work: share of the computing time of all devices.
    busy: share of the step in which the device computes.
    peak_bytes: largest number of bytes in its memory.
    limit_bytes: its memory.
    holds: layers or microbatches that it computes, in words.
  """

  name: str
  work: float
  busy: float
  peak_bytes: float
  limit_bytes: float
  holds: str


def device_rows(schedule: Schedule) -> tuple[DeviceRow, ...]:
  """Describes each device that computes or holds anything."""
  limits = schedule.placement.problem.cluster.memory_bytes
  busy_us, peaks = schedule.busy_us, schedule.peak_memory_bytes
  whole_us, step_us = float(busy_us.sum()), schedule.step_time_us
  names, holds = device_names(schedule), device_contents(schedule)
  return tuple(
    DeviceRow(
      names[i],
      float(busy_us[i]) / max(whole_us, 1e-300),
      float(busy_us[i]) / max(step_us, 1e-300),
      float(peaks[i]),
      float(limits[i]),
      holds[i],
    )
    for i in np.flatnonzero((busy_us > 0) | (peaks > 0)).tolist()
  )


def device_contents(schedule: Schedule) -> list[str]:
  """Describes each device's microbatches or layers; "" where there are none."""
  graph, count = schedule.placement.problem.graph, len(schedule.memory)
  if not graph.num_ops:
    return [""] * count
  contents = _layers_in_words(schedule)
  if not phases.is_microbatched(graph):
    return contents
  parallel = parallelism.find_parallelism(schedule)
  if parallel.pattern == parallelism.PIPELINES:
    for microbatches, devices in parallel.groups:
      for device in devices:
        contents[device] = f"{_numbered(microbatches)} (a pipeline)"
  elif parallel.by_microbatch:
    home = parallel.time_us.argmax(axis=1)
    for device in np.unique(home).tolist():
      contents[device] = _numbered(np.flatnonzero(home == device).tolist())
  return contents


def _layers_in_words(schedule: Schedule) -> list[str]:
  """Names the layers that a device mostly computes, else those it helps."""
  count, layers = len(schedule.memory), layers_of(schedule, _MOST_SHARE)
  is_update = phases.updates(schedule.placement.problem.graph)
  us = compute_us(schedule)
  computing, updating = (
    times_by_device(layers, schedule, np.where(some, us, 0.0))
    for some in (~is_update, is_update)
  )
  is_layer = np.array([name != OTHER for name in layers.names])
  is_layer &= computing.any(axis=1)  # The optimizer's own scope is no layer.
  blocks = _blocks(schedule, layers, computing, is_layer)

  def longest(time_us: np.ndarray) -> list[str]:
    order = np.argsort(-time_us, kind="stable")
    some = order[(time_us[order] > 0) & is_layer[order]]
    return [shorten(layers.names[i]) for i in some.tolist()]

  contents = [""] * count
  for device in range(count):
    parts, updates = longest(computing[:, device]), longest(updating[:, device])
    if device in blocks:
      contents[device] = _in_blocks(blocks[device])
    elif parts:
      contents[device] = f"parts of {_few(parts, _MOST_LAYERS)}"
    elif updates:
      contents[device] = f"updates of {_few(updates, _MOST_LAYERS)}"
    elif updating[:, device].any() and not computing[:, device].any():
      contents[device] = "updates"
  return contents


def _blocks(
  schedule: Schedule,
  layers: Layers,
  computing: np.ndarray,
  is_layer: np.ndarray,
) -> dict[int, list[tuple[str, str]]]:
  """Finds the layers that each device computes most of.

  Returns:
    Device -> (first, last) names of blocks of neighbors in forward order.
  """
  graph = schedule.placement.problem.graph
  known = np.zeros(len(layers.names), bool)  # the model's own layers
  known[layers.layer_of[graph.layer >= 0]] = True
  shown = np.flatnonzero(is_layer & (known | ~(known & is_layer).any()))
  start = forward_starts(layers, schedule)
  blocks: dict[int, list[tuple[str, str]]] = {}
  before = None
  for layer in shown[np.argsort(start[shown], kind="stable")].tolist():
    name, device = layers.names[layer], int(computing[layer].argmax())
    here = blocks.setdefault(device, [])
    here.append((here.pop()[0] if device == before else name, name))
    before = device
  return blocks


def _in_blocks(blocks: Sequence[tuple[str, str]]) -> str:
  names = [a if a == b else f"{a} to {b}" for a, b in blocks]
  plural = "s" * (len(names) > _MOST_LAYERS + 1)
  return _few(names, _MOST_LAYERS, f" block{plural} of layers")


def _numbered(microbatches: Sequence[int]) -> str:
  noun = "microbatch" if len(microbatches) == 1 else "microbatches"
  return f"{noun} {_few([*map(str, microbatches)], _MOST_NUMBERS)}"


def _few(names: Sequence[str], most: int, noun: str = "") -> str:
  """Lists the first names, and counts the others."""
  more = len(names) - most
  others = [f"{more} more{noun}"] if more > 0 else []
  return listed([*names[:most], *others])


def format_peak(peak_bytes: float, limit_bytes: float) -> str:
  """Describes the peak of a device, such as "3 GiB of 16 GiB (19%)"."""
  peak = format_bytes(peak_bytes)
  if not np.isfinite(limit_bytes):
    return peak
  share = format_share(peak_bytes, limit_bytes)
  return f"{peak} of {format_bytes(limit_bytes)} ({share})"


def table_text(rows: Sequence[DeviceRow]) -> str:
  """Returns the table of the rows as plain text."""
  table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
  table.add_column("device", no_wrap=True)
  for name in ("work", "busy", "peak memory"):
    table.add_column(name, justify="right", no_wrap=True)
  table.add_column("what is there")
  for row in rows:
    cells = (
      row.name,
      format_share(row.work, 1),
      format_share(row.busy, 1),
      format_peak(row.peak_bytes, row.limit_bytes),
      row.holds or "variables" * (row.work == 0) or "other ops",
    )
    table.add_row(*map(Text, cells))
  console = Console(
    file=io.StringIO(), width=_WIDTH, color_system=None, force_jupyter=False
  )
  with console.capture() as printed:
    console.print(table)
  lines = [line.rstrip() for line in printed.get().splitlines()]
  return "\n".join(filter(None, lines))


def held_back(schedule: Schedule) -> str:
  """Says in a sentence what the critical path consists of; "" if of nothing."""
  path, step_us = summarize_path(schedule), schedule.step_time_us
  if not path.parts or step_us <= 0:
    return ""
  overhead = path.idle_us + path.message_us
  if overhead >= _OVERHEAD_BOUND * step_us:
    return (
      f"Overhead-bound: {format_share(overhead, step_us)} of the critical path"
      " is launch gaps and latency, so the ratio may not hold on real devices"
    )
  shares = (
    (path.compute_us, "computation"),
    (path.transfer_us, "communication"),
    (overhead, "launch gaps and latency"),
  )
  parts = [f"{format_share(us, step_us)} {what}" for us, what in shares if us]
  return f"The critical path is {listed(parts)}"
