"""Once a placement is proven optimal, nothing further is tried."""

import time

import numpy as np
import pytest

from tests.testing import problems
from tfplace.bounds import tightened
from tfplace.graph import Problem
from tfplace.placers import place, warm_up

SEARCHES = ["annealing", "brkga", "auto"]


def chain(count):
  """One op after the other, on one device as fast as can be."""
  rng = np.random.default_rng(count)
  return problems.graph(
    list(rng.uniform(0.1, 9.0, count)),
    [(i, i + 1) for i in range(count - 1)],
    output_bytes=[(50.0,)] * count,
  )


PROBLEMS = {
  "chain": lambda: Problem(
    chain(6), problems.cluster([np.inf] * 2, overhead=0.7)
  ),
  "one device": lambda: Problem(
    chain(9), problems.cluster([np.inf], overhead=0.7)
  ),
  "no time at all": lambda: Problem(
    problems.graph([0.0] * 4, [(0, 1), (1, 2)]), problems.cluster([np.inf] * 2)
  ),
  "a pair for each of two devices": lambda: Problem(
    problems.graph([3.1] * 4, []), problems.cluster([np.inf] * 2)
  ),
}


@pytest.mark.parametrize("strategy", SEARCHES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_search_stops_at_what_is_proven_optimal(name, strategy):
  warm_up(strategy)
  problem = tightened(PROBLEMS[name]())
  began = time.perf_counter()
  result = place(problem, strategy, budget_s=600)
  assert time.perf_counter() - began < 600  # the seconds do not end it
  assert result.evaluation.is_optimal
  assert result.evaluations < 5_000


EVALUATIONS = 20_000


def partition(count=40, devices=3):
  """Independent ops, whose best step is close to the bound but not at it."""
  rng = np.random.default_rng(7)
  graph = problems.graph(list(rng.uniform(1.0, 9.0, count)), [])
  return tightened(Problem(graph, problems.cluster([np.inf] * devices)))


@pytest.mark.parametrize("strategy", ["auto", "annealing", "brkga"])
def test_a_placement_near_the_bound_ends_the_search(strategy):
  problem = partition()
  most = {"max_evaluations": EVALUATIONS, "budget_s": 600}
  whole = place(problem, strategy, **most)
  early = place(problem, strategy, gap=0.05, **most)
  assert early.evaluation.is_within(0.05)
  assert early.evaluations < whole.evaluations / 4
  assert whole.evaluation.step_time_us <= early.evaluation.step_time_us
  again = place(problem, strategy, gap=0.05, **most)
  assert (again.placement.devices == early.placement.devices).all()
