"""Figures of memory, critical path and gains from faster hardware."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, Range1d

from tfplace.core.units import (
  format_bytes,
  format_share,
  format_us,
  size_scale,
  time_scale,
)
from tfplace.report.explain import Explanation
from tfplace.report.names import shorten
from tfplace.report.page import figures
from tfplace.report.rows import device_names, thin_steps
from tfplace.simulate import Schedule

_KINDS = (
  ("needed next", "needed_us", figures.BLUE),
  ("queued behind", "queue_us", figures.SKY),
  ("sending and receiving", "message_us", figures.MESSAGE),
  ("idle", "idle_us", figures.PALE),
)
_MAX_POINTS = 6000  # of the memory curves together
_ROOM = 4.0  # Capacities above this multiple of the peak are not drawn.
_MAX_BARS = 10
_BAR_ROW = 28  # pixels


def memory_plot(schedule: Schedule, x_range: Range1d, scale: float) -> Any:
  """Draws the memory in use, on the time axis of the timeline."""
  peaks = schedule.peak_memory_bytes
  limits = schedule.placement.problem.cluster.memory_bytes
  highest = max(float(peaks.max(initial=0.0)), 1.0)
  shown = limits[np.isfinite(limits) & (limits <= _ROOM * highest)]
  top = 1.06 * max([highest, *shown.tolist()])
  unit, unit_name = size_scale(highest)
  y_range = figures.between(0, top / unit)
  plot = figures.new_figure("memory", 342, x_range, y_range)
  names, lines = device_names(schedule), []
  for i in np.argsort(-peaks, kind="stable").tolist():
    lines.append(_draw_memory(plot, schedule, i, names[i], scale, unit))
  if len(shown):
    plot.hspan(
      y=np.unique(shown / unit).tolist(),
      line_color=figures.INK,
      line_dash=[2, 4],
      line_width=1.5,
      name="capacity",
    )
  plot.yaxis.axis_label = f"memory in use, {unit_name}"
  plot.ygrid.grid_line_color = figures.GRID
  rows = [("", "@device"), ("at", "@at"), ("in use", "@bytes")]
  plot.add_tools(figures.hover(lines, rows))
  figures.style_legend(plot)
  return plot


def capacity_text(schedule: Schedule) -> str:
  """Explains the dotted lines of the memory figure and missing capacities."""
  highest = max(float(schedule.peak_memory_bytes.max(initial=0.0)), 1.0)
  limits = schedule.placement.problem.cluster.memory_bytes
  limits = limits[np.isfinite(limits)]
  if not len(limits):
    return "No device's memory is limited."
  if (limits > _ROOM * highest).all():
    return "All capacities are far above what is drawn."
  if (limits > _ROOM * highest).any():
    return "Dotted: the capacity of the devices; those far above are not drawn."
  return "Dotted: the capacity of the devices."


def _draw_memory(
  plot: Any, schedule: Schedule, i: int, name: str, scale: float, unit: float
) -> Any:
  curve, step_us = schedule.memory[i], schedule.step_time_us
  limit = _MAX_POINTS // len(schedule.memory)
  times, sizes = thin_steps(curve.time_us, curve.num_bytes, limit, step_us)
  times, sizes = np.append(times, step_us), np.append(sizes, sizes[-1:])
  capacity = schedule.placement.problem.cluster.memory_bytes[i]
  peak = format_bytes(float(schedule.peak_memory_bytes[i]))
  of = "" if np.isinf(capacity) else f" of {format_bytes(float(capacity))}"
  scaled, unit_name = times / scale, time_scale(step_us)[1]
  source = ColumnDataSource(
    {
      "x": scaled.tolist(),
      "y": (sizes / unit).tolist(),
      "device": [name] * len(times),
      "at": [f"{t:.4g} {unit_name}" for t in scaled.tolist()],
      "bytes": [format_bytes(float(size)) for size in sizes],
    }
  )
  return plot.step(
    "x",
    "y",
    source=source,
    mode="after",
    line_width=2,
    line_color=figures.device_color(i),
    line_dash=figures.device_dash(i),
    legend_label=f"{shorten(name, 24)}: peak {peak}{of}",
    name=f"memory of {name}",
  )


def path_plot(explanation: Explanation) -> Any:
  """Draws a stacked bar of critical path time per device and link."""
  parts = explanation.path.parts[:_MAX_BARS]
  scale, unit = time_scale(explanation.schedule.step_time_us)
  longest = max((part.total_us for part in parts), default=1.0)
  names = [f"{part.kind} {part.name}" for part in parts]
  plot = _new_rows("path", names, 1.05 * longest / scale)
  left, bars = np.zeros(len(parts)), []
  for label, field, color in _KINDS:
    times = [getattr(part, field) for part in parts]
    if field == "message_us" and not any(times):
      continue
    right = left + np.divide(times, scale)
    data = {
      "left": left.tolist(),
      "right": right.tolist(),
      "where": names,
      "what": [label] * len(parts),
      "time": [format_us(us) for us in times],
    }
    bars.append(_hbar(plot, data, color, label, legend_label=label))
    left = right
  plot.xaxis.axis_label = f"time on the critical path, {unit}"
  rows = [("", "@where"), ("", "@what"), ("time", "@time")]
  plot.add_tools(figures.hover(bars, rows))
  figures.style_legend(plot)
  return plot


def gain_plot(explanation: Explanation) -> Any:
  """Draws the gain in step time from doubling each device's or link's speed."""
  loads = explanation.loads[:_MAX_BARS]
  step_us = max(explanation.schedule.step_time_us, 1e-300)
  gains = [100 * load.gain_us / step_us for load in loads]
  names = [f"{load.kind} {load.name}" for load in loads]
  plot = _new_rows("gains", names, max(1.05 * max(gains, default=0.0), 2.0))
  data = {
    "left": [0.0] * len(loads),
    "right": gains,
    "where": names,
    "time": [format_us(x.if_twice_as_fast_us) for x in loads],
    "busy": [f"{format_share(x.busy_us, step_us)} of the step" for x in loads],
  }
  bars = _hbar(plot, data, figures.GREEN, "gain")
  plot.xaxis.axis_label = "step shorter if twice as fast, %"
  rows = [("", "@where"), ("busy", "@busy"), ("the step then", "@time")]
  plot.add_tools(figures.hover([bars], rows))
  return plot


def _new_rows(name: str, names: Sequence[str], right: float) -> Any:
  count = max(len(names), 1)
  plot = figures.new_figure(
    name,
    90 + _BAR_ROW * count,
    figures.between(0, right),
    figures.between(count - 0.5, -0.5),
    zooms=False,
  )
  labels = [shorten(x, 30) for x in names]
  figures.name_ticks(plot.yaxis[0], range(len(names)), labels)
  plot.yaxis.major_tick_line_color = None
  return plot


def _hbar(
  plot: Any, data: dict[str, Any], color: str, name: str, **options: Any
) -> Any:
  rows = {"y": list(range(len(data["where"])))}
  return plot.hbar(
    y="y",
    left="left",
    right="right",
    height=0.7,
    source=ColumnDataSource(rows | data),
    fill_color=color,
    line_color=None,
    name=name,
    **options,
  )
