"""Self-contained HTML report of a placement, drawn with Bokeh.

Bokeh's JavaScript (1.3 MB) is part of the file, and the page's own policy
forbids all requests. Bokeh draws on a canvas, which is fast with thousands of
bars, and is a quarter of the size of Plotly's scripts (4.8 MB); Vega would need
a network. Bokeh is an optional dependency, imported only for drawing.
"""

import collections
import importlib.util
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfplace.core.evaluation import Result
from tfplace.core.placement import Placement
from tfplace.core.units import format_bytes, format_share, format_us, time_scale
from tfplace.errors import TfplaceError
from tfplace.formats.files import write_bytes
from tfplace.report.explain import Explanation, explain, summary
from tfplace.report.rows import device_names
from tfplace.report.table import BASELINE, rank
from tfplace.simulate import Schedule

SUFFIX = ".html"
_TEMPLATE = pathlib.Path(__file__).with_name("page.html")


def check_installed() -> None:
  """Raises TfplaceError unless the extra `report` is installed."""
  needed = ("bokeh", "jinja2")
  missing = [n for n in needed if importlib.util.find_spec(n) is None]
  if missing:
    raise TfplaceError(
      f"an HTML report needs the extra 'report', and {' and '.join(missing)}"
      " cannot be found: pip install 'tfplace[report]'"
    )


def check_suffix(path: str | os.PathLike[str]) -> None:
  """Raises TfplaceError unless the path ends in `SUFFIX`."""
  if pathlib.Path(path).suffix.lower() != SUFFIX:
    raise TfplaceError(f"{os.fspath(path)}: a report's name ends in {SUFFIX}")


def save_report(
  placement: Placement,
  path: str | os.PathLike[str],
  results: Sequence[Result] = (),
) -> None:
  """Writes a report of a placement, atomically.

  Args:
    results: results of placers on the same problem, for the table of placers;
      the result with this placement is marked.

  Raises:
    TfplaceError: the suffix is wrong, the extra `report` is not installed, or
      the file cannot be written.
  """
  check_suffix(path)
  check_installed()
  page = _render(explain(placement), results)
  write_bytes(path, page.encode("utf-8"))


def _render(explanation: Explanation, results: Sequence[Result]) -> str:
  import jinja2
  import markupsafe
  from bokeh.embed import components
  from bokeh.resources import Resources

  from tfplace.report.page import plots, timeline_plot

  schedule = explanation.schedule
  problem = schedule.placement.problem
  script, divs = components(_figures(explanation))
  environment = jinja2.Environment(
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
  scripts = Resources(mode="inline", components=["bokeh"]).render_js()
  return template.render(
    title=f"{problem.graph.name} on {problem.cluster.name}",
    subtitle=_subtitle(schedule),
    tiles=_tiles(explanation, results),
    sentences=summary(explanation),
    placers=_placers(results, schedule.placement),
    figures={name: markupsafe.Markup(div) for name, div in divs.items()},
    hidden_links=timeline_plot.num_hidden_links(schedule),
    split=explanation.microbatches,
    capacities=plots.capacity_text(schedule),
    hardware=[
      (x.name, format_us(x.same_order_us), format_us(x.step_time_us))
      for x in explanation.what_if
    ],
    bokeh_js=markupsafe.Markup(scripts),
    bokeh_script=markupsafe.Markup(script),
  )


def _figures(explanation: Explanation) -> dict[str, Any]:
  from tfplace.report.page import figures, layers_plot, plots, timeline_plot

  schedule = explanation.schedule
  scale, unit = time_scale(schedule.step_time_us)
  x_range = figures.span(schedule.step_time_us, scale)
  timeline = timeline_plot.timeline_plot(schedule, x_range, scale)
  memory = plots.memory_plot(schedule, x_range, scale)
  for plot in (timeline, memory):
    plot.xaxis.axis_label = f"time, {unit}"
  return {
    "timeline": timeline,
    "memory": memory,
    "layers": layers_plot.layers_plot(schedule),
    "path": plots.path_plot(explanation),
    "gains": plots.gain_plot(explanation),
  }


def _subtitle(schedule: Schedule) -> str:
  problem = schedule.placement.problem
  kinds = collections.Counter(d.kind for d in problem.cluster.devices)
  devices = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
  return (
    f"{problem.graph.num_ops:,} ops, {problem.graph.num_edges:,} edges;"
    f" {devices}; one step, simulated"
  )


def _tiles(
  explanation: Explanation, results: Sequence[Result]
) -> list[tuple[str, str]]:
  schedule = explanation.schedule
  step_us, names = schedule.step_time_us, device_names(schedule)
  tiles = [(format_us(step_us), "step time")]
  single = [r.evaluation for r in results if r.strategy == BASELINE]
  if single and step_us > 0:
    ratio = single[0].step_time_us / step_us
    tiles.append((f"{ratio:.2f}x", "as fast as one device alone"))
  if explanation.ratio_to_bound is not None:
    ratio = explanation.ratio_to_bound
    tiles.append((f"{ratio:.2f}x", "the proven lower bound"))
  if explanation.utilization is not None:
    share = format_share(explanation.utilization, 1)
    tiles.append((share, "of the data-sheet peak (MFU)"))
  if explanation.microbatches is not None:
    bubble = format_share(explanation.microbatches.bubble, 1)
    what = f"bubble, {explanation.microbatches.num_microbatches} microbatches"
    tiles.append((bubble, what))
  busiest = int(schedule.busy_us.argmax())
  busy = format_share(schedule.busy_us[busiest], step_us)
  tiles.append((busy, f"busiest device, {names[busiest]}"))
  fullest = int(schedule.peak_memory_bytes.argmax())
  peak = format_bytes(float(schedule.peak_memory_bytes[fullest]))
  tiles.append((peak, f"highest memory, {names[fullest]}"))
  moved = format_bytes(float(schedule.transfers.num_bytes.sum()))
  return [*tiles, (moved, "sent between devices")]


def _placers(
  results: Sequence[Result], placement: Placement
) -> list[dict[str, Any]]:
  ranked = sorted(results, key=rank)
  ran = [r.evaluation.step_time_us for r in ranked if r.evaluation.feasible]
  best_us = min(ran, default=np.inf)
  # A slow result would compress the other bars, so bars end at five times the
  # best.
  longest = min(max(ran, default=1.0), 5 * best_us)
  rows = []
  marked = False
  for result in ranked:
    found = result.evaluation
    step, bound = found.step_time_us, found.ratio_to_bound
    same = np.array_equal(result.placement.devices, placement.devices)
    peak = format_bytes(max(found.peak_memory_bytes.values(), default=0.0))
    rows.append(
      {
        "name": result.strategy,
        "step": format_us(step),
        "width": f"{100 * min(1.0, step / max(longest, 1e-300)):.1f}",
        "ratio": f"{step / best_us:.2f}" if 0 < best_us < np.inf else "-",
        "bound": "-" if bound is None else f"{bound:.2f}",
        "memory": peak if found.feasible else f"{peak}, does not fit",
        "seconds": f"{result.seconds:.2f}",
        "is_best": same and not marked,
      }
    )
    marked = marked or same
  return rows
