"""`place`: one call from a problem to a placement by any strategy."""

from tfplace.bounds import check_memory
from tfplace.core.problem import Problem
from tfplace.core.protocols import (
  Budget,
  Evaluator,
  Result,
  check_budget,
  check_count,
)
from tfplace.errors import TfplaceError
from tfplace.placers.registry import get_placer
from tfplace.placers.warm_up import warm_up


def place(
  problem: Problem,
  strategy: str = "auto",
  budget_s: float = 60.0,
  seed: int = 0,
  evaluator: Evaluator | None = None,
  policy: str | None = None,
  max_evaluations: int | None = None,
) -> Result:
  """Proposes a placement of `problem`.

  Args:
    problem: the graph and the cluster.
    strategy: one of `registry.STRATEGIES`.
    budget_s: seconds that the strategy may take; one-shot placers take less.
      Compiling, once per installation, is not counted (see `warm_up`).
    seed: fixes every random choice.
    evaluator: judges placements; None is the simulator.
    policy: directory of an exported policy, for `gdp` and `auto`.
    max_evaluations: bounds the search by placements instead of seconds: the
      same seed then gives the same placement on any machine.

  Raises:
    TfplaceError: an unknown strategy (lists the choices), or an argument that
      makes no sense.
    InfeasibleError: nothing that was tried fits in memory, or it is proven that
      nothing does; says how many bytes are lacking on which device.
  """
  if not isinstance(problem, Problem):
    raise TfplaceError(
      f"problem is a {type(problem).__name__}; it must be a Problem(graph,"
      " cluster)"
    )
  check_budget(budget_s)
  check_count("seed", seed, 0)
  if max_evaluations is not None:
    check_count("max_evaluations", max_evaluations, 1)
  placer = get_placer(strategy, policy)
  if evaluator is None:
    check_memory(problem)
  warm_up(strategy)
  budget = Budget(budget_s, max_evaluations)
  if evaluator is None:
    from tfplace.simulate import Simulator  # compiles; only when needed

    evaluator = Simulator(problem)
  return placer.place(problem, evaluator, budget, seed)
