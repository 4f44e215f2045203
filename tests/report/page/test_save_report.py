"""The report as a file: refusals, figures and tables."""

import importlib.util
import re

import numpy as np
import pytest

from tests.testing import placed_graphs
from tfplace import core, formats
from tfplace.bin import place, simulate
from tfplace.errors import TfplaceError
from tfplace.report import op_colors, page
from tfplace.simulate import Simulator

pytest.importorskip("bokeh", reason="the extra 'report' is not installed")

from tfplace.report.page import figures, plots, timeline_plot


def schedule_of(placement):
  return Simulator(placement.problem).schedule(placement)


def split_step():
  """Two microbatches of two layers: the first layer on g0, the second apart."""

  def device_of(microbatch, layer):
    return (microbatch or 0) * layer

  return placed_graphs.split_step([3.0, 1.0], 2, device_of, update_us=1.0)


def bars_of(plot):
  """(name, left, right, lane) of the bars of a timeline."""
  return {
    (renderer.name, left, right, int(top))
    for renderer in plot.renderers
    if renderer.name != "critical path"
    for left, right, top in zip(
      *(renderer.data_source.data[x] for x in ("left", "right", "top")),
      strict=True,
    )
  }


def text_of(placement, tmp_path):
  page.save_report(placement, tmp_path / "r.html")
  return (tmp_path / "r.html").read_text(encoding="utf-8")


def test_another_suffix_is_refused(tmp_path):
  with pytest.raises(TfplaceError, match=r"report.pdf: .* ends in \.html"):
    page.save_report(placed_graphs.chain(), tmp_path / "report.pdf")


