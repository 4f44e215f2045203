"""Every placer on problems that real models seldom are, and some are."""

import json
import math

import pytest

from tests.testing import odd_problems
from tfplace import core, formats
from tfplace.bin import place as place_command
from tfplace.bin import simulate as simulate_command
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


def test_the_commands_place_it_and_simulate_the_same(problem, tmp_path, capsys):
  graph, cluster, plan, out = (
    str(tmp_path / name) for name in ("g.json.gz", "c.json", "p.json", "e.json")
  )
  formats.save_graph(problem.graph, graph)
  formats.save_cluster(problem.cluster, cluster)
  given = [f"--graph={graph}", f"--cluster={cluster}"]
  wanted = ["--strategy=m_etf", f"--output={plan}", "--json"]
  assert place_command.run([*given, *wanted]) == 0
  placed = json.loads(capsys.readouterr().out.splitlines()[-1])
  wanted = [f"--placement={plan}", f"--output={out}"]
  assert simulate_command.run([*given, *wanted]) == 0
  assert formats.load_evaluation(out).step_time_us == placed["step_time_us"]
