"""Timeline figure with a bounded number of bars, even for large graphs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.models import Range1d

from tfplace.core.units import format_bytes, format_share, format_us, time_scale
from tfplace.report.names import shorten
from tfplace.report.op_colors import (
  CRITICAL_COLOR,
  op_colors,
)
from tfplace.report.page import figures
from tfplace.report.rows import (
  DEVICE,
  OP,
  SEND,
  Bars,
  Row,
  device_names,
  make_bars,
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

Lane = tuple[Row, float, float]  # a row, its top and its height
Marks = list[dict[str, Any]]


def timeline_plot(schedule: Schedule, x_range: Range1d) -> Any:
  """Draws the timeline, with a bounded number of links."""
  rows, step_us = _shown_rows(schedule), schedule.step_time_us
  scale, unit = time_scale(step_us)
  is_link = np.array([row.kind != DEVICE for row in rows])
  heights = np.where(is_link, _LINK_HEIGHT, 1.0)
  tops = np.cumsum(heights) - heights + 0.15 * is_link
  bottom = float(tops[-1] + heights[-1])
  height, y_range = round(114 + _DEVICE_ROW * bottom), (bottom, -0.12)
  plot = figures.new_figure(
    "timeline", height, x_range, figures.between(*y_range)
  )
  lanes = list(zip(rows, tops.tolist(), heights.tolist(), strict=True))
  bars = _draw_bars(plot, schedule, lanes, scale)
  _draw_critical(plot, lanes, step_us, scale)
  labels = [
    f"{shorten(row.name, 24)}  {format_share(row.busy_us, step_us)}"
    for row in rows
  ]
  figures.name_ticks(plot.yaxis[0], (tops + heights / 2).tolist(), labels)
  plot.xaxis.axis_label = f"time, {unit}"
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
  plot: Any, schedule: Schedule, lanes: Sequence[Lane], scale: float
) -> list[Any]:
  ops = op_colors(schedule)
  used = [row for row, _, _ in lanes if len(row.items)]
  devices = sum(row.kind == DEVICE for row in used)
  marks: list[Marks] = [[] for _ in ops.legend]
  for row, top, height in lanes:
    kinds, limit = ops.of_row(row), _MAX_OP_BARS // max(1, devices)
    if row.kind != DEVICE:
      limit = _MAX_TRANSFER_BARS // (len(used) - devices)
    bars = make_bars(row.start_us, row.end_us, limit, schedule.step_time_us)
    for i, item in enumerate(bars.item.tolist()):
      mark = _bar(bars, i, top, height, scale)
      text = _op_text if row.what[item] == OP else _transfer_text
      many = f"{bars.count[i]:,} " if bars.count[i] > 1 else ""
      mark["what"], mark["detail"] = text(schedule, row, item, many)
      marks[kinds[item]].append(mark)
  return [
    _quads(plot, found, color, label)
    for found, color, label in zip(marks, ops.colors, ops.legend, strict=True)
    if found
  ]


def _op_text(
  schedule: Schedule, row: Row, at: int, many: str
) -> tuple[str, str]:
  graph, op = schedule.placement.problem.graph, int(row.items[at])
  name, detail = shorten(graph.names[op]), graph.types[op]
  if graph.microbatch[op] >= 0:
    detail += f", microbatch {graph.microbatch[op]}"
  return (f"{many}ops, the longest: {name}" if many else name), detail


def _transfer_text(
  schedule: Schedule, row: Row, at: int, many: str
) -> tuple[str, str]:
  sent, short = schedule.transfers, device_names(schedule)
  transfer = int(row.items[at])
  what = format_bytes(float(sent.num_bytes[transfer]))
  if row.kind == DEVICE:
    what = f"{'send' if row.what[at] == SEND else 'receive'} {what}"
  if many:
    what = f"{many}items, the longest: {what}"
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
  plot: Any, lanes: Sequence[Lane], step_us: float, scale: float
) -> None:
  marks: Marks = []
  for row, top, height in lanes:
    start, end = row.critical_us.T
    bars = make_bars(start, end, _MAX_CRITICAL_BARS, step_us)
    edges = {"top": top + 0.87 * height, "bottom": top + 0.97 * height}
    spans = np.stack((bars.start_us, bars.end_us), axis=1) / scale
    marks += [{"left": a, "right": b, **edges} for a, b in spans.tolist()]
  if marks:
    _quads(plot, marks, CRITICAL_COLOR, "critical path")


def _quads(plot: Any, marks: Marks, color: str, label: str) -> Any:
  columns = {key: [mark[key] for mark in marks] for key in marks[0]}
  return plot.quad(
    **{edge: edge for edge in ("left", "right", "top", "bottom")},
    source=columns,
    fill_color=color,
    line_color=color,
    line_width=0.3,
    legend_label=label,
    name=label,
  )
