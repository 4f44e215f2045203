"""Memory in use on each device over the step, with capacities."""

from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, Range1d

from tfplace.report.page import figures
from tfplace.report.page.bars import thin_steps
from tfplace.report.units import device_names, format_bytes, time_scale
from tfplace.simulate import Schedule

MAX_POINTS = 6000  # of all devices
# A capacity is drawn where the axis need not grow by more than this for it.
_ROOM = 4.0


def memory_plot(schedule: Schedule, x_range: Range1d, scale: float) -> Any:
  """The figure; its axis of time is that of the timeline."""
  peaks = schedule.peak_memory_bytes
  limits = schedule.placement.problem.cluster.memory_bytes
  highest = max(float(peaks.max(initial=0.0)), 1.0)
  shown = np.flatnonzero(np.isfinite(limits) & (limits <= _ROOM * highest))
  top = 1.06 * max([highest, *limits[shown].tolist()])
  unit, unit_name = _unit(highest)
  y_range = figures.between(0, top / unit)
  plot = figures.new_figure("memory", 342, x_range, y_range)
  names, lines = device_names(schedule), []
  for i in np.argsort(-peaks, kind="stable").tolist():
    lines.append(_draw(plot, schedule, i, names[i], scale, unit))
  if len(shown):
    plot.hspan(
      y=np.unique(limits[shown] / unit).tolist(),
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
  """What the dotted lines of the figure are, and what it leaves out."""
  peaks = schedule.peak_memory_bytes
  limits = schedule.placement.problem.cluster.memory_bytes
  finite = np.isfinite(limits)
  if not finite.any():
    return "No device's memory is limited."
  room = finite & (limits <= _ROOM * max(float(peaks.max(initial=0)), 1.0))
  if room.any():
    text = "Dotted: the capacity of the devices"
    return (
      f"{text}; those far above are not drawn." if (~room).any() else f"{text}."
    )
  return "All capacities are far above what is drawn."


def _unit(peak: float) -> tuple[float, str]:
  name = format_bytes(peak).split()[-1]
  sizes = {"GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10}
  return sizes.get(name, 1.0), name


def _draw(
  plot: Any,
  schedule: Schedule,
  device: int,
  name: str,
  scale: float,
  unit: float,
) -> Any:
  curve = schedule.memory[device]
  step_us = schedule.step_time_us
  limit = MAX_POINTS // len(schedule.memory)
  times, sizes = thin_steps(curve.time_us, curve.num_bytes, limit, step_us)
  times, sizes = np.append(times, step_us), np.append(sizes, sizes[-1:])
  capacity = schedule.placement.problem.cluster.memory_bytes[device]
  peak = format_bytes(float(schedule.peak_memory_bytes[device]))
  of = "" if np.isinf(capacity) else f" of {format_bytes(float(capacity))}"
  label = f"{figures.shorten(name, 24)}: peak {peak}{of}"
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
    line_color=figures.device_color(device),
    line_dash=figures.device_dash(device),
    legend_label=label,
    name=f"memory of {name}",
  )
