"""All placers on random and odd problems, and what they refuse."""

import math

import numpy as np
import pytest

from tests.testing import exact, odd_problems, problems
from tfplace.bounds import lower_bound
from tfplace.errors import InfeasibleError, ProblemError, TfplaceError
from tfplace.graph import Placement, Problem
from tfplace.learned.policies import SHIPPED
from tfplace.placers import LEARNED, STRATEGIES, get_placer, place
from tfplace.placers.registry import CLASSICAL, MICROBATCHED
from tfplace.simulate import Simulator

EVALUATIONS = 120
ALL = [*CLASSICAL, "annealing", "brkga", "auto"]


def run(problem, strategy, seed=0, evaluations=EVALUATIONS):
  return place(
    problem, strategy, budget_s=20, seed=seed, max_evaluations=evaluations
  )


CASES = {
  **{f"random {i}": lambda i=i: problems.random_problem(i) for i in range(6)},
  **odd_problems.PROBLEMS,
}
# Policies ship for problems that real models seldom are, too.
SHIPPED_POLICIES = [name for name in LEARNED if (SHIPPED / name).is_dir()]


@pytest.fixture(scope="module", params=CASES)
def problem(request):
  return CASES[request.param]()


@pytest.mark.parametrize("strategy", [*ALL, *SHIPPED_POLICIES])
def test_result_is_allowed_fits_and_repeats(problem, strategy):
  if strategy == "cpu" and not any(
    device.kind == "CPU" for device in problem.cluster.devices
  ):
    with pytest.raises(ProblemError, match="no device of kind 'CPU'"):
      run(problem, strategy)
    return
  try:
    result, again = run(problem, strategy), run(problem, strategy)
  except InfeasibleError as error:
    # Only a device that the strategy insists on may lack the memory or a link.
    assert strategy == "cpu"
    assert error.num_bytes or "there is no link" in str(error)
    return
  assert (result.placement.devices == again.placement.devices).all()
  assert result.evaluations == again.evaluations
  # Checks kernels, colocation and links.
  Placement(problem, result.placement.devices)
  again = Simulator(problem).evaluate([result.placement])[0]
  assert result.evaluation.feasible
  assert again.step_time_us == result.evaluation.step_time_us
  bound_us = lower_bound(problem).us
  assert math.isfinite(bound_us)
  assert again.step_time_us >= bound_us * (1 - 1e-9)
  assert result.history[-1].step_time_us == again.step_time_us
  steps = [point.step_time_us for point in result.history]
  assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize("strategy", ALL)
def test_never_below_the_optimum_which_searches_find(strategy):
  for seed in range(5):
    problem = problems.small_problem(seed)
    try:
      result = run(problem, strategy, evaluations=3000)
    except (InfeasibleError, ProblemError):
      assert strategy == "cpu"
      continue
    best = exact.optimum(problem)
    assert result.evaluation.step_time_us >= best
    if strategy in ("annealing", "auto"):
      assert result.evaluation.step_time_us == best


def test_unknown_strategy_lists_the_choices():
  with pytest.raises(
    TfplaceError, match=r"'fast'; choose one of single, .*auto"
  ):
    get_placer("fast")


@pytest.mark.parametrize(
  ("arguments", "told"),
  [
    ({"budget_s": 0}, "budget_s is 0; it must be above 0"),
    ({"budget_s": float("inf")}, "budget_s is inf; .* above 0 and finite"),
    ({"budget_s": "30"}, "budget_s is '30'; it must be a number"),
    ({"seed": -1}, "seed is -1; it must be 0 or more"),
    ({"budget_s": True}, "budget_s is True; it must be a number"),
    ({"seed": np.True_}, "seed is .*True.*; it must be a whole number"),
    ({"tolerance": float("nan")}, "tolerance is nan; it must be at least 0"),
    ({"gap": "2%"}, "gap is '2%'"),
    ({"gap": -0.1}, "gap is -0.1"),
    ({"evaluator": 3}, "evaluator is 3; it must be an Evaluator, such as"),
    ({"tolerance": "0.1"}, "tolerance is '0.1'; it must be a number"),
    ({"max_evaluations": 0}, "max_evaluations is 0; it must be 1 or more"),
    ({"max_evaluations": "9"}, "max_evaluations is '9'; .* a whole number"),
  ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, told):
  with pytest.raises(TfplaceError, match=told):
    place(problems.random_problem(0), "single", **arguments)


@pytest.mark.parametrize("strategy", ALL)
def test_a_budget_of_no_time_still_gives_a_placement(strategy):
  problem = problems.random_problem(4)
  try:
    result = place(problem, strategy, budget_s=1e-9)
  except (InfeasibleError, ProblemError):
    assert strategy == "cpu"
    return
  assert result.evaluation.feasible


@pytest.mark.parametrize(
  "strategy", ["m_sct", "metis", "heft", "annealing", "brkga", "auto"]
)
def test_infeasible_says_the_least_missing_bytes_and_the_device(strategy):
  # 100 persistent bytes that must stay together; devices of 60 and 70 bytes:
  # the nearest miss is 30 bytes, on the larger.
  problem = Problem(
    problems.graph(
      [1.0, 1.0], [], persistent_bytes=[40.0, 60.0], colocation=["a", "a"]
    ),
    problems.cluster([60.0, 70.0]),
  )
  with pytest.raises(InfeasibleError, match="d1, has 70 B, 30 bytes") as caught:
    run(problem, strategy)
  assert caught.value.device == "d1"
  assert caught.value.num_bytes == 30.0


def test_graph_that_links_forbid_to_place_is_refused():
  # The first op runs on a CPU only, the second on a GPU only; no link.
  problem = Problem(
    problems.graph([{"CPU": 1.0}, {"GPU": 1.0}], [(0, 1)]),
    problems.cluster([np.inf] * 2, kinds=["CPU", "GPU"], links=[]),
  )
  for strategy in STRATEGIES:
    if strategy not in (*LEARNED, *MICROBATCHED):
      with pytest.raises(InfeasibleError, match=r"'o0' on d0 .* no link from"):
        run(problem, strategy)


def test_empty_and_single_op_graphs_are_placed():
  for times in ([], [3.0]):
    problem = Problem(problems.graph(times, []), problems.cluster([np.inf] * 2))
    for strategy in ALL:
      if strategy == "cpu":
        continue  # There is none.
      result = run(problem, strategy)
      assert result.evaluation.step_time_us == sum(times)


@pytest.mark.parametrize("strategy", ["annealing", "brkga", "auto"])
def test_evaluations_limit_a_search_in_place_of_seconds(strategy):
  problem = problems.random_problem(4)
  results = [
    place(problem, strategy, budget_s=s, max_evaluations=300) for s in (1e-3, 9)
  ]
  first, second = (result.placement.devices.tolist() for result in results)
  assert first == second
  assert results[0].evaluations == results[1].evaluations > 100
