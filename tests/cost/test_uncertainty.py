"""Samples of costs, and what they say of plans."""

import dataclasses

import numpy as np
import pytest

from tfplace import placers
from tfplace.cost.uncertainty import (
  comparison_in_words,
  sampled_step_us,
  surest,
  with_intervals,
)
from tfplace.graph import OpSpec, Placement, Problem, build_graph
from tfplace.graph.evaluation import Result
from tfplace.hardware.presets import cluster_preset
from tfplace.simulate import Simulator


def problem_of(*types, cluster="v100x2", **extra):
  """Ops of 1 s side by side; all but "Add" compute at half of the peak."""
  ops = [
    OpSpec(
      f"op_{i}",
      kind,
      {"GPU": 1e6, "CPU": 1e9},
      peak_us={"GPU": 0.0 if kind == "Add" else 5e5},
    )
    for i, kind in enumerate(types)
  ]
  graph = build_graph("g", ops, [], extra={"costs": "kernels", **extra})
  return Problem(graph, cluster_preset(cluster))


def width(problem):
  """Standard deviation of the logarithm on the first GPU."""
  devices = np.zeros((1, problem.graph.num_ops), np.int32)
  return np.log(sampled_step_us(problem, devices)).std()


@pytest.mark.parametrize("kind", ["Add", "MatMul", "Conv2D", "Unit"])
def test_ops_of_a_class_err_together(kind):
  # Ops that erred on their own would average out: by 4 in a step of 16.
  assert width(problem_of(*[kind] * 16)) == pytest.approx(
    width(problem_of(kind)), rel=1e-3
  )


def test_classes_that_err_apart_average_out():
  # Two halves of widths a and b have about half of the root of a^2 + b^2.
  one, other = (width(problem_of(kind)) for kind in ("Add", "MatMul"))
  both = width(problem_of("Add", "MatMul"))
  assert both == pytest.approx(np.hypot(one, other) / 2, rel=0.2)


def test_products_on_an_unknown_generation_err_by_twice_as_much():
  # 8.9, of which no kernel was fitted, and 7.0.
  wide = width(problem_of("MatMul", cluster="l4x1"))
  assert wide == pytest.approx(2 * width(problem_of("MatMul")), rel=1e-3)
  assert width(problem_of("Add", cluster="l4x1")) == pytest.approx(
    width(problem_of("Add")), rel=1e-3
  )


def test_costs_without_known_errors_have_no_interval():
  devices = np.zeros((1, 1), np.int32)
  assert sampled_step_us(problem_of("Add", costs="grappler"), devices) is None
  measured = problem_of("Add", step_noise=0.01)
  assert sampled_step_us(measured, devices) is None
  results = [placers.place(measured, "single")]
  assert with_intervals(results) == results


def placed(problem, devices, **fields):
  placement = Placement(problem, np.array(devices))
  (evaluation,) = Simulator(problem).evaluate(placement.devices[None])
  return Result("auto", placement, evaluation, (), 0.0, 1, **fields)


@pytest.mark.parametrize(
  "others_us, is_given, is_chosen",
  [(5e3, False, True), (2e4, False, False), (5e3, True, False)],
)
def test_of_plans_within_2_percent_the_surer_one_is_chosen(
  others_us, is_given, is_chosen
):
  # Three kinds that err apart share ops of 1 s, so the slowest decides. A V100
  # needs 1.01 s (or 1.04) for all three, and is the faster one wherever the
  # other cards are slower than expected.
  times = {"GPU-v100": others_us, "GPU-p100": 1e6, "GPU-t4": 1e6}
  ops = [OpSpec("a", "Add", times | {"GPU-v100": 1e6})]
  ops += [OpSpec(name, "Add", times) for name in "bc"]
  problem = Problem(
    build_graph("g", ops, [], extra={"costs": "kernels"}),
    cluster_preset("v100x1+p100x1+t4x1"),
  )
  alone = placed(problem, [0, 0, 0])
  shared = placed(problem, [0, 1, 2])
  given = (dataclasses.replace(shared, strategy="init"),) if is_given else ()
  shared = dataclasses.replace(shared, tried=(alone, *given))
  assert shared.evaluation.step_time_us < alone.evaluation.step_time_us
  chosen = alone if is_chosen else shared
  assert surest(shared).placement is chosen.placement
  assert surest(alone) is alone


def test_shared_errors_do_not_blur_a_comparison():
  # All on one GPU take four times as long as halves of a half each: more than
  # one error moves the step, and yet it loses in every sample.
  problem = problem_of("Add", "Add")
  both = [placers.place(problem, name) for name in ("blocks", "single")]
  found, single = with_intervals(both)
  low, high = found.evaluation.extra["interval_us"]
  assert low < found.evaluation.step_time_us < high
  assert single.evaluation.extra["interval_us"] == pytest.approx(
    [2 * low, 2 * high], rel=1e-3
  )
  assert found.evaluation.extra["samples_won"] == {"single": 1.0}
  assert comparison_in_words(found.evaluation) == (
    "faster than one device in 100% of 64 samples of the errors of kernel costs"
  )
