"""Placements on real workers: the same numbers, times, and failures told."""

import math
import time

import numpy as np
import pytest

from tests.testing.harnesses import harness_of, problem_on
from tests.testing.small_steps import nan_step
from tests.testing.traced_steps import run_steps
from tfplace.errors import MeasurementError, PlacementError
from tfplace.extraction.traced import feed_values
from tfplace.measure.harness import MeasurementHarness


def test_split_step_computes_the_losses_of_a_local_session(workers, trained):
  feed = feed_values(trained.traced)
  # The first step is fetched; then 1 warm-up, 2 timed, 1 traced, 1 fetched.
  local = run_steps(trained.traced, [feed] * 6)
  harness = harness_of(workers, trained, warmup=1, steps=2, traced_steps=1)
  for moved in ({}, {"y": 1, "square": 1}, {"grad": 1, "x": 1}):
    evaluation = harness.evaluate(trained.on(moved))[0]
    assert evaluation.extra["fetches"]["loss:0"] == pytest.approx(
      local[0][0], rel=1e-6
    )
    assert evaluation.extra["last_fetches"]["loss:0"] == pytest.approx(
      local[5][0], rel=1e-6
    )
    assert local[5][0] < local[0][0]  # the update ran
    ran = {name: op.device for name, op in harness.traces[0].ops.items()}
    assert set(ran) == set(trained.graph.names)  # every op, under its own name
    elsewhere = {n for n, d in ran.items() if d == workers.device_names[1]}
    assert elsewhere == set(moved)


def test_evaluation_has_median_spread_bytes_and_memory(workers, trained):
  harness = harness_of(workers, trained, steps=7)
  evaluation = harness.evaluate(trained.on({"y": 1}))[0]
  times = evaluation.extra["step_times_us"]
  low, high = evaluation.extra["step_time_quartiles_us"]
  assert len(times) == 7
  assert evaluation.step_time_us == sorted(times)[3]
  assert low <= evaluation.step_time_us <= high
  # x [8, 16] and w [16, 16] go there, y [8, 16] comes back: floats.
  assert evaluation.bytes_moved == 4 * (8 * 16 + 16 * 16 + 8 * 16)
  first, second = workers.device_names
  # Held: w and x; grad and delta are 16 x 16 floats at one time.
  held = 4 * (16 * 16 + 8 * 16)
  assert evaluation.peak_memory_bytes[first] >= held + 4 * 16 * 16
  assert 4 * 8 * 16 <= evaluation.peak_memory_bytes[second] < 1e5
  assert evaluation.source == "measured"
  assert evaluation.feasible
  assert evaluation.busy_us[first] > 0 < evaluation.busy_us[second]


def test_nan_results_are_reported(workers):
  step = nan_step()
  evaluation = harness_of(workers, step, steps=2).evaluate(step.on({}))[0]
  assert evaluation.extra["non_finite"] == ["out:0"]
  assert evaluation.extra["fetches"] == {}


def test_another_graph_is_refused(workers, trained):
  problem = problem_on(workers, nan_step().graph)
  with pytest.raises(MeasurementError, match="not that of the step"):
    MeasurementHarness(problem, trained.traced, workers)


def test_a_row_that_is_no_placement_is_refused(workers, trained):
  harness = harness_of(workers, trained)
  with pytest.raises(PlacementError, match="device index 9"):
    harness.evaluate(np.full((1, trained.graph.num_ops), 9))


def test_seconds_are_shared_and_what_was_measured_counts(workers, trained):
  said = []
  harness = harness_of(
    workers, trained, steps=10**7, measure_s=1.5, on_stage=said.append
  )
  began = time.monotonic()
  rows = np.concatenate([trained.on({}), trained.on({"y": 1})])
  found = harness.evaluate(rows)
  assert time.monotonic() - began < 600  # the steps would take hours
  for evaluation in found:
    times = evaluation.extra["step_times_us"]
    assert evaluation.step_time_us == np.median(times)
    assert 1 < len(times) < 10**7
  assert "placement 2 of 2, the timed steps" in said
  assert said[-1].startswith("placement 2 of 2: ")
  harness._left_s = 0.0
  (late,) = harness.evaluate(trained.on({}))
  assert late.extra["error_kind"] == "not_measured"
  assert "took the 1.5 s that were allowed" in late.extra["error"]
  assert math.isinf(late.step_time_us)
