"""A split step: how microbatches are used, the bubble, and what limits."""

import dataclasses
import json

import numpy as np
import pytest

from tests.testing import placed_graphs
from tests.testing.random_problems import costly_case, random_case
from tfplace.core import phases
from tfplace.core.cluster import Cluster, Device, Link
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.report.explain import explain, summary
from tfplace.report.explain.microbatches import bubble, parallelism
from tfplace.report.explain.output import (
  explanation_tables,
  explanation_to_json,
)
from tfplace.simulate import Simulator


def by_stage(microbatch, layer):
  return layer


def by_microbatch(microbatch, layer):
  return layer if microbatch is None else microbatch


def on_one(microbatch, layer):
  return 0


def two_by_two(microbatch, layer):
  replica = 0 if microbatch is None else microbatch // 2
  return 2 * replica + layer


def tensor_like(microbatch, layer):
  """Layers 0 and 1 by stage, 2 and 3 by microbatch."""
  if layer < 2:
    return layer
  return layer % 2 if microbatch is None else microbatch % 2


def gains(report):
  return {limit.name: limit.gain_us for limit in report.limits}


def report_of(*args, **kwargs):
  explanation = explain(placed_graphs.split_step(*args, **kwargs))
  return explanation, explanation.microbatches, " ".join(summary(explanation))


def test_a_long_stage_limits_a_pipeline():
  # g1 begins at 1, when the first microbatch has passed g0, and computes 4
  # times 9 + 9 us; g0 ends 1 later. Spread evenly, stages of 5: 5 + 40 + 5.
  explanation, report, words = report_of([1.0, 9.0], 4, by_stage)
  assert explanation.schedule.step_time_us == 74
  assert report.limits[0] == bubble.Limit(bubble.BALANCE, 24)
  # Then each of the two waits for 10: to fill it, or to drain it.
  assert gains(report)[bubble.FILL] == 10
  assert report.bubble == pytest.approx(1 - (8 + 72) / 148)
  assert "pipeline of 2 stages: g0 has layer_0; g1 has layer_1" in words
  assert "limits it most is stage balance: g1 computes microbatches" in words
  assert "97% of the step, devices on average for 54%" in words
  assert "spread evenly, it would be 32% shorter" in words


def test_a_short_pipeline_is_limited_by_its_fill_and_drain():
  # g1: 5-25, waiting for 5 before and after; g0: 0-10 and 15-20, 25-30.
  explanation, report, words = report_of([5.0, 5.0], 2, by_stage)
  assert explanation.schedule.step_time_us == 30
  assert report.limits[0] == bubble.Limit(bubble.FILL, 10)
  assert set(gains(report).values()) == {0.0, 10.0}
  assert "The 2 devices idle for 33% of the step (the bubble)" in words
  assert "most is fill and drain" in words and "for 33% of the step" in words


def test_a_variable_that_is_sent_late_makes_the_link_the_limit():
  # 100 bytes to g1 take 50 us; there 10 + 10 follow. Without, 20 in all.
  explanation, report, words = report_of(
    [10.0], 2, by_microbatch, read_bytes=100.0
  )
  assert explanation.schedule.step_time_us == 70
  assert report.limits[0] == bubble.Limit(bubble.LINKS, 50)
  assert set(gains(report).values()) == {0.0, 50.0}
  assert "data parallelism: 0 on g0; 1 on g1." in words
  assert "most is links: transfers are 71% of the critical path" in words


def test_an_update_that_all_wait_for_is_the_limit():
  # Both microbatches are done at 20, then one device updates for 30.
  explanation, report, words = report_of(
    [10.0], 2, by_microbatch, update_us=30.0
  )
  assert explanation.schedule.step_time_us == 50
  assert report.limits[0] == bubble.Limit(bubble.THE_UPDATE, 30)
  assert set(gains(report).values()) == {0.0, 30.0}
  assert report.tail_us == 30
  assert "the update: 60% of the step comes after the last" in words


def test_overhead_of_small_ops_is_the_limit():
  # On each device 1 us, 5 of overhead, 1, 5; then gradients are added.
  explanation, report, words = report_of(
    [1.0], 2, by_microbatch, overhead_us=5.0
  )
  assert explanation.schedule.step_time_us == 12
  assert report.limits[0] == bubble.Limit(bubble.OVERHEAD, 10)
  assert "is overhead of ops" in words


def test_a_step_that_nothing_of_the_split_holds_back():
  _, report, words = report_of([10.0], 2, by_microbatch)
  assert report.bubble == 0
  assert "Nothing of the split holds it back" in words


