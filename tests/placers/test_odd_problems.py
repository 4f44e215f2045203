"""Every placer on problems that real models seldom are, and some are."""

import math

import pytest

from tests.testing import odd_problems
from tfplace import core
from tfplace.bounds import lower_bound
from tfplace.errors import ProblemError
from tfplace.learned.policies import SHIPPED
from tfplace.placers import place
from tfplace.placers.registry import CLASSICAL, LEARNED
from tfplace.simulate import Simulator

SHIPPED_POLICIES = [name for name in LEARNED if (SHIPPED / name).is_dir()]
ALL = [*CLASSICAL, "annealing", "brkga", "auto", *SHIPPED_POLICIES]
# A bound may exceed the optimum by rounding, relative to it.
ROUNDING = 1e-9


@pytest.fixture(scope="module", params=odd_problems.PROBLEMS)
def problem(request):
  return odd_problems.PROBLEMS[request.param]()


@pytest.mark.parametrize("strategy", ALL)
def test_a_placement_is_found_that_is_allowed_and_fits(problem, strategy):
  kinds = {device.kind for device in problem.cluster.devices}
  if strategy == "cpu" and "CPU" not in kinds:
    with pytest.raises(ProblemError, match="no device of kind 'CPU'"):
      place(problem, strategy)
    return
  result = place(problem, strategy, budget_s=20, max_evaluations=60)
  core.Placement(problem, result.placement.devices)  # kernels, groups, links
  (again,) = Simulator(problem).evaluate([result.placement])
  assert again.feasible
  assert again.step_time_us == result.evaluation.step_time_us
  bound_us = lower_bound(problem).us
  assert math.isfinite(bound_us)
  assert again.step_time_us >= bound_us * (1 - ROUNDING)
