"""The timeline: what each device computes and each link sends, when, and the
critical path through it. Bounded in its number of bars however large the graph.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, Range1d

from tfplace.report.explain.bottleneck import link_busy_us
from tfplace.report.page import figures
from tfplace.report.page.bars import Bars, make_bars
from tfplace.report.units import (
  channel_names,
  device_names,
  format_bytes,
  format_us,
)
from tfplace.simulate import Schedule

MAX_OP_BARS = 4500
MAX_TRANSFER_BARS = 2400
MAX_CRITICAL_BARS = 900  # a row
MAX_LINKS = 16  # the busiest are drawn; a host of 8 GPUs has 72
_DEVICE_ROW, _LINK_ROW = 34, 22  # pixels
_LINK_HEIGHT = _LINK_ROW / _DEVICE_ROW  # in rows of a device
_LEAST = 0.2  # of a row: a bar that is hardly busy is still seen


def timeline_plot(schedule: Schedule, x_range: Range1d, scale: float) -> Any:
  """The figure; `scale` is microseconds in a unit of `x_range`."""
  links = _shown_links(schedule)
  devices = len(schedule.memory)
  tops = [
    *map(float, range(devices)),
    *(devices + 0.15 + i * _LINK_HEIGHT for i in range(len(links))),
  ]
  bottom = devices + 0.15 + len(links) * _LINK_HEIGHT if links else devices
  height = round(114 + _DEVICE_ROW * bottom)
  plot = figures.new_figure(
    "timeline", height, x_range, figures.between(bottom, -0.12)
  )
  ops = _draw_ops(plot, schedule, scale)
  transfers = _draw_transfers(plot, schedule, links, tops[devices:], scale)
  row_of_link = dict(zip(links, tops[devices:], strict=True))
  _draw_critical(plot, schedule, row_of_link, scale)
  _name_rows(plot, schedule, links, tops)
  what = [("", "@what"), ("", "@detail"), ("from", "@start"), ("for", "@time")]
  plot.add_tools(figures.hover([*ops, *transfers], what))
  figures.style_legend(plot)
  return plot


def num_hidden_links(schedule: Schedule) -> int:
  """Links that send something and are not drawn."""
  used = len(np.unique(schedule.transfers.channel))
  return used - len(_shown_links(schedule))


def _shown_links(schedule: Schedule) -> list[int]:
  """The busiest channels, in their order."""
  used = np.unique(schedule.transfers.channel)
  busy_us = link_busy_us(schedule)
  busiest = used[np.argsort(-busy_us[used], kind="stable")][:MAX_LINKS]
  return np.sort(busiest).tolist()


def _name_rows(
  plot: Any, schedule: Schedule, links: list[int], tops: Sequence[float]
) -> None:
  step_us = max(schedule.step_time_us, 1e-300)
  names, channels = device_names(schedule), channel_names(schedule)
  busy_us = link_busy_us(schedule)
  labels = [
    *(
      f"{figures.shorten(name, 24)}  {100 * us / step_us:.0f}%"
      for name, us in zip(names, schedule.busy_us, strict=True)
    ),
    *(
      f"{figures.shorten(channels[i], 24)}  {100 * busy_us[i] / step_us:.0f}%"
      for i in links
    ),
  ]
  middles = [
    top + (0.5 if i < len(names) else _LINK_HEIGHT / 2)
    for i, top in enumerate(tops)
  ]
  figures.name_ticks(plot.yaxis[0], middles, labels)
  plot.yaxis.major_tick_line_color = None


def _draw_ops(plot: Any, schedule: Schedule, scale: float) -> list[Any]:
  graph = schedule.placement.problem.graph
  start, end = schedule.op_start_us, schedule.op_end_us
  kind, names = _main_types(graph.types, end - start)
  devices = schedule.placement.devices
  limit = MAX_OP_BARS // max(1, len(np.unique(devices)))
  found: list[list[dict[str, Any]]] = [[] for _ in names]
  for device in np.unique(devices).tolist():
    ops = np.flatnonzero(devices == device)
    bars = make_bars(
      start[ops], end[ops], kind[ops], limit, schedule.step_time_us
    )
    for i in range(len(bars)):
      op = int(ops[bars.item[i]])
      few = f"{graph.types[op]}"
      many = f"{bars.count[i]:,} ops, mostly {names[bars.kind[i]]}; longest:"
      text = (
        (figures.shorten(graph.names[op]), few)
        if bars.count[i] == 1
        else (many, figures.shorten(graph.names[op]))
      )
      found[bars.kind[i]].append(_bar(bars, i, device, 1.0, text, scale))
  palette = [*figures.OP_TYPES[: len(names) - 1], figures.OTHER]
  return [
    _quads(plot, rows, color, name)
    for rows, color, name in zip(found, palette, names, strict=True)
    if rows
  ]


def _main_types(
  types: Sequence[str], time_us: np.ndarray
) -> tuple[np.ndarray, list[str]]:
  """[num_ops] number among the types that take longest, and their names; the
  last is all the others."""
  total: dict[str, float] = {}
  for name, us in zip(types, time_us.tolist(), strict=True):
    total[name] = total.get(name, 0.0) + us
  ranked = sorted((t for t in total if total[t] > 0), key=lambda t: -total[t])
  main = ranked[: len(figures.OP_TYPES)]
  number = {name: i for i, name in enumerate(main)}
  kind = np.array([number.get(name, len(main)) for name in types], np.int64)
  return kind, [*main, "other ops"]


def _draw_transfers(
  plot: Any,
  schedule: Schedule,
  links: list[int],
  tops: Sequence[float],
  scale: float,
) -> list[Any]:
  moves, names = schedule.transfers, schedule.placement.problem.graph.names
  short = device_names(schedule)
  rows = []
  for link, top in zip(links, tops, strict=True):
    own = np.flatnonzero(moves.channel == link)
    bars = make_bars(
      moves.start_us[own],
      moves.sent_us[own],
      np.zeros(len(own), np.int64),
      MAX_TRANSFER_BARS // len(links),
      schedule.step_time_us,
    )
    for i in range(len(bars)):
      move = int(own[bars.item[i]])
      size = format_bytes(float(moves.num_bytes[move]))
      ends = f"{short[moves.src[move]]} to {short[moves.dst[move]]}"
      name = figures.shorten(names[moves.src_op[move]])
      many = f"{bars.count[i]:,} transfers, the longest of {size}"
      text = (
        (f"{size} from {ends}", name)
        if bars.count[i] == 1
        else (f"{many} from {ends}", name)
      )
      rows.append(_bar(bars, i, top, _LINK_HEIGHT, text, scale))
  return [_quads(plot, rows, figures.TRANSFER, "transfers")] if rows else []


def _bar(
  bars: Bars,
  i: int,
  top: float,
  height: float,
  text: tuple[str, str],
  scale: float,
) -> dict[str, Any]:
  """One bar in its row, above the strip of the critical path."""
  floor = top + 0.84 * height
  tall = 0.78 * height * max(_LEAST, float(bars.busy[i]))
  start, end = float(bars.start_us[i]), float(bars.end_us[i])
  busy = f", {100 * bars.busy[i]:.0f}% busy" if bars.count[i] > 1 else ""
  return {
    "left": start / scale,
    "right": end / scale,
    "top": round(floor - tall, 4),
    "bottom": round(floor, 4),
    "what": text[0],
    "detail": text[1],
    "start": format_us(start),
    "time": format_us(end - start) + busy,
  }


def _draw_critical(
  plot: Any, schedule: Schedule, row_of_link: dict[int, float], scale: float
) -> None:
  """A strip at the foot of the rows that the path goes through."""
  path, moves = schedule.critical_path, schedule.transfers
  lanes: dict[tuple[float, float], list[tuple[float, float]]] = {}
  for segment in path:
    lane: tuple[float, float]
    if segment.kind == "op":
      lane = float(schedule.placement.devices[segment.index]), 1.0
    else:
      link = int(moves.channel[segment.index])
      if link not in row_of_link:
        continue
      lane = row_of_link[link], _LINK_HEIGHT
    lanes.setdefault(lane, []).append((segment.start_us, segment.end_us))
  rows = []
  for (top, height), spans in lanes.items():
    start, end = np.array(spans).T
    kind = np.zeros(len(start), np.int64)
    # A transfer arrives after the next on its channel has started.
    end = np.minimum(end, np.append(start[1:], np.inf))
    bars = make_bars(start, end, kind, MAX_CRITICAL_BARS, schedule.step_time_us)
    rows += [
      {
        "left": float(bars.start_us[i]) / scale,
        "right": float(bars.end_us[i]) / scale,
        "top": round(top + 0.87 * height, 4),
        "bottom": round(top + 0.97 * height, 4),
      }
      for i in range(len(bars))
    ]
  if rows:
    _quads(plot, rows, figures.CRITICAL, "critical path")


def _quads(
  plot: Any, rows: list[dict[str, Any]], color: str, label: str
) -> Any:
  columns = {key: [row[key] for row in rows] for key in rows[0]}
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
