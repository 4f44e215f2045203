"""A search ends early near the proven bound, or when it improves no more."""

import numpy as np
import pytest

from tests.testing import problems
from tfplace.bounds import tightened
from tfplace.core import Problem
from tfplace.errors import TfplaceError
from tfplace.placers import place

EVALUATIONS = 60_000


def partition(count=40, devices=3):
  """Independent ops, whose best step is close to the bound but not at it."""
  rng = np.random.default_rng(7)
  graph = problems.graph(list(rng.uniform(1.0, 9.0, count)), [])
  return tightened(Problem(graph, problems.cluster([np.inf] * devices)))


def joined(count=30):
  """Ops whose outputs all meet, for which no good bound is known."""
  rng = np.random.default_rng(3)
  graph = problems.graph(
    [*rng.uniform(1.0, 9.0, count), 1.0],
    [(i, count) for i in range(count)],
    output_bytes=[(30.0,)] * (count + 1),
  )
  return tightened(Problem(graph, problems.cluster([np.inf] * 3)))


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


def test_a_search_that_improves_no_more_ends():
  problem = joined()
  most = {"max_evaluations": 400_000, "budget_s": 600}
  early = place(problem, "annealing", gap=1e-6, **most)
  assert not early.evaluation.is_within(1e-6)
  assert early.evaluations < 300_000
  whole = place(problem, "annealing", **most)
  assert whole.evaluations > early.evaluations
  # What a third of the budget did not improve, the rest hardly does.
  assert early.evaluation.step_time_us <= (1.01 * whole.evaluation.step_time_us)


def test_a_gap_of_nothing_asks_for_the_optimum():
  problem = partition(8, 2)
  result = place(problem, "auto", budget_s=600, max_evaluations=EVALUATIONS)
  other = place(
    problem, "auto", budget_s=600, max_evaluations=EVALUATIONS, gap=0.0
  )
  assert result.evaluation == other.evaluation


@pytest.mark.parametrize("gap", [-0.1, float("nan"), float("inf"), "2%", None])
def test_a_gap_that_means_nothing_is_named(gap):
  with pytest.raises(TfplaceError, match="gap is "):
    place(partition(4, 2), "auto", 1.0, gap=gap)
