import dataclasses

import numpy as np
import pytest

from tfplace.cost import with_measured_times
from tfplace.cost.measured_costs import STEP_NOISE, noise_of, step_noise
from tfplace.errors import MeasurementError
from tfplace.graph.op_graph import OpSpec, build_graph

NAN = float("nan")


def _graph():
  times = [{"GPU": 4.0, "CPU": 40.0}, {"GPU": 1.0, "CPU": 10.0}]
  ops = [OpSpec(name, "MatMul", t) for name, t in zip("ab", times, strict=True)]
  ops.append(OpSpec("const", "Const", {"GPU": 0.0, "CPU": 0.0}))
  ops.append(OpSpec("host", "Print", {"CPU": 7.0}))
  ops.append(OpSpec("c", "Add", {"GPU": 2.0, "CPU": 20.0}))
  return build_graph("g", ops, [])


def test_ops_without_times_are_scaled_by_the_median():
  # a: 12 / 4 = 3, b: 2 / 1 = 2, so the median is 2.5 and c takes 5.
  graph = with_measured_times(_graph(), "GPU", {"a": 12.0, "b": 2.0})
  np.testing.assert_equal(graph.time_us["GPU"], [12.0, 2.0, 0.0, NAN, 5.0])
  np.testing.assert_equal(graph.time_us["CPU"], _graph().time_us["CPU"])
  assert graph.op_extra == {4: {"estimated": ["GPU"]}}


def test_ops_that_were_measured_at_zero_do_not_scale_the_rest():
  graph = with_measured_times(_graph(), "GPU", {"a": 8.0, "b": 0.0})
  np.testing.assert_equal(graph.time_us["GPU"], [8.0, 0.0, 0.0, NAN, 4.0])


@pytest.mark.parametrize("time_us", [-1.0, NAN, float("inf")])
def test_times_that_are_none_are_refused_by_name(time_us):
  with pytest.raises(MeasurementError, match=f"'a' was measured at {time_us}"):
    with_measured_times(_graph(), "GPU", {"a": time_us})


def test_a_measurement_of_another_graph_is_refused():
  with pytest.raises(MeasurementError, match=r"none of its 5 ops.*the 1 meas"):
    with_measured_times(_graph(), "GPU", {"z": 1.0})
  with pytest.raises(MeasurementError, match="measured on TPU"):
    with_measured_times(_graph(), "TPU", {"a": 1.0})


@pytest.mark.parametrize("count", [10, 20, 100])
def test_noise_is_the_deviation_of_the_median_of_repeated_steps(count):
  # 4,000 medians of `count` steps each, with a deviation of 5% of a step.
  steps = np.random.default_rng(0).normal(200.0, 10.0, (4000, count))
  truth = np.std(np.median(steps, axis=1)) / 200.0
  found = np.mean([step_noise(row) for row in steps])
  assert found == pytest.approx(truth, rel=0.1)


def test_a_slow_step_among_many_is_no_noise():
  assert step_noise([100.0] * 19 + [900.0]) == 0.0


@pytest.mark.parametrize("times", [[], [5.0], [0.0, 0.0], [1.0, np.inf]])
def test_steps_that_tell_nothing_have_no_noise(times):
  assert step_noise(times) == 0.0


@pytest.mark.parametrize(
  ("known", "noise"),
  [(0.01, 0.01), (1, 1.0), (None, 0.0), ("0.1", 0.0), (True, 0.0), (-1, 0.0)],
)
def test_the_noise_of_a_graph_is_that_of_its_measured_costs(known, noise):
  graph = dataclasses.replace(_graph(), extra={STEP_NOISE: known})
  assert noise_of(graph) == noise
  assert noise_of(_graph()) == 0.0
