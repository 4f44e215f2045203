"""HTML of what notebooks show: tables, a timeline, nothing that runs."""

import dataclasses
import math

import numpy as np
import pytest

from tests.report.test_pictures import two_device_placement
from tests.testing.html_pages import bars_of, page_of
from tfplace.core.cluster import Cluster, Device, Link
from tfplace.core.evaluation import Evaluation, Result
from tfplace.core.op_graph import OpSpec, build_graph
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.placers import place
from tfplace.report import notebook, summary
from tfplace.simulate import Simulator

EVIL = "<img src=x onerror='alert(1)'>&\"\x00\ud800"


def test_timeline_draws_each_op_at_its_time_on_its_device():
  """a 0-2 on GPU:0, b 5.5-6.5 on GPU:1."""
  placement = two_device_placement()
  schedule = Simulator(placement.problem).schedule(placement)
  bars, svg = bars_of(notebook.timeline_svg(schedule))
  config = notebook.CONFIG
  us = (config.width - config.label_width) / 6.5
  a, b = bars
  assert a["x"] == pytest.approx(config.label_width, abs=0.01)
  assert a["width"] == pytest.approx(2 * us, abs=0.01)
  assert b["x"] == pytest.approx(config.label_width + 5.5 * us, abs=0.01)
  assert b["width"] == pytest.approx(us, abs=0.01)
  assert b["y"] - a["y"] == config.row_height
  words = "".join(svg.itertext())
  # 2 of 6.5 us are 31%, and 1 of 6.5 us is 15%.
  assert "GPU:0 31%" in words and "GPU:1 15%" in words
  assert "Mat$Mul$: 2 us from 0 us" in words


def _large(num_ops, num_devices):
  ops = [
    OpSpec(f"op_{i}/{EVIL}", f"Type{i % 9}", {"GPU": 1.0 + i % 7}, [4.0])
    for i in range(num_ops)
  ]
  edges = [(i, 0, i + 1) for i in range(0, num_ops - 1, 2)]
  devices = [f"/device:GPU:{i}" for i in range(num_devices)]
  cluster = Cluster(
    "large",
    tuple(Device(name, "GPU", 2.0**40) for name in devices),
    tuple(Link(a, b, 1e3) for a in devices for b in devices if a != b),
  )
  problem = Problem(build_graph("g", ops, edges), cluster)
  return Placement(problem, np.arange(num_ops) // 2 % num_devices)


def test_timeline_of_50_000_ops_stays_small():
  placement = _large(50_000, 24)
  schedule = Simulator(placement.problem).schedule(placement)
  text = notebook.timeline_svg(schedule)
  bars, svg = bars_of(text)
  assert 100 < len(bars) <= notebook.CONFIG.max_bars
  assert len(text) < 120_000
  words = "".join(svg.itertext())
  assert "the busiest 16 of 24 devices" in words
  # The drawn area of a device is its busy time, up to bars that are too low.
  busy_us = sum(sorted(schedule.busy_us)[-16:])
  tall = notebook.CONFIG.row_height - 4
  us = (notebook.CONFIG.width - notebook.CONFIG.label_width) / (
    schedule.step_time_us
  )
  area = sum(bar["width"] * bar["height"] for bar in bars)
  assert area == pytest.approx(busy_us * us * tall, rel=0.05)


def test_names_are_escaped_everywhere():
  ops = [
    OpSpec(EVIL, EVIL, {"GPU": 1.0}, [8.0]),
    OpSpec("b", "<b>", {"GPU": 1.0}),
  ]
  names = [f"{EVIL}0", f"{EVIL}1"]
  links = tuple(Link(a, b, 1.0) for a, b in (names, names[::-1]))
  cluster = Cluster(EVIL, tuple(Device(n, "GPU") for n in names), links)
  problem = Problem(build_graph(EVIL, ops, [(0, 0, 1)]), cluster)
  placement = Placement(problem, [0, 1])
  (evaluation,) = Simulator(problem).evaluate([placement])
  schedule = Simulator(problem).schedule(placement)
  result = Result(EVIL, placement, evaluation, (), 1.0, 1)
  failed = dataclasses.replace(
    evaluation, step_time_us=math.inf, feasible=False, extra={"error": EVIL}
  )
  device = summary.DeviceRow(EVIL, 1.0, 1.0, 8.0, math.inf, EVIL)
  for text in (
    cluster._repr_html_(),
    evaluation._repr_html_(),
    failed._repr_html_(),
    result._repr_html_(),
    notebook.plan_html(EVIL, [device], {}, [EVIL], schedule),
    notebook.plan_html(EVIL, [], {EVIL: EVIL}, [EVIL], None),
  ):
    page = page_of(text)
    assert "<img src=x onerror='alert(1)'>&\"  " in "".join(page.words)
    assert "img" not in page.tags
    text.encode("utf-8")


def test_cluster_lists_devices_and_counts_links_of_a_kind():
  devices = (
    Device("/device:GPU:0", "GPU", 2.0**34, 5.0),
    Device("/device:GPU:1", "GPU", 2.0**34, 5.0),
    Device("/device:CPU:0", "CPU"),
  )
  gpus, cpu = [d.name for d in devices[:2]], devices[2].name
  links = (
    *(Link(a, b, 2.0**20 / 1e6, 3.0) for a, b in (gpus, gpus[::-1])),
    Link(gpus[0], cpu, 2.0**30 / 1e6),
  )
  page = page_of(Cluster("mine", devices, links)._repr_html_())
  assert "Cluster mine: 3 devices" in page.words
  assert page.rows[1:4] == [
    ["GPU:0", "GPU", "16 GiB", "5 us"],
    ["GPU:1", "GPU", "16 GiB", "5 us"],
    ["CPU:0", "CPU", "unlimited", "0 us"],
  ]
  assert page.rows[5:] == [
    ["2", "GPU", "GPU", "1 MiB/s", "3 us"],
    ["1", "GPU", "CPU", "1 GiB/s", "0 us"],
  ]


def test_evaluation_shows_time_bound_and_devices():
  evaluation = Evaluation(
    step_time_us=2000.0,
    feasible=False,
    peak_memory_bytes={"/device:GPU:0": 2.0**30},
    busy_us={"/device:GPU:0": 500.0},
    bytes_moved=2048.0,
    lower_bound_us=1600.0,
    source="simulated",
  )
  page = page_of(evaluation._repr_html_())
  assert page.words[0] == (
    "2 ms per step, simulated, 1.250 x bound; out of memory"
  )
  assert page.rows[1] == ["GPU:0", "500 us", "25%", "1 GiB"]
  assert "2 KiB between devices." in page.words


def test_result_lists_what_was_tried_fastest_first():
  placement = two_device_placement()
  result = place(placement.problem, "auto", budget_s=1, max_evaluations=50)
  page = page_of(result._repr_html_())
  start = page.rows.index(["placer", "step time", "seconds"])
  names = [row[0] for row in page.rows[start + 1 :]]
  assert sorted(names) == sorted(r.strategy for r in result.tried)
  assert "svg" in page.tags


def test_long_tables_say_how_many_rows_are_left_out():
  devices = tuple(Device(f"/device:GPU:{i}", "GPU") for i in range(100))
  page = page_of(Cluster("many", devices)._repr_html_())
  assert len(page.rows) == 1 + notebook.CONFIG.max_rows + 1
  assert page.rows[-1][0] == "68 more"  # of 100, after 32
