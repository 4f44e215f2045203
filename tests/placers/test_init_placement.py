"""A placement to start from: kept if nothing better is found, else improved."""

import pytest

from tests.testing import problems
from tfplace import placers
from tfplace.errors import TfplaceError


@pytest.mark.parametrize("strategy", ["auto", "annealing"])
@pytest.mark.parametrize("seed", range(2))
def test_the_result_is_never_worse_than_the_start(strategy, seed):
  problem = problems.random_problem(seed)
  known = placers.place(problem, "auto", budget_s=9, max_evaluations=3000)
  # Ten evaluations alone do not find what 3,000 have found.
  found = placers.place(
    problem,
    strategy,
    budget_s=9,
    seed=seed,
    max_evaluations=10,
    init_placement=known.placement,
  )
  assert found.evaluation.step_time_us <= known.evaluation.step_time_us


@pytest.mark.parametrize("strategy", ["heft", "single", "gdp", "brkga"])
def test_who_does_not_search_from_a_start_refuses_one(strategy):
  problem = problems.random_problem(1)
  start = placers.place(problem, "single").placement
  with pytest.raises(TfplaceError, match="annealing, ordered and auto can"):
    placers.place(problem, strategy, init_placement=start)


def test_something_else_is_refused():
  problem = problems.random_problem(1)
  start = placers.place(problem, "single").placement
  with pytest.raises(TfplaceError, match="init_placement names none of the"):
    placers.place(problem, "auto", init_placement={"no such op": "d0"})
  with pytest.raises(TfplaceError, match="must be a Placement"):
    placers.place(problem, "auto", init_placement=start.devices)
  whole_file = {"order": "arrival", "assignments": start.assignments}
  with pytest.raises(
    TfplaceError, match=r"'assignments' on .*names of devices"
  ):
    placers.place(problem, "auto", init_placement=whole_file)
