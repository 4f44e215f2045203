"""The report in a real browser: it draws, complains of nothing, asks nobody."""

import re

import numpy as np
import pytest

from tests.testing import browser
from tfplace.core.cluster import Cluster, Device, Link
from tfplace.core.evaluation import Result
from tfplace.core.op_graph import OpSpec, build_graph
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.report import op_colors
from tfplace.report.page import figures, save_report
from tfplace.simulate import Simulator

pytest.importorskip("bokeh", reason="the extra 'report' is not installed")

HOSTILE = (
  "</script><script>throw 1</script>",
  "<img src=http://example.org/x.png onerror=throw(2)>",
  "$$\\frac{1}{2}$$",
  "@{what} &amp; 'quoted' \"twice\"",
)


def placed(num_ops, microbatches):
  """Ops of hostile names and types on three devices, with transfers."""
  rng = np.random.default_rng(0)
  types = ("MatMul", "Conv2D", "Add", *HOSTILE)
  ops = [
    OpSpec(
      f"{HOSTILE[i % len(HOSTILE)]}/{i}",
      types[i % len(types)],
      {"GPU": float(rng.integers(1, 9)), "CPU": 20.0},
      [float(rng.integers(1, 400))],
      microbatch=i % microbatches,
    )
    for i in range(num_ops)
  ]
  edges = {
    (int(rng.integers(max(0, i - 12), i)), 0, i)
    for i in range(1, num_ops)
    for _ in range(2)
  }
  devices = tuple(
    Device(f"{HOSTILE[i]} {i}", kind, 5e5, 0.5)
    for i, kind in enumerate(("GPU", "GPU", "CPU"))
  )
  links = tuple(
    Link(a.name, b.name, 90.0, 2.0) for a in devices for b in devices if a != b
  )
  graph = build_graph(HOSTILE[1], ops, sorted(edges))
  problem = Problem(graph, Cluster("trio", devices, links))
  return Placement(problem, rng.choice(3, num_ops, p=[0.5, 0.4, 0.1]))


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
  browser.find()
  folder = tmp_path_factory.mktemp("page")
  placement = placed(300, microbatches=4)
  (evaluation,) = Simulator(placement.problem).evaluate([placement])
  result = Result("single", placement, evaluation, (), 1.5, 9)
  save_report(placement, folder / "report.html", [result])
  return browser.open_page(folder / "report.html", folder)


def test_the_browser_sees_what_a_bad_page_does(tmp_path):
  browser.find()
  bad = tmp_path / "bad.html"
  bad.write_text(
    "<html><head><style></style></head><body><img"
    " src='http://example.org/x.png'><script>console.error('oh');"
    "window.Bokeh = {documents: [{is_idle: true, _all_models: new Map()}]};"
    "throw new Error('no')</script></body></html>"
  )
  seen = browser.open_page(bad, tmp_path)
  assert seen.requests == ["http://example.org/x.png"]
  said = " ".join(seen.errors)
  assert "error oh" in said and "Error: no" in said
  assert seen.figures == {}


def test_page_complains_of_nothing_and_asks_no_network(seen):
  assert (seen.errors, seen.fetched, seen.requests) == ([], [], [])
  assert seen.overflow <= 0  # It is no wider than the window.


def test_every_figure_is_drawn_with_its_data(seen):
  device = figures.device_color(0)
  colors = {
    "timeline": [op_colors.lighter(c) for c in op_colors.sequential(4)],
    "memory": [device],
    "layers": [device],
  }
  assert set(seen.figures) == set(colors)
  colors["timeline"].append(op_colors.CRITICAL_COLOR)
  for figure, drawn in colors.items():
    for color in drawn:
      pixels = seen.figures[figure]["colors"].get(color.lstrip("#"), 0)
      assert pixels > 50, (figure, color)


def test_bars_and_tables_can_be_read(seen):
  assert len(seen.tooltips) > 5
  for tooltip in seen.tooltips:
    assert re.search(r"from:\s*[\d.]+ [mu]?s\s*for:\s*[\d.]+ [mu]?s", tooltip)
  for words in ("on trio takes", "single", "Timeline of", "Other hardware"):
    assert words in seen.text


def test_names_of_a_stranger_are_text(seen):
  # None of them threw, fetched, or is TeX (for which Bokeh would fetch more).
  tooltips = " ".join(seen.tooltips)
  assert all(text in tooltips for text in HOSTILE)
  assert all(text in seen.text for text in HOSTILE[:3])
