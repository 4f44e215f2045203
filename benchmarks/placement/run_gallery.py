"""The pictures of the README: a placement before and after, as a report.

Places one model by the rules of an expert and by `auto`, writes the HTML
report of each, and photographs them with Chromium, which must be installed
(`apt-get install chromium`): the whole report, both timelines on one axis of
time, memory, and the graph by layer and device, as PNGs.

  python -m benchmarks.placement.run_gallery --model=nmt --cluster=k80x4 \\
      --budget_s=120
"""

import pathlib
import tempfile

from absl import flags
from bokeh.embed import file_html
from bokeh.layouts import column
from bokeh.models import Div
from bokeh.resources import INLINE

from benchmarks.lib import command
from benchmarks.lib.command import Options
from benchmarks.lib.screenshots import only, photograph
from tfplace import bounds, placers
from tfplace.core import Problem
from tfplace.core.presets import cluster_preset
from tfplace.core.units import format_us, time_scale
from tfplace.formats import load_graph, load_placement
from tfplace.formats.files import write_bytes
from tfplace.plan import graph_cache, sources
from tfplace.report import page
from tfplace.report.page import figures
from tfplace.report.page.timeline_plot import timeline_plot
from tfplace.simulate import Schedule, Simulator

_ONE_RUNS = ("single", "expert", "m_topo", "m_etf", "heft")
OPTIONS = Options("run_gallery", __doc__)
_MODEL = OPTIONS.add("model", "nmt", "Zoo model.")
_GRAPH = OPTIONS.add("graph", None, "Its graph, where extracted.")
_CLUSTER = OPTIONS.add("cluster", "k80x4", "Cluster preset.")
_PLACEMENT = OPTIONS.add(
  "placement", None, "Placement to show, instead of searching one."
)
_BUDGET_S = OPTIONS.add("budget_s", 120.0, "Seconds for `auto`.")
_CACHE = OPTIONS.add(
  "graph_cache_dir",
  graph_cache.default_directory(),
  "Where extracted graphs are kept; empty for nowhere.",
)
_OUT = OPTIONS.add("out_dir", str(command.RESULTS), "Folder of the pictures.")


def load_problem() -> Problem:
  """The graph on the cluster, with its proven bound."""
  if _GRAPH.value:
    graph = load_graph(_GRAPH.value)
  else:
    graph = sources.extract(
      _MODEL.value, _CLUSTER.value, cache_dir=_CACHE.value
    )
  return bounds.tightened(Problem(graph, cluster_preset(_CLUSTER.value)))


def place_all(problem: Problem) -> list[placers.Result]:
  """`auto` first, then what it tried; a given placement is taken as it is."""
  if _PLACEMENT.value is None:
    best = placers.place(problem, "auto", budget_s=_BUDGET_S.value)
    best.placement.save(f"{_OUT.value}/gallery_placement.json.gz")
    return [best, *best.tried]
  known = load_placement(_PLACEMENT.value, problem)
  evaluation = Simulator(problem).evaluate([known])[0]
  given = placers.Result("given", known, evaluation, (), 0.0, 0)
  return [given, *(placers.place(problem, name, 10) for name in _ONE_RUNS)]


def both_timelines(schedules: dict[str, Schedule]) -> str:
  """A page with a timeline for each, on one axis of time."""
  longest = max(s.step_time_us for s in schedules.values())
  scale, unit = time_scale(longest)
  x_range = figures.span(longest, scale)
  parts = []
  for name, schedule in schedules.items():
    plot = timeline_plot(schedule, x_range, scale)
    plot.toolbar_location = None
    plot.xaxis.axis_label = f"time, {unit}"
    style = {"font": f"600 17px {figures.FONT}", "color": figures.INK}
    text = f"{name}: {format_us(schedule.step_time_us)} a step"
    parts += [Div(text=text, styles=style), plot]
  return file_html(
    column(*parts, sizing_mode="stretch_width"),
    INLINE,
    "before and after",
  )


def main(_: flags.FlagValues) -> None:
  """Places, writes the reports, photographs them."""
  out = pathlib.Path(_OUT.value)
  problem = load_problem()
  results = place_all(problem)
  best = results[0].placement
  expert = next(r.placement for r in results if r.strategy == "expert")
  simulator = Simulator(problem)
  pages = {"expert": expert, results[0].strategy: best}
  with tempfile.TemporaryDirectory() as folder:
    html = pathlib.Path(folder) / "page.html"

    def shoot(text: str, name: str, height: int) -> None:
      write_bytes(html, text.encode("utf-8"))
      photograph(html, out / f"gallery_{name}.png", height)

    shoot(
      both_timelines({n: simulator.schedule(p) for n, p in pages.items()}),
      "timeline",
      1600,
    )
    for name, placement in (("before", expert), ("after", best)):
      page.save_report(placement, html, results)
      text = html.read_text(encoding="utf-8")
      shoot(only(text, "layers"), f"layers_{name}", 900)
    shoot(only(text, "memory"), "memory", 900)
    shoot(text, "report", 4000)


if __name__ == "__main__":
  OPTIONS.run(main)
