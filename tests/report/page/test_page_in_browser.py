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
  "@{what} &amp; \u2028 'quoted' \"twice\"",
)
FIGURES = {"timeline", "memory", "layers"}


def placed(num_ops, names=(), microbatches=0):
  """Chains across three devices, with transfers between them."""
  rng = np.random.default_rng(0)
  names = [
    *names,
    *(f"model/layer_{i * 9 // num_ops}/op_{i}" for i in range(num_ops)),
  ]
  ops = [
    OpSpec(
      names[i],
      ("MatMul", "Conv2D", "Add", *HOSTILE)[i % (3 + len(HOSTILE))],
      {"GPU": float(rng.integers(1, 9)), "CPU": 20.0},
      [float(rng.integers(1, 400))],
      microbatch=i % microbatches if microbatches else None,
    )
    for i in range(num_ops)
  ]
  edges = sorted(
    {
      (int(rng.integers(max(0, i - 12), i)), 0, i)
      for i in range(1, num_ops)
      for _ in range(2)
    }
  )
  kinds = ("GPU", "GPU", "CPU")
  devices = tuple(
    Device(f"{HOSTILE[i]} {i}", kind, 5e5, 0.5) for i, kind in enumerate(kinds)
  )
  links = tuple(
    Link(a.name, b.name, 90.0, 2.0) for a in devices for b in devices if a != b
  )
  problem = Problem(
    build_graph(HOSTILE[1], ops, edges), Cluster("trio", devices, links)
  )
  at = rng.choice(3, num_ops, p=[0.5, 0.4, 0.1])
  return Placement(problem, at)


def results_of(placement):
  both = {"auto": placement.devices, "single": np.zeros_like(placement.devices)}
  return [
    Result(
      name,
      Placement(placement.problem, at),
      Simulator(placement.problem).evaluate(np.array([at]))[0],
      (),
      1.5,
      9,
    )
    for name, at in both.items()
  ]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
  browser.find()
  folder = tmp_path_factory.mktemp("page")
  names = [f"{HOSTILE[i % len(HOSTILE)]}/{i}" for i in range(200)]
  placement = placed(300, names)
  path = folder / "report.html"
  save_report(placement, path, results_of(placement))
  return browser.open_page(path, folder)


def test_the_browser_sees_what_a_bad_page_does(tmp_path):
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


def test_nothing_is_complained_of(seen):
  assert seen.errors == []


def test_nothing_is_asked_of_any_network(seen):
  assert seen.fetched == []
  assert seen.requests == []


def test_every_figure_is_drawn_with_its_data(seen):
  assert set(seen.figures) == FIGURES

  def pixels(figure, color):
    return seen.figures[figure]["colors"].get(color.lstrip("#").lower(), 0)

  for figure, color in {
    "timeline": op_colors.BLUE,
    "memory": figures.device_color(0),
    "layers": figures.device_color(0),
  }.items():
    assert pixels(figure, color) > 100, figure
  assert pixels("timeline", op_colors.TRANSFER_COLOR) > 100
  assert pixels("timeline", op_colors.CRITICAL_COLOR) > 50


def test_under_the_mouse_each_bar_tells_what_it_is(seen):
  assert len(seen.tooltips) > 5
  for tooltip in seen.tooltips:
    assert re.search(r"from:\s*[\d.]+ [mu]?s\s*for:\s*[\d.]+ [mu]?s", tooltip)


def test_words_and_placers_can_be_read(seen):
  for words in (
    "on trio takes",
    "single",
    "Timeline of the step",
    "Other hardware",
  ):
    assert words in seen.text


def test_the_page_is_no_wider_than_the_window(seen):
  assert seen.overflow <= 0


def test_names_of_a_stranger_are_text(seen):
  # None of them threw, fetched, or is TeX (for which Bokeh would fetch more).
  tooltips = " ".join(seen.tooltips)
  for text in HOSTILE:
    assert text in tooltips
  for text in HOSTILE[:3]:
    assert text in seen.text
  assert seen.errors == []


def test_a_large_graph_has_a_bounded_number_of_marks(tmp_path):
  browser.find()
  placement = placed(20_000)
  save_report(placement, tmp_path / "report.html")
  assert (tmp_path / "report.html").stat().st_size < 4e6
  seen = browser.open_page(tmp_path / "report.html", tmp_path)
  assert seen.errors == []
  assert 1000 < seen.marks < 20_000


def test_a_split_step_is_drawn_by_microbatch(tmp_path):
  browser.find()
  placement = placed(300, microbatches=4)
  save_report(placement, tmp_path / "report.html")
  seen = browser.open_page(tmp_path / "report.html", tmp_path)
  assert seen.errors == []
  assert set(seen.figures) == FIGURES
  for color in op_colors.sequential(4):
    light = op_colors.lighter(color).lstrip("#")
    assert seen.figures["timeline"]["colors"].get(light, 0) > 50, color
  device = figures.device_color(0).lstrip("#").lower()
  assert seen.figures["layers"]["colors"].get(device, 0) > 1000
  assert "microbatch" in " ".join(seen.tooltips)
