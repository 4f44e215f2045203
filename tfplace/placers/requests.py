"""A request for placements, and results of searches that follow one another."""

import dataclasses

import numpy as np

from tfplace.graph.budget import Budget
from tfplace.graph.evaluation import Result
from tfplace.graph.problem import Problem
from tfplace.graph.protocols import Evaluator
from tfplace.placers import registry
from tfplace.placers.auto import consolidated
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.annealing import AnnealingPlacer
from tfplace.simulate import Simulator

# Share of a continued `auto` that is not kept for consolidation; our choice.
_SEARCH_SHARE = 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """Arguments of `tfplace.place` that hold for all its searches.

  Starts are always [num_starts, num_ops] devices, or None.

  Attributes:
    order: execution order, or "auto" to choose one.
    evaluator: None means the simulator.
  """

  strategy: str
  seed: int
  order: str
  policy: str | None = None
  tolerance: float = 0.0
  evaluator: Evaluator | None = None

  @property
  def searches(self) -> bool:
    """True if the strategy goes on from starts for as long as allowed."""
    return registry.STRATEGIES[self.strategy].accepts_start

  @property
  def uses_budget(self) -> bool:
    """True if the strategy gets better with time."""
    return (
      self.searches or registry.STRATEGIES[self.strategy].family == "search"
    )

  def place(
    self, problem: Problem, budget: Budget, starts: np.ndarray | None
  ) -> Result:
    """Runs the strategy once, in the order of the problem."""
    placer = registry.get_placer(
      self.strategy,
      self.policy,
      start=starts if self.searches else None,
      tolerance=self.tolerance,
    )
    return placer.place(problem, self._judge(problem), budget, self.seed)

  def resume(
    self, problem: Problem, budget: Budget, starts: np.ndarray
  ) -> Result:
    """Goes on from starts, by annealing and, for `auto`, consolidation."""
    placer, judge = (
      AnnealingPlacer(starts=(), start=starts),
      self._judge(problem),
    )
    is_auto = self.strategy == "auto"
    share = budget.fraction(_SEARCH_SHARE if is_auto else 1.0)
    result = placer.place(problem, judge, share, self.seed)
    if not is_auto:
      return result
    left, groups = budget.minus(result.evaluations), GroupGraph(problem)
    return consolidated(
      result,
      groups=groups,
      evaluator=judge,
      budget=left,
      tolerance=self.tolerance,
    )

  def _judge(self, problem: Problem) -> Evaluator:
    return Simulator(problem) if self.evaluator is None else self.evaluator


def followed(first: Result, last: Result) -> Result:
  """Merges two consecutive searches into the result of the second."""
  later = [
    dataclasses.replace(
      point,
      seconds=point.seconds + first.seconds,
      evaluations=point.evaluations + first.evaluations,
    )
    for point in last.history
    if point.step_time_us < first.evaluation.step_time_us
  ]
  return dataclasses.replace(
    with_effort(last, first), history=(*first.history, *later)
  )


def with_effort(result: Result, *others: Result) -> Result:
  """Adds the effort of other searches to that of a result."""
  return dataclasses.replace(
    result,
    seconds=result.seconds + sum(other.seconds for other in others),
    evaluations=result.evaluations + sum(o.evaluations for o in others),
  )