def test_devices_without_microbatches_count_in_the_bubble():
  # Three devices of one kind; only g0 works.
  placement = placed_graphs.split_step([5.0, 5.0, 5.0], 2, by_stage)
  alone = Placement(placement.problem, np.zeros(len(placement.devices), int))
  report = explain(alone).microbatches
  assert report.bubble == pytest.approx(2 / 3)
  assert report.limits[0] == bubble.Limit(bubble.BALANCE, 40)  # of 60


def test_a_host_with_an_odd_op_does_not_count_as_idle():
  # Of the two microbatches, one short op is on a device of another kind.
  placement = placed_graphs.split_step([10.0, 0.1], 2, by_microbatch)
  problem = placement.problem
  graph = problem.graph
  us = {kind: graph.time_us["GPU"] for kind in ("GPU", "CPU")}
  host = Device("host", "CPU")
  names = [device.name for device in problem.cluster.devices]
  links = [
    Link(a, b, 1e9) for x in names for a, b in ((x, "host"), ("host", x))
  ]
  cluster = Cluster(
    "with host",
    (*problem.cluster.devices, host),
    (*problem.cluster.links, *links),
  )
  devices = placement.devices.copy()
  devices[graph.index["microbatch_0/net/layer_1/MatMul"]] = 2
  problem = Problem(dataclasses.replace(graph, time_us=us), cluster)
  report = explain(Placement(problem, devices)).microbatches
  assert report.workers == (0, 1)
  # They compute 20.1 and 20.2 of 20.2, and only the first waits, for 0.1.
  assert gains(report)[bubble.FILL] <= 0.1
  assert report.bubble == pytest.approx(0.1 / 40.4)


@pytest.mark.parametrize(
  "device_of, layers, microbatches, pattern, words",
  [
    (on_one, 2, 3, parallelism.ONE_DEVICE, "run one after the other on g0"),
    (
      by_microbatch,
      2,
      3,
      parallelism.DATA_PARALLEL,
      "0 on g0; 1 on g1; 2 on g2",
    ),
    (by_stage, 3, 2, parallelism.PIPELINE, "a pipeline of 3 stages"),
    (
      two_by_two,
      2,
      4,
      parallelism.PIPELINES,
      "2 pipelines side by side (data and pipeline parallelism): 0 and 1 on g0"
      " and g1; 2 and 3 on g2 and g3.",
    ),
    (
      tensor_like,
      4,
      2,
      parallelism.MIXTURE,
      "50% of the work is in layers with one device for each microbatch",
    ),
  ],
)
def test_the_use_of_the_split_is_found_in_the_placement(
  device_of, layers, microbatches, pattern, words
):
  _, report, said = report_of([4.0] * layers, microbatches, device_of)
  assert report.parallelism.pattern == pattern
  assert words in said


def test_odd_ops_do_not_hide_a_pattern():
  placement = placed_graphs.split_step([4.0] * 20, 4, by_microbatch)
  devices = placement.devices.copy()
  moved = np.flatnonzero(placement.problem.graph.microbatch == 1)[:3]
  devices[moved] = 2
  explanation = explain(Placement(placement.problem, devices))
  found = explanation.microbatches.parallelism
  assert found.pattern == parallelism.DATA_PARALLEL
  words = " ".join(summary(explanation))
  assert "data parallelism, with 98% of their work: 0 on g0; 1 on" in words
  # 3 of the 40 ops of microbatch 1, 4 us each, are elsewhere.
  assert found.time_us[1].tolist()[:4] == [0, 148, 12, 0]


def test_a_layer_divided_within_a_microbatch_is_neither():
  placement = placed_graphs.split_step([4.0] * 4, 2, by_stage)
  graph = placement.problem.graph
  backward = phases.phases(graph) == phases.BACKWARD
  devices = (placement.devices + backward) % 4
  found = explain(
    Placement(placement.problem, devices)
  ).microbatches.parallelism
  assert (found.together, found.apart, found.divided) == (0, 0, 1)
  assert found.pattern == parallelism.MIXTURE


def test_stages_are_blocks_of_neighboring_layers():
  def device_of(microbatch, layer):
    return (0, 0, 1, 1, 0)[layer]

  _, report, words = report_of([4.0] * 5, 2, device_of)
  assert report.parallelism.stages == {
    0: (("layer_0", "layer_1"), ("layer_4", "layer_4")),
    1: (("layer_2", "layer_3"),),
  }
  assert "g0 has layer_0 to layer_1 and layer_4; g1 has layer_2 to" in words


