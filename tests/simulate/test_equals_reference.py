"""The engine equals the plain-Python reference on thousands of problems."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.testing import random_problems as cases
from tests.testing.equals_reference import assert_equal
from tests.testing.reference import reference_step
from tests.testing.slow import SLOW_TESTS
from tfplace.simulate import Simulator, simulator

# 500 problems each; some ten minutes with TFPLACE_SLOW_TESTS=1.
COSTLY_BLOCKS = 100 if SLOW_TESTS else 3


@pytest.mark.parametrize("block", range(3))
def test_equals_reference_on_random_problems(block):
  for seed in range(500 * block, 500 * (block + 1)):
    problem, devices = cases.random_case(np.random.default_rng(seed))
    try:
      assert_equal(problem, devices)
    except AssertionError as error:
      raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("block", range(COSTLY_BLOCKS))
def test_equals_reference_where_messages_take_time_of_devices(block):
  for seed in range(500 * block, 500 * (block + 1)):
    problem, devices = cases.costly_case(np.random.default_rng(seed))
    try:
      assert_equal(problem, devices)
    except AssertionError as error:
      raise AssertionError(f"seed {seed}: {error}") from error


@settings(
  max_examples=400,
  deadline=None,
  derandomize=True,
  suppress_health_check=[HealthCheck.too_slow],
)
@given(cases.tied_cases())
def test_equals_reference_where_nearly_everything_ties(case):
  assert_equal(*case)


@pytest.mark.parametrize("seed", range(10))
def test_equals_reference_on_larger_problems(seed):
  rng = np.random.default_rng(seed)
  cluster = cases.random_cluster(rng, 4, integers=True)
  graph = cases.random_graph(rng, 60, integers=True)
  problem = cases.Problem(graph, cluster)
  assert_equal(problem, cases.random_placement(rng, problem))


@pytest.mark.parametrize("make", [cases.random_case, cases.costly_case])
@pytest.mark.parametrize("seed", range(10))
def test_a_cutoff_stops_only_steps_that_are_longer(seed, make):
  rng = np.random.default_rng(seed)
  problem, devices = make(rng)
  simulator = Simulator(problem)
  step = simulator.run(devices).step_time_us[0]
  assert simulator.run(devices, cutoff_us=step).step_time_us[0] == step
  if step > 0:
    shorter = simulator.run(devices, cutoff_us=step * 0.999)
    assert shorter.step_time_us[0] == math.inf and not shorter.feasible[0]
  # The workspace of the aborted run is used again, and forgets it.
  assert simulator.run(devices).step_time_us[0] == step


@pytest.mark.parametrize("seed", range(10))
def test_a_batch_equals_the_reference_row_by_row(seed, monkeypatch):
  """Evaluates parts in several threads, whose workspaces are reused."""
  monkeypatch.setattr(simulator, "MIN_PARALLEL_SIZE", 0)
  rng = np.random.default_rng(seed)
  problem, _ = cases.costly_case(rng)
  rows = np.stack([cases.random_placement(rng, problem) for _ in range(12)])
  batch = Simulator(problem, num_threads=2).run(rows)
  steps = [reference_step(problem, row).step_time_us for row in rows]
  assert batch.step_time_us.tolist() == steps
