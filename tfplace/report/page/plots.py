"""Figures of memory over time and of layers by device."""

from typing import Any

import numpy as np
from bokeh.models import Range1d

from tfplace.core.units import format_bytes, format_us, size_scale, time_scale
from tfplace.report.layers import (
  OTHER,
  forward_starts,
  layers_of,
  times_by_device,
)
from tfplace.report.names import shorten
from tfplace.report.page import figures
from tfplace.report.rows import compute_us, device_names, thin_steps
from tfplace.report.summary import format_peak
from tfplace.simulate import Schedule

_MAX_POINTS = 6000  # of the memory curves together
_ROOM = 4.0  # Capacities above this multiple of the peak are not drawn.
_MAX_COLUMNS = 28  # of layers; neighbors share one beyond that


def memory_plot(schedule: Schedule, x_range: Range1d) -> Any:
  """Draws the memory in use, on the time axis of the timeline."""
  peaks, step_us = schedule.peak_memory_bytes, schedule.step_time_us
  limits = schedule.placement.problem.cluster.memory_bytes
  highest = max(float(peaks.max(initial=0.0)), 1.0)
  shown = np.unique(limits[limits <= _ROOM * highest])
  unit, unit_name = size_scale(highest)
  (scale, time_unit), names = time_scale(step_us), device_names(schedule)
  top = 1.06 * max([highest, *shown.tolist()]) / unit
  plot = figures.new_figure("memory", 342, x_range, figures.between(0, top))
  lines = []
  for i in np.argsort(-peaks, kind="stable").tolist():
    curve, limit = schedule.memory[i], _MAX_POINTS // len(names)
    times, sizes = thin_steps(curve.time_us, curve.num_bytes, limit, step_us)
    times, sizes = np.append(times, step_us), np.append(sizes, sizes[-1:])
    peak = format_peak(peaks[i], limits[i])
    data = {
      "x": (times / scale).tolist(),
      "y": (sizes / unit).tolist(),
      "device": [names[i]] * len(times),
      "at": [format_us(us) for us in times.tolist()],
      "bytes": [format_bytes(size) for size in sizes.tolist()],
    }
    line = plot.step(
      "x",
      "y",
      source=data,
      mode="after",
      line_width=2,
      line_color=figures.device_color(i),
      line_dash=figures.device_dash(i),
      legend_label=f"{shorten(names[i], 24)}: peak {peak}",
      name=f"memory of {names[i]}",
    )
    lines.append(line)
  if len(shown):
    y = (shown / unit).tolist()
    plot.hspan(y=y, line_color=figures.INK, line_dash=[2, 4], name="capacity")
  plot.xaxis.axis_label = f"time, {time_unit}"
  plot.yaxis.axis_label = f"memory in use, {unit_name}"
  plot.ygrid.grid_line_color = figures.GRID
  rows = [("", "@device"), ("at", "@at"), ("in use", "@bytes")]
  plot.add_tools(figures.hover(lines, rows))
  figures.style_legend(plot)
  return plot


def layers_plot(schedule: Schedule) -> Any:
  """Draws the computation of each layer, stacked by device."""
  names, time_us = layer_times(schedule)
  short = device_names(schedule)
  scale, unit = time_scale(time_us.sum(axis=1).max(initial=0.0))
  tops = np.cumsum(time_us, axis=1) / scale
  plot = figures.new_figure(
    "layers",
    420,
    figures.between(-0.6, len(names) - 0.4),
    figures.between(0, 1.06 * max(float(tops.max(initial=0.0)), 1e-9)),
    zooms=False,
  )
  bars = []
  for i in np.flatnonzero(time_us.any(axis=0)).tolist():
    some = np.flatnonzero(time_us[:, i])
    data = {
      "x": some.tolist(),
      "bottom": (tops[some, i] - time_us[some, i] / scale).tolist(),
      "top": tops[some, i].tolist(),
      "layer": [names[layer] for layer in some.tolist()],
      "device": [short[i]] * len(some),
      "time": [format_us(us) for us in time_us[some, i].tolist()],
    }
    bar = plot.vbar(
      "x",
      top="top",
      bottom="bottom",
      width=0.8,
      source=data,
      fill_color=figures.device_color(i),
      line_color=None,
      legend_label=shorten(short[i], 24),
      name=f"layers of {short[i]}",
    )
    bars.append(bar)
  labels = [shorten(name, 30) for name in names]
  figures.name_ticks(plot.xaxis[0], range(len(names)), labels)
  plot.xaxis.major_label_orientation = 0.95
  plot.yaxis.axis_label = f"computation, {unit}"
  rows = [("", "@layer"), ("on", "@device"), ("for", "@time")]
  plot.add_tools(figures.hover(bars, rows))
  figures.style_legend(plot)
  return plot


def layer_times(schedule: Schedule) -> tuple[list[str], np.ndarray]:
  """Returns names of layers in forward order, and their times by device.

  Many layers are merged into blocks of neighbors. Ops outside of layers come
  last.

  Returns:
    [num_columns] names and [num_columns, num_devices] microseconds.
  """
  layers = layers_of(schedule)
  time_us = times_by_device(layers, schedule, compute_us(schedule))
  start = forward_starts(layers, schedule)
  start[[name == OTHER for name in layers.names]] = np.inf
  order = np.argsort(start, kind="stable")
  order = order[time_us[order].any(axis=1)]
  blocks = np.array_split(order, max(1, min(len(order), _MAX_COLUMNS)))
  ends = ((layers.names[x] for x in (b[0], b[-1])) for b in blocks if len(b))
  names = [" \N{HORIZONTAL ELLIPSIS} ".join(dict.fromkeys(x)) for x in ends]
  return names, np.stack([time_us[block].sum(axis=0) for block in blocks])
