"""HTML of plans, clusters, evaluations and results for notebooks.

Tables and one inline SVG: no scripts, no external resources, every text
escaped, and of bounded size for any graph.
"""

import collections
import dataclasses
import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tfplace.core.cluster import Cluster, Link
from tfplace.core.evaluation import Evaluation, Result
from tfplace.core.units import format_bytes, format_share, format_us
from tfplace.report import op_colors, rows, summary
from tfplace.report.names import short_names, shorten
from tfplace.simulate import Schedule


@dataclasses.dataclass(frozen=True)
class NotebookConfig:
  """Limits and sizes of the HTML; the values are our choice.

  Attributes:
    max_rows: rows of a table.
    max_devices: devices in a timeline, the busiest.
    max_bars: bars of a timeline, of all devices together.
    max_text: characters of a cell.
    width: width of a timeline in pixels, with its labels.
    label_width: width of the labels.
    row_height: height of a device's row.
    least_height: share of a row that keeps nearly idle bars visible.
  """

  max_rows: int = 32
  max_devices: int = 16
  max_bars: int = 480
  max_text: int = 160
  width: int = 860
  label_width: int = 130
  row_height: int = 20
  least_height: float = 0.2


CONFIG = NotebookConfig()


def plan_html(
  headline: str,
  device_rows: Sequence[summary.DeviceRow],
  layers: Mapping[str, str],
  notes: Iterable[str],
  schedule: Schedule | None,
) -> str:
  """Describes a plan.

  Args:
    headline: its decision in a sentence.
    device_rows: what each device does; empty if that is unknown.
    layers: device by layer name, shown without `device_rows`.
    notes: sentences about it.
    schedule: its simulated step, or None.
  """
  parts = [_paragraph(headline, bold=True)]
  if device_rows:
    cells = [summary.device_cells(row) for row in device_rows]
    parts.append(_table(summary.COLUMNS, cells))
  elif layers:
    parts.append(_table(("layer", "device"), list(layers.items())))
  if schedule is not None:
    parts.append(timeline_svg(schedule))
  noted = "".join(f"<li>{_text(note, 1000)}</li>" for note in notes)
  parts.append(f"<ul>{noted}</ul>" if noted else "")
  return _page(parts)


def cluster_html(cluster: Cluster) -> str:
  """Describes the devices of a cluster, and its links by kind."""
  names = short_names([device.name for device in cluster.devices])
  devices = [
    (name, d.kind, _memory(d.memory_bytes), format_us(d.op_overhead_us))
    for name, d in zip(names, cluster.devices, strict=True)
  ]
  own = {device.name: device.kind for device in cluster.devices}
  kinds = collections.Counter(_link_kind(link, own) for link in cluster.links)
  links = [(f"{count:,}", *kind) for kind, count in kinds.most_common()]
  count = f"{len(devices)} device{'s' * (len(devices) != 1)}"
  parts = [
    _paragraph(f"Cluster {cluster.name}: {count}", bold=True),
    _table(("device", "kind", "memory", "overhead per op"), devices),
  ]
  if links:
    parts.append(
      _table(("links", "from kind", "to kind", "bandwidth", "latency"), links)
    )
  return _page(parts)


def _link_kind(link: Link, kinds: Mapping[str, str]) -> tuple[str, ...]:
  bytes_per_s = link.bandwidth_bytes_per_us * 1e6
  return (
    kinds[link.src],
    kinds[link.dst],
    f"{format_bytes(bytes_per_s)}/s",
    format_us(link.latency_us),
  )


def _memory(num_bytes: float) -> str:
  return format_bytes(num_bytes) if math.isfinite(num_bytes) else "unlimited"


def evaluation_html(evaluation: Evaluation) -> str:
  """Describes a step: its time, and each device's time and peak memory."""
  return _page([_headline(evaluation), _device_table(evaluation)])


def _headline(evaluation: Evaluation, before: str = "") -> str:
  if not math.isfinite(evaluation.step_time_us):
    why = evaluation.extra.get("error", "for an unknown reason")
    return _paragraph(f"{before}the step could not be run: {why}", bold=True)
  time, ratio = format_us(evaluation.step_time_us), evaluation.ratio_to_bound
  bound = "" if ratio is None else f", {ratio:.3f} x bound"
  memory = "" if evaluation.feasible else "; out of memory"
  words = f"{before}{time} per step, {evaluation.source}{bound}{memory}"
  return _paragraph(words, bold=True)


def _device_table(evaluation: Evaluation) -> str:
  devices = list(evaluation.peak_memory_bytes)
  cells = [
    (
      name,
      format_us(evaluation.busy_us.get(device, 0.0)),
      format_share(
        evaluation.busy_us.get(device, 0.0), evaluation.step_time_us
      ),
      format_bytes(evaluation.peak_memory_bytes[device]),
    )
    for name, device in zip(short_names(devices), devices, strict=True)
  ]
  moved = format_bytes(evaluation.bytes_moved)
  names = ("device", "computes", "busy", "peak memory")
  return _table(names, cells) + _paragraph(f"{moved} between devices.")


