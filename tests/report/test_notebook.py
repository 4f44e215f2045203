"""HTML that notebooks show: tables and nothing that runs."""

import dataclasses
import math

import pytest

from tests.testing import placed_graphs
from tests.testing.html_pages import page_of
from tfplace.core.cluster import Cluster, Device, Link
from tfplace.core.evaluation import Evaluation, Result
from tfplace.core.op_graph import OpSpec, build_graph
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.placers import place
from tfplace.report import notebook, summary
from tfplace.simulate import Simulator

# Names of clusters and graphs are printable; other texts may be anything.
NAME = "<img src=x onerror='alert(1)'>&\""
EVIL = f"{NAME}\x00\ud800"


def pages_of_evil_names():
  names = [f"{NAME}0", f"{NAME}1"]
  links = tuple(Link(a, b, 1.0) for a, b in (names, names[::-1]))
  cluster = Cluster(NAME, tuple(Device(n, "GPU") for n in names), links)
  graph = build_graph(NAME, [OpSpec(NAME, NAME, {"GPU": 1.0}, [8.0])], [])
  placement = Placement(Problem(graph, cluster), [0])
  (evaluation,) = Simulator(placement.problem).evaluate([placement])
  failed = dataclasses.replace(
    evaluation, step_time_us=math.inf, feasible=False, extra={"error": EVIL}
  )
  device = summary.DeviceRow(EVIL, 1.0, 1.0, 8.0, math.inf, EVIL)
  yield cluster._repr_html_()
  yield evaluation._repr_html_()
  yield failed._repr_html_()
  yield Result(EVIL, placement, evaluation, (), 1.0, 1)._repr_html_()
  yield notebook.plan_html(EVIL, [device], {}, [EVIL])
  yield notebook.plan_html(EVIL, [], {EVIL: EVIL}, [EVIL])


@pytest.mark.parametrize("text", pages_of_evil_names())
def test_names_are_escaped_everywhere(text):
  page = page_of(text)
  assert NAME in "".join(page.words)
  assert "\x00" not in text
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
  headline = "2 ms per step, simulated, 1.250 x bound; out of memory"
  assert page.words[0] == headline
  assert page.rows[1] == ["GPU:0", "500 us", "25%", "1 GiB"]
  assert "2 KiB between devices." in page.words


def test_result_lists_what_was_tried():
  problem = placed_graphs.chain().problem
  result = place(problem, "auto", budget_s=1, max_evaluations=50)
  page = page_of(result._repr_html_())
  start = page.rows.index(["placer", "step time", "seconds"])
  names = [row[0] for row in page.rows[start + 1 :]]
  assert sorted(names) == sorted(r.strategy for r in result.tried)


def test_long_tables_say_how_many_rows_are_left_out():
  devices = tuple(Device(f"/device:GPU:{i}", "GPU") for i in range(100))
  page = page_of(Cluster("many", devices)._repr_html_())
  assert len(page.rows) == 34  # the header, 32 rows, and the rest
  assert page.rows[-1][0] == "68 more"
