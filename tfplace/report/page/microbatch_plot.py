"""Figure of a microbatched step by layer and microbatch.

Each cell has the colors of the devices that compute it. Rows of one color are
data parallelism, and columns of one color are a pipeline.
"""

from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource

from tfplace.core.units import format_share, format_us
from tfplace.report.names import shorten
from tfplace.report.page import figures, layers_plot
from tfplace.report.page.config import CONFIG
from tfplace.report.rows import compute_end_us, device_names
from tfplace.simulate import Schedule


def microbatch_plot(schedule: Schedule) -> Any:
  """Draws a cell per layer and microbatch."""
  graph, at = schedule.placement.problem.graph, schedule.placement.devices
  layers = layers_plot.columns(schedule)
  count = min(int(graph.microbatch.max()) + 1, CONFIG.max_microbatches)
  columns, devices = len(layers.names), len(schedule.memory)
  own = np.flatnonzero((graph.microbatch >= 0) & (graph.microbatch < count))
  shape = (columns, count, devices)
  cell = (layers.layer_of[own], graph.microbatch[own], at[own])
  us = (compute_end_us(schedule) - schedule.op_start_us)[own]
  time_us = np.bincount(
    np.ravel_multi_index(cell, shape), us, columns * count * devices
  )
  plot = figures.new_figure(
    "split",
    150 + 22 * count,
    figures.between(-0.6, columns - 0.4),
    figures.between(count - 0.4, -0.6),
    zooms=False,
  )
  bars = _draw_cells(plot, schedule, layers.names, time_us.reshape(shape))
  names = [layers_plot.short_block(name) for name in layers.names]
  figures.name_ticks(plot.xaxis[0], range(columns), names)
  rows = [f"microbatch {i}" for i in range(count)]
  figures.name_ticks(plot.yaxis[0], range(count), rows)
  plot.xaxis.major_label_orientation = 0.95
  plot.min_width = 32 * columns + 180
  plot.min_border_left = 150  # room for slanted labels
  plot.yaxis.major_tick_line_color = None
  plot.xgrid.grid_line_color = None
  what = [("", "@what"), ("on", "@device"), ("for", "@time")]
  plot.add_tools(figures.hover(bars, what))
  figures.style_legend(plot)
  return plot


def _draw_cells(
  plot: Any, schedule: Schedule, names: tuple[str, ...], time_us: np.ndarray
) -> list[Any]:
  short = device_names(schedule)
  share = time_us / np.maximum(time_us.sum(axis=2, keepdims=True), 1e-300)
  left = np.cumsum(share, axis=2) - share
  drawn = []
  for device in np.flatnonzero(
    share.max(axis=(0, 1), initial=0.0) >= CONFIG.min_cell_share
  ):
    x, y = np.nonzero(share[:, :, device] >= CONFIG.min_cell_share)
    begin, part = left[x, y, device], share[x, y, device]
    edge = x - CONFIG.cell / 2
    data = {
      "left": (edge + CONFIG.cell * begin).round(4).tolist(),
      "right": (edge + CONFIG.cell * (begin + part)).round(4).tolist(),
      "top": (y - CONFIG.cell / 2).tolist(),
      "bottom": (y + CONFIG.cell / 2).tolist(),
      "what": [
        f"{names[a]}, microbatch {b}" for a, b in zip(x, y, strict=True)
      ],
      "device": [f"{short[device]} ({format_share(p, 1)})" for p in part],
      "time": [format_us(us) for us in time_us[x, y, device].tolist()],
    }
    drawn.append(
      plot.quad(
        left="left",
        right="right",
        top="top",
        bottom="bottom",
        source=ColumnDataSource(data),
        fill_color=figures.device_color(int(device)),
        line_color=None,
        legend_label=shorten(short[device], 24),
        name=f"cells of {short[device]}",
      )
    )
  return drawn