def test_a_pipeline_of_which_every_layer_lends_an_op_is_one():
  # 10 microbatches; of each layer, one of 20 ops is elsewhere, then 4.
  placement = placed_graphs.split_step([4.0, 4.0], 10, by_stage)
  graph = placement.problem.graph
  for count, followed in ((1, 0.95), (4, 0.8)):
    devices = placement.devices.copy()
    for layer in range(2):
      own = (graph.microbatch >= 0) & (graph.layer == layer)
      devices[np.flatnonzero(own)[:count]] = 1 - layer
    explanation = explain(Placement(placement.problem, devices))
    found = explanation.microbatches.parallelism
    assert (found.pattern, found.followed) == (parallelism.PIPELINE, followed)
    assert f"a pipeline of 2 stages, with {100 * followed:.0f}% of" in " ".join(
      summary(explanation)
    )


def test_microbatches_without_work_are_no_pattern():
  _, report, words = report_of([0.0], 2, by_microbatch)
  assert report.parallelism.groups == ()
  assert "The 2 microbatches take no time." in words


def test_phases_are_found_by_names_and_edges():
  placement = placed_graphs.split_step([4.0, 4.0], 2, by_stage)
  graph = placement.problem.graph
  names = {
    name: phases.NAMES[phase]
    for name, phase in zip(graph.names, phases.phases(graph), strict=True)
  }
  assert {n: p for n, p in names.items() if "layer_1" in n} == {
    "net/layer_1/read": "shared",
    "microbatch_0/net/layer_1/MatMul": "forward",
    "microbatch_0/gradient_tape/net/layer_1/MatMul": "backward",
    "microbatch_1/net/layer_1/MatMul": "forward",
    "microbatch_1/gradient_tape/net/layer_1/MatMul": "backward",
    "accumulate/net/layer_1/AddN": "update",
  }
  assert names["sgd/update_1"] == "update"
  # What follows a gradient in its microbatch is backward, whatever its name.
  renamed = dataclasses.replace(
    graph,
    names=tuple(
      n.replace("gradient_tape/net/layer_0", "AddN") for n in graph.names
    ),
  )
  assert phases.phases(renamed).tolist() == phases.phases(graph).tolist()


@pytest.mark.parametrize("case", [random_case, costly_case])
@pytest.mark.parametrize("seed", range(3))
def test_what_a_device_does_adds_up_to_the_step(seed, case):
  rng = np.random.default_rng(seed)
  seen = 0
  for _ in range(30):
    problem, devices = case(rng)
    number = rng.integers(-1, 3, problem.graph.num_ops).astype(np.int32)
    graph = dataclasses.replace(problem.graph, microbatch=number)
    placement = Placement(Problem(graph, problem.cluster), devices)
    schedule = Simulator(placement.problem).schedule(placement)
    report = bubble.report_microbatches(schedule)
    if report is None:
      assert not (number > 0).any()
      continue
    seen += 1
    for i, device in enumerate(report.devices):
      parts = dataclasses.astuple(device)[1:]
      assert min(parts) >= -1e-9
      assert sum(parts) == pytest.approx(schedule.step_time_us, abs=1e-6)
      assert device.busy_us == pytest.approx(schedule.busy_us[i], abs=1e-9)
    assert min(gains(report).values()) >= 0
    assert -1e-9 <= report.bubble <= 1
  assert seen > 20


def test_json_and_tables_have_the_split_only_where_there_is_one():
  explanation, _, _ = report_of([1.0, 9.0], 4, by_stage)
  data = explanation_to_json(explanation)
  data = json.loads(json.dumps(data, allow_nan=False))["split"]
  assert (data["microbatches"], data["pattern"]) == (4, "pipeline")
  assert data["microbatch_us"] == [[2, 18]] * 4
  assert data["limits"][0] == {"name": "stage balance", "gain_us": 24}
  assert data["devices"][1]["forward_us"] == 36
  first, second = [
    table for table in explanation_tables(explanation) if hasattr(table, "rows")
  ][:2]
  assert "split" in str(first.title) and "path" in str(second.title)
  assert [str(cell) for cell in first.columns[1].cells] == [
    "0 (10%), 1 (10%), 2 (10%), 3 (10%)",
    "0 (90%), 1 (90%), 2 (90%), 3 (90%)",
  ]
  whole = explain(placed_graphs.chain())
  assert whole.microbatches is None and "split" not in explanation_to_json(
    whole
  )
