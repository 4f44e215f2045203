"""Figure of a step by layer and microbatch.

Each cell has the colors of the devices that compute it. Rows of one color are
data parallelism, and columns of one color are a pipeline.
"""

from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource

from tfplace.core import phases
from tfplace.core.units import format_share, format_us
from tfplace.report.explain.layers import (
  OTHER,
  Layers,
  find_layers,
  forward_starts,
)
from tfplace.report.names import shorten
from tfplace.report.page import figures
from tfplace.report.rows import compute_end_us, device_names
from tfplace.simulate import Schedule

BETWEEN = " \N{HORIZONTAL ELLIPSIS} "  # joins first and last layer of a block
_MAX_COLUMNS, _MAX_ROWS = 28, 32
_LEAST_SHARE = 0.002  # of op time that deserves a column
_LEAST_PART = 0.02  # of a cell that is drawn
_CELL = 0.88  # fraction of a column and a row that a cell fills


def layers_plot(schedule: Schedule) -> Any:
  """Draws a cell per layer and microbatch; a whole step is one row."""
  graph, at = schedule.placement.problem.graph, schedule.placement.devices
  layers = columns(schedule)
  is_split = graph.num_microbatches > 1
  count = min(graph.num_microbatches, _MAX_ROWS) if is_split else 1
  row = graph.microbatch if is_split else np.zeros(graph.num_ops, np.int64)
  width, devices = len(layers.names), len(schedule.memory)
  own = np.flatnonzero((row >= 0) & (row < count))
  cell = (layers.layer_of[own], row[own], at[own])
  us = (compute_end_us(schedule) - schedule.op_start_us)[own]
  time_us = np.zeros((width, count, devices))
  np.add.at(time_us, cell, us)
  plot = figures.new_figure(
    "layers",
    150 + 22 * count,
    figures.between(-0.6, width - 0.4),
    figures.between(count - 0.4, -0.6),
    zooms=False,
  )
  bars = _draw_cells(plot, schedule, layers.names, time_us)
  names = [short_block(name) for name in layers.names]
  figures.name_ticks(plot.xaxis[0], range(width), names)
  rows = [f"microbatch {i}" if is_split else "the step" for i in range(count)]
  figures.name_ticks(plot.yaxis[0], range(count), rows)
  plot.xaxis.major_label_orientation = 0.95
  plot.min_width = 32 * width + 180
  plot.min_border_left = 150  # room for slanted labels
  plot.yaxis.major_tick_line_color = None
  plot.xgrid.grid_line_color = None
  what = [("", "@what"), ("on", "@device"), ("for", "@time")]
  plot.add_tools(figures.hover(bars, what))
  figures.style_legend(plot)
  return plot


def columns(schedule: Schedule) -> Layers:
  """Returns layers in order of execution, with small ones merged."""
  graph = schedule.placement.problem.graph
  time_us = compute_end_us(schedule) - schedule.op_start_us
  layers = find_layers(
    graph.names, schedule.placement.problem.fastest_us, graph.layer_paths
  )
  total = np.bincount(layers.layer_of, time_us, len(layers.names))
  # Otherwise `merge_in_order` merges them.
  if len(layers.names) <= _MAX_COLUMNS:
    layers = _fold_small(layers, total)
  total = np.bincount(layers.layer_of, time_us, len(layers.names))
  # Layers are ordered by their forward pass, if any. Ops outside layers come
  # last.
  position = forward_starts(
    layers, schedule.op_start_us, time_us, phases.is_forward(graph)
  )
  position[[name == OTHER for name in layers.names]] = np.inf
  return merge_in_order(layers, position, total, _MAX_COLUMNS)


def _fold_small(layers: Layers, weight: np.ndarray) -> Layers:
  is_small = weight < _LEAST_SHARE * float(weight.sum())
  if not is_small.any() or is_small.all():
    return layers
  names = [
    n for n, small in zip(layers.names, is_small, strict=True) if not small
  ]
  if OTHER not in names:
    names.append(OTHER)
  number = np.where(is_small, names.index(OTHER), np.cumsum(~is_small) - 1)
  return Layers(tuple(names), number[layers.layer_of])


def merge_in_order(
  layers: Layers, position: np.ndarray, weight: np.ndarray, limit: int
) -> Layers:
  """Merges neighboring layers into at most `limit` blocks of similar weight.

  `position` and `weight` are [num_layers]. The result is sorted by position,
  and a block is named by its first and last layer.
  """
  order = np.argsort(position, kind="stable")
  block = np.arange(len(order))
  if len(order) > limit:
    share = weight[order] + 1e-9 * max(float(weight.sum()), 1e-300)
    middle = (np.cumsum(share) - share / 2) / share.sum()
    block = np.minimum((middle * limit).astype(np.int64), limit - 1)
    block = np.unique(block, return_inverse=True)[1]
  rank = np.empty(len(order), np.int64)
  rank[order] = block
  members: list[list[str]] = [[] for _ in range(int(block.max(initial=-1)) + 1)]
  for number, into in zip(order.tolist(), block.tolist(), strict=True):
    members[into].append(layers.names[number])
  names = [BETWEEN.join(dict.fromkeys((x[0], x[-1]))) for x in members]
  return Layers(tuple(names), rank[layers.layer_of])


def short_block(name: str) -> str:
  """Shortens the name of a layer or block to a label."""
  ends = name.split(BETWEEN)
  return BETWEEN.join(shorten(end, 30 // len(ends)) for end in ends)


def _draw_cells(
  plot: Any, schedule: Schedule, names: tuple[str, ...], time_us: np.ndarray
) -> list[Any]:
  short = device_names(schedule)
  share = time_us / np.maximum(time_us.sum(axis=2, keepdims=True), 1e-300)
  left = np.cumsum(share, axis=2) - share
  drawn = []
  for device in np.flatnonzero(
    share.max(axis=(0, 1), initial=0.0) >= _LEAST_PART
  ):
    x, y = np.nonzero(share[:, :, device] >= _LEAST_PART)
    begin, part = left[x, y, device], share[x, y, device]
    edge = x - _CELL / 2
    data = {
      "left": (edge + _CELL * begin).round(4).tolist(),
      "right": (edge + _CELL * (begin + part)).round(4).tolist(),
      "top": (y - _CELL / 2).tolist(),
      "bottom": (y + _CELL / 2).tolist(),
      "what": [
        f"{names[a]}, microbatch {b}" if time_us.shape[1] > 1 else names[a]
        for a, b in zip(x, y, strict=True)
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
