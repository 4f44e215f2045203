"""Timeline figure with a bounded number of bars, even for large graphs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, Range1d

from tfplace.core.units import format_bytes, format_share, format_us
from tfplace.report.names import shorten
from tfplace.report.op_colors import op_colors
from tfplace.report.page import figures
from tfplace.report.rows import (
  DEVICE,
  OP,
  SEND,
  Bars,
  Row,
  device_names,
  make_bars,
  row_kinds,
  step_rows,
)
from tfplace.simulate import Schedule

_MAX_OP_BARS = 4500
_MAX_TRANSFER_BARS = 2400
_MAX_CRITICAL_BARS = 900  # in each row
_MAX_LINKS = 16  # A host of 8 GPUs has 72.
_DEVICE_ROW = 34  # pixels
_LINK_ROW = 22
_LEAST_HEIGHT = 0.2  # Fraction of a row that keeps nearly idle bars visible.
_LINK_HEIGHT = _LINK_ROW / _DEVICE_ROW  # relative to a device's row

Marks = list[dict[str, Any]]


def timeline_plot(schedule: Schedule, x_range: Range1d, scale: float) -> Any:
  """Draws the timeline; `scale` is microseconds per unit of `x_range`."""
  rows, step_us = _shown_rows(schedule), schedule.step_time_us
  heights = [1.0 if row.kind == DEVICE else _LINK_HEIGHT for row in rows]
  gap = [0.15 if row.kind != DEVICE else 0.0 for row in rows]
  tops = np.cumsum(heights) - heights + gap
  bottom = float(tops[-1]) + heights[-1]
  height = round(114 + _DEVICE_ROW * bottom)
  y_range = figures.between(bottom, -0.12)
  plot = figures.new_figure("timeline", height, x_range, y_range)
  lanes = list(zip(rows, tops.tolist(), heights, strict=True))
  bars = _draw_bars(plot, schedule, lanes, scale)
  _draw_critical(plot, lanes, step_us, scale)
  labels = [
    f"{shorten(row.name, 24)}  {format_share(row.busy_us, step_us)}"
    for row in rows
  ]
  figures.name_ticks(plot.yaxis[0], (tops + np.divide(heights, 2)), labels)
  plot.yaxis.major_tick_line_color = None
  what = [("", "@what"), ("", "@detail"), ("from", "@start"), ("for", "@time")]
  plot.add_tools(figures.hover(bars, what))
  figures.style_legend(plot)
  return plot


def num_hidden_links(schedule: Schedule) -> int:
  """Counts the links in use that are not drawn."""
  return max(0, len(np.unique(schedule.transfers.channel)) - _MAX_LINKS)


def _shown_rows(schedule: Schedule) -> list[Row]:
  rows = step_rows(schedule)
  devices = len(schedule.memory)
  links = sorted(rows[devices:], key=lambda row: -row.busy_us)[:_MAX_LINKS]
  return rows[:devices] + sorted(links, key=lambda row: row.index)


def _draw_bars(
  plot: Any,
  schedule: Schedule,
  lanes: Sequence[tuple[Row, float, float]],
  scale: float,
) -> list[Any]:
  ops = op_colors(schedule, figures.OP_TYPES, figures.OTHER)
  colors = [*ops.colors, figures.MESSAGE, figures.TRANSFER]
  message, transfer = len(ops.colors), len(ops.colors) + 1
  labels = [*ops.labels, "send, receive", "transfers"]
  # In a microbatched step, transfers have the color of their microbatch.
  sent = np.full(len(schedule.transfers), transfer)
  if ops.is_split:
    sent = ops.kind[schedule.transfers.src_op]
    sent[sent == message - 1] = transfer
  used = [row for row, _, _ in lanes if len(row.items)]
  devices = sum(row.kind == DEVICE for row in used)
  marks: list[Marks] = [[] for _ in labels]
  for row, top, height in lanes:
    if row.kind == DEVICE:
      kinds = row_kinds(row, ops.kind, message)
      limit = _MAX_OP_BARS // max(1, devices)
    else:
      kinds = sent[row.items]
      limit = _MAX_TRANSFER_BARS // (len(used) - devices)
    times = row.start_us, row.end_us
    bars = make_bars(*times, kinds, limit, schedule.step_time_us)
    for i in range(len(bars)):
      mark = _bar(bars, i, top, height, scale)
      at = int(bars.item[i])
      text = _op_text if row.what[at] == OP else _transfer_text
      many = f"{bars.count[i]:,} " if bars.count[i] > 1 else ""
      mostly = labels[bars.kind[i]]
      mark["what"], mark["detail"] = text(schedule, row, at, many, mostly)
      marks[bars.kind[i]].append(mark)
  legend = [*ops.legend, *labels[message:]]
  return [
    _quads(plot, found, color, label)
    for found, color, label in zip(marks, colors, legend, strict=True)
    if found
  ]


def _op_text(
  schedule: Schedule, row: Row, at: int, many: str, mostly: str
) -> tuple[str, str]:
  graph, op = schedule.placement.problem.graph, int(row.items[at])
  name = shorten(graph.names[op])
  if many:
    return f"{many}ops, mostly {mostly}; longest:", name
  own = f", {mostly}" if graph.microbatch[op] >= 0 else ""
  return name, graph.types[op] + own


def _transfer_text(
  schedule: Schedule, row: Row, at: int, many: str, mostly: str
) -> tuple[str, str]:
  sent, short = schedule.transfers, device_names(schedule)
  transfer = int(row.items[at])
  what = format_bytes(float(sent.num_bytes[transfer]))
  if row.kind == DEVICE:
    verb = "send" if row.what[at] == SEND else "receive"
    what = f"{many}items, longest: {verb} {what}" if many else f"{verb} {what}"
  elif many:
    what = f"{many}transfers, the longest of {what}"
  ends = f"{short[sent.src[transfer]]} to {short[sent.dst[transfer]]}"
  name = schedule.placement.problem.graph.names[sent.src_op[transfer]]
  return f"{what} from {ends}", shorten(name)


def _bar(
  bars: Bars, i: int, top: float, height: float, scale: float
) -> dict[str, Any]:
  floor = top + 0.84 * height
  tall = 0.78 * height * max(_LEAST_HEIGHT, float(bars.busy[i]))
  start, end = float(bars.start_us[i]), float(bars.end_us[i])
  busy = f", {100 * bars.busy[i]:.0f}% busy" if bars.count[i] > 1 else ""
  return {
    "left": start / scale,
    "right": end / scale,
    "top": round(floor - tall, 4),
    "bottom": round(floor, 4),
    "start": format_us(start),
    "time": format_us(end - start) + busy,
  }


def _draw_critical(
  plot: Any,
  lanes: Sequence[tuple[Row, float, float]],
  step_us: float,
  scale: float,
) -> None:
  marks: Marks = []
  for row, top, height in lanes:
    start, end = row.critical_us.T
    kind = np.zeros(len(start), np.int64)
    bars = make_bars(start, end, kind, _MAX_CRITICAL_BARS, step_us)
    marks += [
      {
        "left": float(bars.start_us[i]) / scale,
        "right": float(bars.end_us[i]) / scale,
        "top": round(top + 0.87 * height, 4),
        "bottom": round(top + 0.97 * height, 4),
      }
      for i in range(len(bars))
    ]
  if marks:
    _quads(plot, marks, figures.CRITICAL, "critical path")


def _quads(plot: Any, marks: Marks, color: str, label: str) -> Any:
  columns = {key: [mark[key] for mark in marks] for key in marks[0]}
  return plot.quad(
    left="left",
    right="right",
    top="top",
    bottom="bottom",
    source=ColumnDataSource(columns),
    fill_color=color,
    line_color=color,
    line_width=0.3,
    legend_label=label,
    name=label,
  )
