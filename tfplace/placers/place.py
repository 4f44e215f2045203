"""`place`: one call from a problem to a placement by any strategy."""

from tfplace.errors import TfplaceError
from tfplace.graph.problem import Problem
from tfplace.placers.base import Budget, Evaluator, Result
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
    TfplaceError: an unknown strategy (lists the choices), a bad budget.
    InfeasibleError: nothing that was tried fits in memory; says by how many
      bytes on which device.
  """
  if not budget_s > 0:
    raise TfplaceError(f"budget_s is {budget_s}; it must be above 0")
  if max_evaluations is not None and max_evaluations < 1:
    raise TfplaceError(
      f"max_evaluations is {max_evaluations}; it must be 1 or more"
    )
  placer = get_placer(strategy, policy)
  warm_up(strategy)
  budget = Budget(budget_s, max_evaluations)
  if evaluator is None:
    from tfplace.simulate import Simulator  # compiles; only when needed

    evaluator = Simulator(problem)
  return placer.place(problem, evaluator, budget, seed)
