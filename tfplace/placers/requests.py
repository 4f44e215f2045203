"""A request for placements, and results of searches that follow one another."""

import dataclasses
import math

from tfplace.errors import TfplaceError, shown
from tfplace.graph.argument_checks import (
  AUTO,
  check_count,
  check_number,
  make_fields_plain,
)
from tfplace.graph.budget import Budget, check_budget, check_gap
from tfplace.graph.evaluation import Result
from tfplace.graph.order import ORDERS, check_order
from tfplace.graph.problem import Problem
from tfplace.graph.protocols import Evaluator
from tfplace.placers import registry
from tfplace.simulate import Simulator

_UNLIMITED_S = 1e9  # Finite, since it is divided.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """Arguments of `tfplace.place` that hold for all its searches, checked.

  Starts are always [num_starts, num_ops] devices, or None.

  Raises:
    TfplaceError: an argument is invalid; names it and its value.
  """

  strategy: str
  order: str
  budget_s: float = 60.0
  seed: int = 0
  policy: str | None = None
  tolerance: float = 0.0
  max_evaluations: int | None = None
  gap: float = 0.0
  evaluator: Evaluator | None = None

  def __post_init__(self) -> None:
    make_fields_plain(self)
    check_budget(self.budget_s)
    check_count("seed", self.seed, 0)
    if self.max_evaluations is not None:
      check_count("max_evaluations", self.max_evaluations, 1)
    check_number("tolerance", self.tolerance)
    if not 0 <= self.tolerance < math.inf:
      raise TfplaceError(
        f"tolerance is {self.tolerance}; it must be at least 0 and finite"
      )
    check_gap(self.gap)
    check_order(self.order, (*ORDERS, AUTO))
    if self.evaluator is not None:
      self._check_evaluator(self.evaluator)
    registry.get_placer(self.strategy, self.policy)

  def _check_evaluator(self, evaluator: Evaluator) -> None:
    if not isinstance(getattr(evaluator, "problem", None), Problem):
      raise TfplaceError(
        f"evaluator is {shown(evaluator)}; it must be an Evaluator, such as"
        " tfplace.Simulator(problem)"
      )
    if self.order != evaluator.problem.order:
      raise TfplaceError(
        f"order is {self.order!r}, and the evaluator that is given judges in"
        f" the order of its own problem, {evaluator.problem.order!r}"
      )

  @property
  def budget(self) -> Budget:
    """The budget of all searches, whose clock starts here."""
    is_timed = self.max_evaluations is None
    seconds = self.budget_s if is_timed else _UNLIMITED_S
    return Budget(seconds, self.max_evaluations, self.gap)

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

  def judge(self, problem: Problem) -> Evaluator:
    """Returns what evaluates placements of the problem."""
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
