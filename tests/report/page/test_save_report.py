"""The report as a file: what is refused, what is in it."""

import dataclasses
import importlib.util
import re

import numpy as np
import pytest

from tfplace import core, formats
from tfplace.bin import place, simulate
from tfplace.errors import TfplaceError
from tfplace.report import page
from tfplace.report.explain.layers import find_layers
from tfplace.report.op_colors import op_colors
from tfplace.report.page import figures, layers_plot
from tfplace.simulate import Simulator


@pytest.fixture
def placement():
  ops = [core.OpSpec(x, "X", {"GPU": 1.0}, [8.0]) for x in "ab"]
  devices = (core.Device("g0", "GPU"), core.Device("g1", "GPU"))
  cluster = core.Cluster("two", devices, (core.Link("g0", "g1", 2.0),))
  problem = core.Problem(core.build_graph("g", ops, [(0, 0, 1)]), cluster)
  return core.Placement(problem, np.array([0, 1]))


def test_another_suffix_is_refused(placement, tmp_path):
  with pytest.raises(TfplaceError, match=r"report.pdf: .* ends in \.html"):
    page.save_report(placement, tmp_path / "report.pdf")


def test_without_the_extra_the_sentence_says_how_to_get_it(
  placement, tmp_path, monkeypatch
):
  known = importlib.util.find_spec
  monkeypatch.setattr(
    importlib.util, "find_spec", lambda n: None if n == "bokeh" else known(n)
  )
  with pytest.raises(TfplaceError, match=r"pip install 'tfplace\[report\]'"):
    page.save_report(placement, tmp_path / "report.html")
  assert not list(tmp_path.iterdir())