def result_html(result: Result) -> str:
  """Describes the result of a placer, and of the placers that it tried."""
  evaluation = result.evaluation
  schedule = rows.as_schedule(result.placement)
  tried = sorted(result.tried, key=lambda r: r.evaluation.step_time_us)
  cells = [
    (r.strategy, format_us(r.evaluation.step_time_us), f"{r.seconds:.2f}")
    for r in tried
  ]
  effort = f"{result.evaluations:,} evaluations in {result.seconds:.2f} s."
  return _page(
    [
      _headline(evaluation, f"{result.strategy}: "),
      _device_table(evaluation),
      timeline_svg(schedule),
      _table(("placer", "step time", "seconds"), cells) if cells else "",
      _paragraph(effort),
    ]
  )


def timeline_svg(schedule: Schedule, config: NotebookConfig = CONFIG) -> str:
  """Draws the devices of a step over time as an SVG element."""
  colors = op_colors.op_colors(
    schedule, op_colors.TYPE_COLORS, op_colors.OTHER_COLOR
  )
  every = [row for row in rows.step_rows(schedule) if row.kind == rows.DEVICE]
  used = [row for row in every if len(row.items)]
  busiest = sorted(used, key=lambda row: -row.busy_us)[: config.max_devices]
  shown = sorted(busiest, key=lambda row: row.index)
  if not shown or schedule.step_time_us <= 0:
    return ""
  message = len(colors.colors)
  limit = max(3, config.max_bars // len(shown))
  lines: list[str] = []
  drawn: set[int] = set()
  for number, row in enumerate(shown):
    kinds = rows.row_kinds(row, colors.kind, message)
    bars = rows.make_bars(
      row.start_us, row.end_us, kinds, limit, schedule.step_time_us
    )
    drawn |= set(bars.kind.tolist())
    lines += _row_svg(row, bars, number, schedule, config, colors)
  height = config.row_height * len(shown) + 4
  hidden = len(used) - len(shown)
  title = f"{format_us(schedule.step_time_us)} of simulated time"
  if hidden:
    title += f" on the busiest {len(shown)} of {len(used)} devices"
  size = f'width="{config.width}" height="{height}"'
  return (
    f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}'
    f' viewBox="0 0 {config.width} {height}"'
    ' font-family="sans-serif" font-size="11">'
    f"<title>{_text(title)}</title>{''.join(lines)}</svg>"
    f"{_legend(colors, drawn)}{_paragraph(title) if hidden else ''}"
  )


def _row_svg(
  row: rows.Row,
  bars: rows.Bars,
  number: int,
  schedule: Schedule,
  config: NotebookConfig,
  colors: op_colors.OpColors,
) -> Iterator[str]:
  """Yields the label and the bars of one device."""
  palette = [*colors.colors, op_colors.MESSAGE_COLOR]
  labels = [*colors.labels, "send, receive"]
  top, tall = config.row_height * number + 2, config.row_height - 4
  step_us = schedule.step_time_us
  scale = (config.width - config.label_width) / step_us
  label = f"{shorten(row.name, 14)} {format_share(row.busy_us, step_us)}"
  at = f'x="0" y="{top + tall - 4}"'
  yield f'<text {at} fill="currentColor">{_text(label)}</text>'
  for i in range(len(bars)):
    start, end = float(bars.start_us[i]), float(bars.end_us[i])
    high = tall * max(config.least_height, float(bars.busy[i]))
    kind = int(bars.kind[i])
    count = int(bars.count[i])
    what = f"{count:,} x {labels[kind]}" if count > 1 else labels[kind]
    told = f"{what}: {format_us(end - start)} from {format_us(start)}"
    yield (
      f'<rect x="{config.label_width + start * scale:.2f}"'
      f' y="{top + tall - high:.1f}"'
      f' width="{max((end - start) * scale, 0.3):.2f}" height="{high:.1f}"'
      f' fill="{palette[kind]}"><title>{_text(told)}</title></rect>'
    )


def _legend(colors: op_colors.OpColors, drawn: set[int]) -> str:
  """Returns the names of the drawn kinds; equal names share an entry."""
  names = [*colors.legend, "send, receive"]
  palette = [*colors.colors, op_colors.MESSAGE_COLOR]
  entries = {names[kind]: palette[kind] for kind in sorted(drawn)}
  spans = [
    f'<span style="color:{color}">&#9632;</span> {_text(name)}'
    for name, color in entries.items()
  ]
  return f'<p style="font-size:smaller">{" &#160; ".join(spans)}</p>'


def _table(names: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
  """Returns a table of at most `max_rows` rows."""
  shown = [*cells[: CONFIG.max_rows]]
  if len(cells) > len(shown):
    rest = f"{len(cells) - len(shown):,} more"
    shown.append((rest, *[""] * (len(names) - 1)))
  style = ' style="text-align:left"'
  head = "".join(f"<th{style}>{_text(name)}</th>" for name in names)
  body = "".join(
    f"<tr>{''.join(f'<td{style}>{_text(cell)}</td>' for cell in row)}</tr>"
    for row in shown
  )
  return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _paragraph(text: str, bold: bool = False) -> str:
  words = _text(text, 1000)
  return f"<p><b>{words}</b></p>" if bold else f"<p>{words}</p>"


def _text(text: str, limit: int = CONFIG.max_text) -> str:
  """Escapes a text for HTML and XML, without control characters."""
  kept = "".join(c if c.isprintable() else " " for c in shorten(text, limit))
  return html.escape(kept)


def _page(parts: Iterable[str]) -> str:
  return f"<div>{''.join(filter(None, parts))}</div>"
