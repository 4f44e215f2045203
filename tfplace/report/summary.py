"""Summary of a placed step: a row per device, and what holds the step back."""

import dataclasses
import io
from collections.abc import Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfplace.core import phases
from tfplace.core.units import format_bytes, format_share
from tfplace.report.explain.microbatches import (
  find_device_layers,
  in_blocks,
  parallelism,
)
from tfplace.report.explain.path import summarize_path
from tfplace.report.names import listed, shorten
from tfplace.report.rows import device_names
from tfplace.simulate import Schedule

COLUMNS = ("device", "work", "busy", "peak memory", "what is there")
_WIDTH = 100  # Characters of a printed table; long cells are wrapped.
_MOST_NUMBERS = 8  # Microbatches that a cell lists.
_MOST_LAYERS = 2  # The same of layers.
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
  cluster = schedule.placement.problem.cluster
  names, busy_us = device_names(schedule), schedule.busy_us
  whole_us = max(float(busy_us.sum()), 1e-300)
  step_us = max(schedule.step_time_us, 1e-300)
  holds = _contents(schedule)
  return tuple(
    DeviceRow(
      name,
      float(busy_us[i]) / whole_us,
      float(busy_us[i]) / step_us,
      float(schedule.peak_memory_bytes[i]),
      float(cluster.memory_bytes[i]),
      holds.get(i, ""),
    )
    for i, name in enumerate(names)
    if busy_us[i] > 0 or schedule.peak_memory_bytes[i] > 0
  )


def _contents(schedule: Schedule) -> dict[int, str]:
  """Describes what each device computes: its microbatches or its layers."""
  if not schedule.placement.problem.graph.num_ops:
    return {}
  layers = find_device_layers(schedule)
  stages = {i: "updates" for i in _only_updates(schedule)}
  stages |= {
    device: f"{what} of {_few(names)}"
    for what, found in (("updates", layers.updates), ("parts", layers.parts))
    for device, names in found.items()
    if names
  }
  stages |= {
    device: in_blocks(blocks) for device, blocks in layers.stages.items()
  }
  if not phases.is_split(schedule.placement.problem.graph):
    return stages
  found = parallelism.find_parallelism(schedule)
  if found.pattern == parallelism.PIPELINES:
    return {
      device: f"{_numbered(group.microbatches)} (a pipeline)"
      for group in found.groups
      for device in group.devices
    }
  if found.pattern == parallelism.PIPELINE or found.apart < found.together:
    return stages
  home = found.time_us.argmax(axis=1)
  return stages | {
    int(device): _numbered(np.flatnonzero(home == device).tolist())
    for device in np.unique(home)
  }


def _only_updates(schedule: Schedule) -> list[int]:
  """Returns the devices that only update variables."""
  placement = schedule.placement
  devices = placement.devices
  took_us = placement.problem.time_us[np.arange(len(devices)), devices]
  is_update = phases.updates(placement.problem.graph)
  computes = np.unique(devices[(took_us > 0) & ~is_update])
  return np.setdiff1d(devices[(took_us > 0) & is_update], computes).tolist()


def _few(names: Sequence[str]) -> str:
  more = len(names) - _MOST_LAYERS
  shown = [shorten(name) for name in names[:_MOST_LAYERS]]
  return listed(shown) if more <= 0 else f"{', '.join(shown)} and {more} more"


def _numbered(microbatches: Sequence[int]) -> str:
  numbers = [str(i) for i in microbatches[:_MOST_NUMBERS]]
  if len(microbatches) > len(numbers):
    numbers.append(f"{len(microbatches) - len(numbers)} more")
  noun = "microbatch" if len(microbatches) == 1 else "microbatches"
  return f"{noun} {listed(numbers)}"


def device_table(rows: Sequence[DeviceRow]) -> Table:
  """Builds a table of the rows, for Rich."""
  table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
  device, *numbers, contents = COLUMNS
  table.add_column(device, no_wrap=True)
  for name in numbers:
    table.add_column(name, justify="right", no_wrap=True)
  table.add_column(contents)
  for row in rows:
    table.add_row(*map(Text, device_cells(row)))
  return table


def device_cells(row: DeviceRow) -> tuple[str, ...]:
  """Returns the text of each of `COLUMNS`."""
  return (
    row.name,
    format_share(row.work, 1),
    format_share(row.busy, 1),
    peak_in_words(row),
    row.holds or "variables" * (row.work == 0) or "other ops",
  )


def peak_in_words(row: DeviceRow) -> str:
  """Describes the peak of a device, such as "3 GiB of 16 GiB (19%)"."""
  peak = format_bytes(row.peak_bytes)
  if not np.isfinite(row.limit_bytes):
    return peak
  share = format_share(row.peak_bytes, row.limit_bytes)
  return f"{peak} of {format_bytes(row.limit_bytes)} ({share})"


def table_text(rows: Sequence[DeviceRow]) -> str:
  """Returns the table of the rows as plain text."""
  out = io.StringIO()
  console = Console(
    file=out, width=_WIDTH, color_system=None, force_jupyter=False
  )
  console.print(device_table(rows))
  lines = [line.rstrip() for line in out.getvalue().splitlines()]
  return "\n".join(line for line in lines if line)


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