def test_a_command_without_its_extra_fails_before_its_work(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  flags = ["--graph=none.json", "--cluster=k80x1", "--placement=none.json"]
  assert simulate.run([*flags, f"--report={tmp_path}/r.html"]) == 1
  assert "extra 'report'" in capsys.readouterr().err


def test_the_file_holds_everything_and_allows_no_request(placement, tmp_path):
  pytest.importorskip("bokeh", reason="the extra 'report' is not installed")
  paths = [str(tmp_path / f"{x}.json") for x in ("g", "c", "p")]
  formats.save_graph(placement.problem.graph, paths[0])
  formats.save_cluster(placement.problem.cluster, paths[1])
  placement.save(paths[2])
  names = ("graph", "cluster", "placement")
  flags = [f"--{n}={path}" for n, path in zip(names, paths, strict=True)]
  report = tmp_path / "r.html"
  assert simulate.run([*flags, f"--report={report}"]) == 0
  text = report.read_text(encoding="utf-8")
  assert "default-src 'none'" in text
  assert not re.search(r"<(script|link|img|iframe)[^>]*\b(src|href)=", text)
  assert len(text) < 2e6


def test_tfplace_place_writes_the_placers_it_ran_into_the_report(
  placement, tmp_path, capsys
):
  pytest.importorskip("bokeh", reason="the extra 'report' is not installed")
  graph, cluster = str(tmp_path / "g.json"), str(tmp_path / "c.json")
  formats.save_graph(placement.problem.graph, graph)
  formats.save_cluster(placement.problem.cluster, cluster)
  flags = [f"--graph={graph}", f"--cluster={cluster}", "--strategy=blocks"]
  assert place.run([*flags, f"--report={tmp_path}/r.html"]) == 0
  text = (tmp_path / "r.html").read_text(encoding="utf-8")
  rows = re.findall(r"<tr(?: class=\"(best)\")?><td>(\w+)</td>", text)
  # On one device a and b take 2; in blocks a 0-1, sent 1-5, b 5-6, and the
  # expert does the same: of the two, the row of the strategy is marked.
  assert rows == [("", "single"), ("best", "blocks"), ("", "expert")]


@pytest.fixture
def costly(placement):
  """a 0-1 on g0, sends until 2; 8 bytes 2-6; g1 receives until 8; b 8-9."""
  problem = placement.problem
  (link,) = problem.cluster.links
  link = dataclasses.replace(link, send_us=1.0, recv_us=2.0)
  cluster = dataclasses.replace(problem.cluster, links=(link,))
  return core.Placement(core.Problem(problem.graph, cluster), [0, 1])


def test_the_timeline_draws_a_receive_in_the_row_of_its_device(costly):
  models = pytest.importorskip("bokeh.models", reason="needs extra 'report'")
  from tfplace.report.page.timeline_plot import timeline_plot  # needs Bokeh

  schedule = Simulator(costly.problem).schedule(costly)
  plot = timeline_plot(schedule, models.Range1d(0, 9), 1.0)
  found = {
    (renderer.name, left, right): int(top)
    for renderer in plot.renderers
    if renderer.name != "critical path"
    for left, right, top in zip(
      *(renderer.data_source.data[x] for x in ("left", "right", "top")),
      strict=True,
    )
  }
  assert found == {
    ("X", 0, 1): 0,
    ("send, receive", 1, 2): 0,
    ("transfers", 2, 6): 2,
    ("send, receive", 6, 8): 1,
    ("X", 8, 9): 1,
  }


def test_the_report_draws_sends_and_receives(placement, costly, tmp_path):
  pytest.importorskip("bokeh", reason="the extra 'report' is not installed")
  words = ("send, receive", "sending and receiving", "receive 8 B from g0 to")
  for case in (placement, costly):
    page.save_report(case, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert [word in text for word in words] == [case is costly] * len(words)


def test_an_empty_graph_has_a_report(tmp_path):
  pytest.importorskip("bokeh", reason="the extra 'report' is not installed")
  cluster = core.Cluster("c", (core.Device("d", "GPU"),))
  problem = core.Problem(core.build_graph("g", [], []), cluster)
  page.save_report(
    core.Placement(problem, np.zeros(0, np.int32)), tmp_path / "r.html"
  )
  assert (tmp_path / "r.html").exists()


def test_devices_differ_in_color_or_dash():
  looks = [(figures.device_color(i), figures.device_dash(i)) for i in range(16)]
  assert len(set(looks)) == 16
  assert len({color for color, _ in looks[:8]}) == 8


@pytest.mark.parametrize("devices", [1, 4, 9, 40])
@pytest.mark.parametrize("length", [1, 30])
def test_a_legend_is_no_wider_than_its_plot(devices, length):
  plot = figures.new_figure(
    "x", 300, figures.between(0, 1), figures.between(0, 1)
  )
  labels = [f"{i:02}".ljust(length, "x") for i in range(devices)]
  for label in labels:
    plot.line([0, 1], [0, 1], legend_label=label)
  figures.style_legend(plot)
  # 12 px letters of a sans font are 7 px wide on average, glyph and margins 37.
  width = plot.legend[0].ncols * (7 * max(2, length) + 37)
  assert width <= 940 - 150 - 16  # the plot's least width within its borders
  rows = -(-devices // plot.legend[0].ncols)
  assert plot.height == 300 + 28 * (rows - 1)


def test_neighbors_merge_into_blocks_of_like_weight():
  layers = find_layers(["a", "b", "c", "d"], np.ones(4))
  # In order of position: b, a, d, c; their weights 3 | 1 + 1 + 1.
  merged = layers_plot.merge_in_order(
    layers, np.array([1, 0, 3, 2]), np.array([1.0, 3.0, 1.0, 1.0]), 2
  )
  assert merged.names == ("b", "a … c")
  assert merged.layer_of.tolist() == [1, 0, 1, 1]


def test_few_layers_are_only_put_in_order():
  layers = find_layers(["a", "b", "c"], np.ones(3))
  merged = layers_plot.merge_in_order(
    layers, np.array([2, 0, 1]), np.ones(3), 5
  )
  assert merged.names == ("b", "c", "a")
  assert merged.layer_of.tolist() == [2, 0, 1]


@pytest.fixture
def split():
  """Two microbatches of two layers: the first layer's on g0 both, the second's
  apart; each forward op takes 3, its gradient 1, and the update 1."""
  ops, edges = [], []
  for i in range(2):
    for layer, scope in ((0, ""), (1, ""), (1, "gradient_tape/")):
      name = f"microbatch_{i}/{scope}net/layer_{layer}/MatMul"
      us = {"GPU": 1.0 if scope else 3.0}
      own = {"layer": f"net/layer_{layer}", "microbatch": i}
      ops.append(core.OpSpec(name, "MatMul", us, [0.0], **own))
    edges += [(3 * i, 0, 3 * i + 1), (3 * i + 1, 0, 3 * i + 2)]
    edges.append((3 * i + 2, 0, 6))
  ops.append(core.OpSpec("sgd/x", "Assign", {"GPU": 1.0}, layer="net/layer_1"))
  devices = (core.Device("g0", "GPU"), core.Device("g1", "GPU"))
  links = (core.Link("g0", "g1", 2.0), core.Link("g1", "g0", 2.0))
  cluster = core.Cluster("two", devices, links)
  problem = core.Problem(core.build_graph("g", ops, edges), cluster)
  # g0: 0-3, 3-6 forward; 6-9, 9-10 of the first microbatch. g1: 6-9, 9-10 of
  # the second one, which waits for g0. Then the update.
  return core.Placement(problem, np.array([0, 0, 0, 0, 1, 1, 0]))


def test_the_page_timeline_has_a_color_for_each_microbatch(split):
  models = pytest.importorskip("bokeh.models", reason="needs extra 'report'")
  from tfplace.report.page.timeline_plot import timeline_plot  # needs Bokeh

  schedule = Simulator(split.problem).schedule(split)
  plot = timeline_plot(schedule, models.Range1d(0, 11), 1.0)
  found = {
    (renderer.name, renderer.glyph.fill_color, left, right)
    for renderer in plot.renderers
    if renderer.name != "critical path"
    for left, right in zip(
      *(renderer.data_source.data[x] for x in ("left", "right")), strict=True
    )
  }
  ops = op_colors(schedule, figures.OP_TYPES, figures.OTHER)
  first, second = ops.colors[:2], ops.colors[2:4]
  assert found == {
    ("microbatch 0", first[0], 0, 3),
    ("microbatch 1", second[0], 3, 6),
    ("microbatch 0", first[0], 6, 9),
    ("microbatch 0", first[1], 9, 10),
    ("microbatch 1", second[0], 6, 9),
    ("microbatch 1", second[1], 9, 10),
    ("update, shared", figures.OTHER, 10, 11),
  }
  labels = [item.label.value for item in plot.legend[0].items]
  assert labels[:3] == ["microbatch 0", "microbatch 1", "update, shared"]


def test_cells_of_a_split_step_have_their_devices_colors(split):
  pytest.importorskip("bokeh", reason="the extra 'report' is not installed")
  from tfplace.report.page.layers_plot import (
    layers_plot as cells,
  )  # needs Bokeh

  devices = split.devices.copy()
  devices[2] = 1  # of layer 1 in microbatch 0: 3 us on g0, 1 us on g1
  moved = core.Placement(split.problem, devices)
  plot = cells(Simulator(moved.problem).schedule(moved))
  found = {
    (what, device, round((right - left) / 0.88, 3))
    for renderer in plot.renderers
    for what, device, left, right in zip(
      *(
        renderer.data_source.data[x]
        for x in ("what", "device", "left", "right")
      ),
      strict=True,
    )
  }
  assert found == {
    ("layer_0, microbatch 0", "g0 (100%)", 1.0),
    ("layer_0, microbatch 1", "g0 (100%)", 1.0),
    ("layer_1, microbatch 0", "g0 (75%)", 0.75),
    ("layer_1, microbatch 0", "g1 (25%)", 0.25),
    ("layer_1, microbatch 1", "g1 (100%)", 1.0),
  }
  colors = {r.name: r.glyph.fill_color for r in plot.renderers}
  assert colors == {
    "cells of g0": figures.device_color(0),
    "cells of g1": figures.device_color(1),
  }


def test_a_report_says_what_a_split_gives_only_of_a_split_step(
  placement, split, tmp_path
):
  pytest.importorskip("bokeh", reason="the extra 'report' is not installed")
  words = (
    "bubble, 2 microbatches",
    "a row\nper microbatch",
    "Each microbatch has a colour",
    "(the bubble)",
  )
  for case in (placement, split):
    page.save_report(case, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert [word in text for word in words] == [case is split] * len(words)


@pytest.mark.parametrize("microbatch", [None, 1])
def test_the_update_of_a_layer_does_not_move_its_column(microbatch):
  # a 0-1, b 1-2, their gradients 2-4; momentum of b: m * rate before all else.
  scope = "" if microbatch is None else "microbatch_1/"
  names = ["momentum", "net/a/x", "net/b/x"]
  names += [f"gradient_tape/net/{x}/x" for x in "ba"]
  ops = [
    core.OpSpec(
      f"{scope}{name}" if i else name,
      "X",
      {"GPU": 9.0 if name == "momentum" else 1.0},
      [0.0],
      layer="net/a" if "/a/" in name else "net/b",
      microbatch=microbatch if i else None,
    )
    for i, name in enumerate(names)
  ]
  ops.append(core.OpSpec("update", "X", {"GPU": 1.0}, layer="net/b"))
  edges = [(1, 0, 2), (2, 0, 3), (3, 0, 4), (0, 0, 5), (3, 0, 5)]
  cluster = core.Cluster("c", (core.Device("d", "GPU"),))
  problem = core.Problem(core.build_graph("g", ops, edges), cluster)
  schedule = Simulator(problem).schedule(np.zeros(6, int))
  assert schedule.op_start_us[0] < schedule.op_start_us[1]
  assert layers_plot.columns(schedule).names == ("a", "b")
