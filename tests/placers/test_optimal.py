"""Once a placement is proven optimal, nothing further is tried."""

import time

import numpy as np
import pytest

from tests.testing import problems
from tfplace.bounds import tightened
from tfplace.core import Problem
from tfplace.core.budget import Budget
from tfplace.core.evaluation import ROUNDING, is_optimal
from tfplace.placers import place, registry, warm_up
from tfplace.placers.search.annealing import AnnealingPlacer
from tfplace.placers.search.config import SearchConfig
from tfplace.simulate import Simulator

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


def test_a_large_search_stops_at_what_is_proven_optimal():
  # Two chains, which only the search puts on devices of their own.
  half = chain(600)
  times = [float(t) for t in half.time_us["GPU"]]
  edges = [(i, i + 1) for i in range(599)]
  edges += [(a + 600, b + 600) for a, b in edges]
  problem = tightened(
    Problem(
      problems.graph(times * 2, edges, output_bytes=[(50.0,)] * len(times) * 2),
      problems.cluster([np.inf] * 2, overhead=0.7, bandwidth=10.0),
    )
  )
  placer = AnnealingPlacer(SearchConfig(), ("single",))
  began = time.perf_counter()
  result = placer.place(problem, Simulator(problem), Budget(600), 0)
  assert result.evaluation.is_optimal
  assert time.perf_counter() - began < 600


def test_auto_tries_nothing_after_an_optimum():
  problem = tightened(PROBLEMS["chain"]())
  result = place(problem, "auto", budget_s=60)
  assert [tried.strategy for tried in result.tried] == ["single"]
  assert not {*result.skipped} & {*registry.CLASSICAL}
  for name in (*registry.LEARNED_IN_AUTO, "annealing"):
    assert "proven to be optimal" in result.skipped[name]


@pytest.mark.parametrize(
  ("step_us", "wanted"),
  [
    (5.0, True),
    (5.0 * (1 + ROUNDING), True),  # of a bound that was rounded down
    (5.0 * (1 + 1e-8), False),
  ],
)
def test_only_rounding_may_part_an_optimum_from_its_bound(step_us, wanted):
  assert is_optimal(step_us, 5.0) is wanted
