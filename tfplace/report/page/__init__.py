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
from tfplace.core.units import time_scale
from tfplace.errors import TfplaceError
from tfplace.formats.files import write_bytes
from tfplace.report.explain import explain
from tfplace.report.explain.tables import explanation_tables
from tfplace.report.rows import as_schedule
from tfplace.report.table import rank, results_table
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
  write_bytes(path, _render(as_schedule(placement), results).encode("utf-8"))


def _render(schedule: Schedule, results: Sequence[Result]) -> str:
  import jinja2
  import markupsafe
  from bokeh.embed import components
  from bokeh.resources import Resources

  from tfplace.report.page.figures import span
  from tfplace.report.page.plots import layers_plot, memory_plot
  from tfplace.report.page.timeline_plot import num_hidden_links, timeline_plot

  explanation, graph = explain(schedule), schedule.placement.problem.graph
  x_range = span(schedule.step_time_us, time_scale(schedule.step_time_us)[0])
  figures: dict[str, Any] = {
    "timeline": timeline_plot(schedule, x_range),
    "memory": memory_plot(schedule, x_range),
    "layers": layers_plot(schedule),
  }
  script, divs = components(figures)
  placers = []
  if results:
    ranked, devices = sorted(results, key=rank), schedule.placement.devices
    same = (r for r in ranked if np.array_equal(r.placement.devices, devices))
    table = results_table(ranked, best=next(same, None))
    placers.append(table._replace(title="Placers, simulated"))
  environment = jinja2.Environment(
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
  scripts = Resources(mode="inline", components=["bokeh"]).render_js()
  cluster = schedule.placement.problem.cluster
  kinds = collections.Counter(device.kind for device in cluster.devices)
  return template.render(
    title=f"{graph.name} on {cluster.name}",
    subtitle=(
      f"{graph.num_ops:,} ops, {graph.num_edges:,} edges;"
      f" {', '.join(f'{n} {kind}' for kind, n in kinds.items())};"
      " one step, simulated"
    ),
    sentences=explanation.summary,
    figures={name: markupsafe.Markup(div) for name, div in divs.items()},
    hidden_links=num_hidden_links(schedule),
    split=explanation.split,
    tables=[*placers, *explanation_tables(explanation)],
    bokeh_js=markupsafe.Markup(scripts),
    bokeh_script=markupsafe.Markup(script),
  )
