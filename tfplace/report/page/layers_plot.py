"""Figure of layers and devices: a disc for work, arcs for traffic."""

from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource

from tfplace.core.units import format_bytes, format_us
from tfplace.report import phases
from tfplace.report.explain.layers import (
  OTHER,
  Layers,
  find_layers,
  forward_starts,
)
from tfplace.report.names import shorten
from tfplace.report.page import figures
from tfplace.report.page.config import CONFIG
from tfplace.report.rows import compute_end_us, device_names
from tfplace.simulate import Schedule

BETWEEN = " \N{HORIZONTAL ELLIPSIS} "  # joins first and last layer of a block


def layers_plot(schedule: Schedule) -> Any:
  """Draws a column per layer and a row per device."""
  layers = columns(schedule)
  devices = len(schedule.memory)
  plot = figures.new_figure(
    "layers",
    190 + CONFIG.layer_row * devices,
    figures.between(-0.7, len(layers.names) - 0.3),
    figures.between(devices - 0.35, -0.65),
    zooms=False,
  )
  arcs = _draw_arcs(plot, schedule, layers)
  discs = _draw_discs(plot, schedule, layers)
  names = [short_block(name) for name in layers.names]
  figures.name_ticks(plot.xaxis[0], range(len(names)), names)
  rows = [shorten(name, 24) for name in device_names(schedule)]
  figures.name_ticks(plot.yaxis[0], range(devices), rows)
  plot.xaxis.major_label_orientation = 0.95
  plot.min_width = 32 * len(layers.names) + 180
  plot.min_border_left = 150  # room for slanted labels
  plot.yaxis.major_tick_line_color = None
  plot.xgrid.grid_line_color = None
  plot.ygrid.grid_line_color = figures.GRID
  if discs is not None:
    what = [("layer", "@layer"), ("on", "@device"), ("ops", "@ops")]
    plot.add_tools(figures.hover([discs], [*what, ("busy for", "@time")]))
  if arcs is not None:
    what = [("from", "@source"), ("to", "@target"), ("sent", "@bytes")]
    plot.add_tools(figures.hover([arcs], what))
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
  if len(layers.names) <= CONFIG.max_layers:
    layers = _fold_small(layers, total)
  total = np.bincount(layers.layer_of, time_us, len(layers.names))
  # Layers are ordered by their forward pass, if any. Ops outside layers come
  # last.
  position = forward_starts(
    layers, schedule.op_start_us, time_us, phases.is_forward(graph)
  )
  position[[name == OTHER for name in layers.names]] = np.inf
  return merge_in_order(layers, position, total, CONFIG.max_layers)


def _fold_small(layers: Layers, weight: np.ndarray) -> Layers:
  is_small = weight < CONFIG.min_layer_share * float(weight.sum())
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


def _draw_discs(plot: Any, schedule: Schedule, layers: Layers) -> Any:
  devices, short = schedule.placement.devices, device_names(schedule)
  time_us = compute_end_us(schedule) - schedule.op_start_us
  key = layers.layer_of * len(short) + devices
  shape = len(layers.names) * len(short)
  total = np.bincount(key, time_us, shape)
  count = np.bincount(key[time_us > 0], minlength=shape)
  shown = np.flatnonzero(total > 0)
  if not len(shown):
    return None
  layer, device = np.divmod(shown, len(short))
  size = CONFIG.disc * np.sqrt(total[shown] / total.max())
  source = ColumnDataSource(
    {
      "x": layer.tolist(),
      "y": device.tolist(),
      "size": np.maximum(size, 3.0).round(2).tolist(),
      "color": [figures.device_color(d) for d in device.tolist()],
      "layer": [layers.names[i] for i in layer.tolist()],
      "device": [short[d] for d in device.tolist()],
      "ops": [f"{n:,}" for n in count[shown].tolist()],
      "time": [format_us(us) for us in total[shown].tolist()],
    }
  )
  return plot.scatter(
    "x",
    "y",
    size="size",
    source=source,
    fill_color="color",
    fill_alpha=0.9,
    line_color="white",
    line_width=1,
    name="layers on devices",
  )


def _draw_arcs(plot: Any, schedule: Schedule, layers: Layers) -> Any:
  sent, short = schedule.transfers, device_names(schedule)
  if not sent.num_bytes.any():
    return None
  columns = len(layers.names)
  ends = np.stack(
    (
      layers.layer_of[sent.src_op],
      sent.src,
      layers.layer_of[_first_readers(schedule)],
      sent.dst,
    )
  )
  pairs, inverse = np.unique(ends, axis=1, return_inverse=True)
  size = np.bincount(inverse.reshape(-1), sent.num_bytes)
  heaviest = np.argsort(-size, kind="stable")[: CONFIG.max_arcs]
  heaviest = heaviest[size[heaviest] > 0][::-1]
  x, y, source, target = [], [], [], []
  for a, src, b, dst in pairs[:, heaviest].T.tolist():
    arc = _arc(a, src, b, dst, 0.4 * columns / CONFIG.max_layers)
    x.append(arc[0].round(3).tolist())
    y.append(arc[1].round(3).tolist())
    source.append(f"{layers.names[a]} on {short[src]}")
    target.append(f"{layers.names[b]} on {short[dst]}")
  width = 0.6 + 5.4 * np.sqrt(size[heaviest] / size.max())
  data = ColumnDataSource(
    {
      "xs": x,
      "ys": y,
      "source": source,
      "target": target,
      "width": width.round(2).tolist(),
      "color": [figures.device_color(int(d)) for d in pairs[1, heaviest]],
      "bytes": [format_bytes(float(n)) for n in size[heaviest]],
    }
  )
  return plot.multi_line(
    "xs",
    "ys",
    source=data,
    line_width="width",
    line_color="color",
    line_alpha=0.35,
    name="traffic",
  )


def _first_readers(schedule: Schedule) -> np.ndarray:
  """Returns [num_transfers] one reader of each transfer at its destination."""
  transfer = schedule.transfer_of_edge
  sent = np.flatnonzero(transfer >= 0)[::-1]
  result = np.zeros(len(schedule.transfers), np.int64)
  result[transfer[sent]] = schedule.placement.problem.graph.edge_dst[sent]
  return result


def _arc(
  a: int, src: int, b: int, dst: int, bulge: float
) -> tuple[np.ndarray, np.ndarray]:
  t = np.linspace(0, 1, CONFIG.arc_points)
  lean = (dst - src) * 0.5
  control = np.array(
    [
      (a, src),
      (a + (bulge if a == b else 0.15 * (b - a)), src + lean),
      (b + (bulge if a == b else -0.15 * (b - a)), dst - lean),
      (b, dst),
    ],
    float,
  )
  weights = np.stack(
    ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
  )
  x, y = control.T @ weights
  return x, y
