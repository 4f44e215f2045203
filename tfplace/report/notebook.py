"""HTML of plans, clusters, evaluations and results for notebooks.

No scripts, no external resources, every text escaped, and of bounded size for
any graph.
"""

import collections
import html
import math
from collections.abc import Iterable, Mapping, Sequence

from tfplace.core.cluster import Cluster, Link
from tfplace.core.evaluation import Evaluation, Result
from tfplace.core.units import format_bytes, format_share, format_us
from tfplace.report import summary
from tfplace.report.names import short_names, shorten

_MAX_ROWS = 32  # of a table
_MAX_TEXT = 160  # characters of a cell


def plan_html(
  headline: str,
  device_rows: Sequence[summary.DeviceRow],
  layers: Mapping[str, str],
  notes: Iterable[str],
) -> str:
  """Describes a plan.

  Args:
    headline: its decision in a sentence.
    device_rows: what each device does; empty if that is unknown.
    layers: device by layer name, shown without `device_rows`.
    notes: sentences about it.
  """
  parts = [_paragraph(headline, bold=True)]
  if device_rows:
    cells = [summary.device_cells(row) for row in device_rows]
    parts.append(html_table(summary.COLUMNS, cells))
  elif layers:
    parts.append(html_table(("layer", "device"), list(layers.items())))
  noted = "".join(f"<li>{escaped(note, 1000)}</li>" for note in notes)
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
    html_table(("device", "kind", "memory", "overhead per op"), devices),
  ]
  if links:
    parts.append(
      html_table(
        ("links", "from kind", "to kind", "bandwidth", "latency"), links
      )
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
  return html_table(names, cells) + _paragraph(f"{moved} between devices.")


def result_html(result: Result) -> str:
  """Describes the result of a placer, and of the placers that it tried."""
  evaluation = result.evaluation
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
      html_table(("placer", "step time", "seconds"), cells) if cells else "",
      _paragraph(effort),
    ]
  )


def html_table(
  names: Sequence[str],
  cells: Sequence[Sequence[str]],
  bold: int | None = None,
) -> str:
  """Returns a table of at most 32 rows; `bold` is the index of a marked row."""
  shown = [*cells[:_MAX_ROWS]]
  if len(cells) > len(shown):
    rest = f"{len(cells) - len(shown):,} more"
    shown.append((rest, *[""] * (len(names) - 1)))
  style, best = ' style="text-align:left"', ' class="best"'
  head = "".join(f"<th{style}>{escaped(name)}</th>" for name in names)
  body = "".join(
    f"<tr{best * (i == bold)}>"
    f"{''.join(f'<td{style}>{escaped(cell)}</td>' for cell in row)}</tr>"
    for i, row in enumerate(shown)
  )
  return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _paragraph(text: str, bold: bool = False) -> str:
  words = escaped(text, 1000)
  return f"<p><b>{words}</b></p>" if bold else f"<p>{words}</p>"


def escaped(text: str, limit: int = _MAX_TEXT) -> str:
  """Escapes a text for HTML and XML, without control characters."""
  kept = "".join(c if c.isprintable() else " " for c in shorten(text, limit))
  return html.escape(kept)


def _page(parts: Iterable[str]) -> str:
  return f"<div>{''.join(filter(None, parts))}</div>"