def test_a_command_without_the_extra_fails_before_its_work(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  flags = ["--graph=none.json", "--cluster=k80x1", "--placement=none.json"]
  assert simulate.run([*flags, f"--report={tmp_path}/r.html"]) == 1
  assert "pip install 'tfplace[report]'" in capsys.readouterr().err


@pytest.fixture
def files(tmp_path):
  ops = [core.OpSpec(x, "X", {"GPU": 1.0}, [8.0]) for x in "ab"]
  devices = (core.Device("g0", "GPU"), core.Device("g1", "GPU"))
  cluster = core.Cluster("two", devices, (core.Link("g0", "g1", 2.0),))
  graph = core.build_graph("g", ops, [(0, 0, 1)])
  formats.save_graph(graph, tmp_path / "g.json")
  formats.save_cluster(cluster, tmp_path / "c.json")
  core.Placement(core.Problem(graph, cluster), [0, 1]).save(tmp_path / "p.json")
  return [f"--graph={tmp_path}/g.json", f"--cluster={tmp_path}/c.json"]


def test_file_holds_everything_and_allows_no_request(files, tmp_path):
  flags = [f"--placement={tmp_path}/p.json", f"--report={tmp_path}/r.html"]
  assert simulate.run([*files, *flags]) == 0
  text = (tmp_path / "r.html").read_text(encoding="utf-8")
  assert "default-src 'none'" in text
  assert not re.search(r"<(script|link|img|iframe)[^>]*\b(src|href)=", text)
  assert len(text) < 2e6


def test_tfplace_place_writes_the_placers_it_ran(files, tmp_path):
  flags = ["--strategy=blocks", f"--report={tmp_path}/r.html"]
  assert place.run([*files, *flags]) == 0
  text = (tmp_path / "r.html").read_text(encoding="utf-8")
  rows = re.findall(r"<tr( class=\"best\")?><td>(single|blocks|expert)<", text)
  # On one device a and b take 2; in blocks a 0-1, sent 1-5, b 5-6, and the
  # expert does the same: of the two, the row of the strategy is marked.
  assert [name for _, name in rows] == ["single", "blocks", "expert"]
  assert [name for best, name in rows if best] == ["blocks"]


def test_timeline_draws_messages_in_the_rows_of_their_devices():
  schedule = schedule_of(placed_graphs.messages())
  plot = timeline_plot.timeline_plot(schedule, figures.span(9.5, 1.0))
  assert bars_of(plot) == {
    ("MatMul", 0, 2, 0),
    ("send, receive", 2, 3, 0),
    ("transfers", 3, 6, 2),
    ("send, receive", 6.5, 8.5, 1),
    ("Relu", 8.5, 9.5, 1),
  }


def test_timeline_has_a_color_for_each_microbatch():
  # g0: forward 0-3, 3-6; 6-7 and back 7-8 of microbatch 0. g1: the same of 1.
  # g0: back 8-11, 11-14, and updates of both layers.
  schedule = schedule_of(split_step())
  plot = timeline_plot.timeline_plot(schedule, figures.span(16.0, 1.0))
  bars = {(n, a, b) for n, a, b, lane in bars_of(plot) if lane < 2}
  assert {
    ("microbatch 0", 0, 3),
    ("microbatch 1", 3, 6),
    ("update, shared", 14, 15),
  } <= bars
  colors = {r.name: r.glyph.fill_color for r in plot.renderers}
  assert colors["microbatch 1"] in op_colors.op_colors(schedule).colors[2:4]
  labels = [item.label.value for item in plot.legend[0].items]
  assert labels[:3] == ["microbatch 0", "microbatch 1", "update, shared"]


def test_timeline_of_a_large_graph_is_bounded():
  schedule = schedule_of(placed_graphs.chains(2, 5000, 0.5))
  x_range = figures.span(schedule.step_time_us, 1.0)
  bars = bars_of(timeline_plot.timeline_plot(schedule, x_range))
  assert 1000 < len(bars) <= 4500


def test_layers_are_stacked_by_device():
  schedule = schedule_of(split_step())
  names, time_us = plots.layer_times(schedule)
  # Layer 0: 4 ops of 3 us and the update; layer 1: 2 ops of 1 us on each.
  assert names == ["layer_0", "layer_1"]
  assert time_us.tolist() == [[13, 0], [3, 2]]
  plot = plots.layers_plot(schedule)
  bars = {
    (device, layer, bottom, top)
    for renderer in plot.renderers
    for device, layer, bottom, top in zip(
      *(
        renderer.data_source.data[x]
        for x in ("device", "layer", "bottom", "top")
      ),
      strict=True,
    )
  }
  assert bars == {
    ("g0", "layer_0", 0, 13),
    ("g0", "layer_1", 0, 3),
    ("g1", "layer_1", 3, 5),
  }


def test_many_layers_share_columns():
  step = placed_graphs.split_step([1.0] * 60, 2, lambda m, layer: 0)
  names, time_us = plots.layer_times(schedule_of(step))
  assert len(names) == 28 and names[0] == "layer_0 … layer_2"
  assert time_us.sum() == 240


def test_report_names_messages_and_microbatches_where_they_are(tmp_path):
  cases = {
    "receive 6 B from gpu:0 to": placed_graphs.messages(),
    "Its 2 microbatches:": split_step(),
    "Each microbatch has a colour": split_step(),
  }
  plain = text_of(placed_graphs.chain(), tmp_path)
  for words, placement in cases.items():
    assert words in text_of(placement, tmp_path)
    assert words not in plain


def test_an_empty_graph_has_a_report(tmp_path):
  cluster = core.Cluster("c", (core.Device("d", "GPU"),))
  problem = core.Problem(core.build_graph("g", [], []), cluster)
  empty = core.Placement(problem, np.zeros(0, np.int32))
  assert "Critical path" in text_of(empty, tmp_path)


def test_devices_differ_in_color_or_dash():
  looks = [(figures.device_color(i), figures.device_dash(i)) for i in range(16)]
  assert len(set(looks)) == 16
  assert len({color for color, _ in looks[:8]}) == 8


@pytest.mark.parametrize("devices", [1, 9, 40])
@pytest.mark.parametrize("length", [1, 30])
def test_a_legend_is_no_wider_than_its_plot(devices, length):
  ranges = figures.between(0, 1), figures.between(0, 1)
  plot = figures.new_figure("x", 300, *ranges)
  for i in range(devices):
    label = f"{i:02}".ljust(length, "x")
    plot.line([0, 1], [0, 1], legend_label=label)
  figures.style_legend(plot)
  # 12 px letters of a sans font are 7 px wide on average, glyph and margins 37.
  width = plot.legend[0].ncols * (7 * max(2, length) + 37)
  assert width <= 940 - 150 - 16  # the plot's least width within its borders
  rows = -(-devices // plot.legend[0].ncols)
  assert plot.height == 300 + 28 * (rows - 1)
