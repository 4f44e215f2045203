"""`auto`: spends its budget among all strategies and keeps the best.

First the classical placers, which take moments; then the learned policy, if
there is one and time to load it; then the search, from the best of the
classical ones. The result is never worse than any of them. Whatever goes wrong
in one of them leaves the others untouched, and once a placement is proven
optimal nothing further is tried.
"""

import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tfplace.core.problem import Problem
from tfplace.core.protocols import (
  Budget,
  Evaluation,
  Evaluator,
  HistoryPoint,
  Result,
)
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.placers import registry
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.annealing import (
  CLASSICAL_TOTAL,
  best_first,
  improve,
  improvements,
)
from tfplace.placers.search.config import SearchConfig
from tfplace.placers.tracker import Tracker, excess, infeasible

_OPTIMAL = "a placement is known that is proven to be optimal"


@dataclasses.dataclass(frozen=True)
class AutoPlacer:
  """The best of all placers.

  Attributes:
    learned: the learned placers that it asks; () asks none.
    policy: directory of the learned policy; None is the shipped one.
    search: of the search at the end.
    classical_total: share of all seconds after which no further classical
      placer is begun; the quickest come first.
    classical_share: of the seconds left, what a classical placer may count on
      that bounds itself by them (m-SCT's linear program, Scotch).
    learned_min_s: seconds that must be left for the learned policy to be
      worth loading where TensorFlow, which takes several, is not loaded yet.
    loaded_min_s: the same where it is. (With 10 s in all, and its slowest pass
      first, the policy took most of the search's time on 8-layer RNNLM.)
    learned_share: of the seconds left, for the learned policy.
    max_starts: placements that the search starts from. What the shipped policy
      finds is none of them while there is another: its steps are often shorter
      than those of the classical placers and lead nowhere good. (After 5,000
      evaluations from its best draw GNMT with 4 layers takes 475, 452 and 453
      ms, from the classical placements 457, 412 and 409.) What a policy of the
      user's own finds, which may know this very graph, is.
    start: [num_ops] devices of a placement to start from, too; None for none.
  """

  learned: Sequence[str] = registry.ASKED
  policy: str | None = None
  search: SearchConfig = dataclasses.field(default_factory=SearchConfig)
  classical_total: float = CLASSICAL_TOTAL
  classical_share: float = 0.25
  learned_min_s: float = 25.0
  loaded_min_s: float = 15.0
  learned_share: float = 0.1
  max_starts: int = 3
  start: np.ndarray | None = None
  name: ClassVar[str] = "auto"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Tries everything, one after the other.

    Raises:
      InfeasibleError: no strategy found a placement that fits.
    """
    run = _Run(self, problem, evaluator, budget, seed)
    if self.start is not None:
      run.attempt_start(self.start)
    for strategy in registry.CLASSICAL:
      if not run.is_optimal:
        run.attempt(
          strategy,
          Budget(budget.left_s * self.classical_share, budget.max_evaluations),
        )
    for strategy in self.learned:
      run.attempt_learned(strategy)
    run.search()
    return run.result()


class _Run:
  """One call of `AutoPlacer.place`: what it has found so far."""

  def __init__(
    self,
    placer: AutoPlacer,
    problem: Problem,
    evaluator: Evaluator,
    budget: Budget,
    seed: int,
  ) -> None:
    self.placer = placer
    self.problem = problem
    self.evaluator = evaluator
    self.budget = budget
    self.seed = seed
    self.clock = Tracker("auto", problem, evaluator, budget)
    self.tried: list[Result] = []
    self.skipped: dict[str, str] = {}
    self.history: list[HistoryPoint] = []
    self.evaluations = 0
    self.nearest: Evaluation | None = None
    self.excess = math.inf  # bytes, of `nearest` on all devices
    self.failure: TfplaceError | None = None

  @property
  def is_optimal(self) -> bool:
    """Whether a placement is known that nothing beats."""
    return any(result.evaluation.is_optimal for result in self.tried)

  def attempt_start(self, devices: np.ndarray) -> None:
    """Evaluates the placement that was given to start from."""
    tracker = Tracker("init", self.problem, self.evaluator, self.budget)
    try:
      tracker.offer(devices)
      self._keep(tracker.result(), 0.0)
    except TfplaceError as error:
      self._note("init", error)

  def attempt(self, strategy: str, budget: Budget) -> None:
    """Runs a strategy; its failure, of any kind, is noted, not raised."""
    if self.tried and self.budget.spent > self.placer.classical_total:
      self.skipped[strategy] = "the time of the classical placers was over"
      return
    began = self.clock.seconds
    try:
      placer = registry.get_placer(strategy)
      self._keep(
        placer.place(self.problem, self.evaluator, budget, self.seed), began
      )
    except Exception as error:
      self._note(strategy, error)

  def attempt_learned(self, strategy: str) -> None:
    """Runs a learned strategy within its share of the time."""
    if self.is_optimal:
      self.skipped[strategy] = _OPTIMAL
      return
    left_s, least_s = self.budget.left_s, self.placer.learned_min_s
    # What happens to be loaded must not decide where evaluations count.
    if "tensorflow" in sys.modules and self.budget.max_evaluations is None:
      least_s = self.placer.loaded_min_s
    if left_s < least_s:
      self.skipped[strategy] = (
        f"{max(left_s, 0):.0f} s were left, and it is not loaded with fewer"
        f" than {least_s:.0f} s"
      )
      return
    began = self.clock.seconds
    share, left = self.placer.learned_share, self._left_evaluations
    budget = Budget(
      left_s * share, None if left is None else max(1, int(left * share))
    )
    try:
      placer = registry.get_placer(strategy, self.placer.policy)
      self._keep(
        placer.place(self.problem, self.evaluator, budget, self.seed), began
      )
    except Exception as error:
      self._note(strategy, error)

  @property
  def _left_evaluations(self) -> int | None:
    """Of the budget; None where it counts seconds only."""
    limit = self.budget.max_evaluations
    return None if limit is None else max(0, limit - self.evaluations)

  def search(self) -> None:
    """Anneals from the best placements, with the time that is left."""
    if self.is_optimal:
      self.skipped["annealing"] = _OPTIMAL
      return
    starts = [result.placement.devices for result in self._starts()]
    if self.placer.start is not None:
      starts.insert(0, self.placer.start)
    began = self.clock.seconds
    used = self.budget
    if self._left_evaluations is not None:
      used = dataclasses.replace(
        self.budget, max_evaluations=self._left_evaluations
      )
    # Without a placement, a last attempt takes what it needs.
    if self.tried and (used.left_s <= 0 or used.max_evaluations == 0):
      self.skipped["annealing"] = "nothing of the budget was left"
      return
    tracker = Tracker("annealing", self.problem, self.evaluator, used)
    try:
      groups = GroupGraph(self.problem)
      self._keep(
        improve(tracker, groups, starts, self.seed, self.placer.search),
        began,
      )
    except Exception as error:
      self._note("annealing", error)

  def _starts(self) -> list[Result]:
    """What the search begins from, the best first."""
    known = self.tried
    if self.placer.policy is None:
      learned = self.placer.learned
      known = [r for r in self.tried if r.strategy not in learned] or known
    return best_first(known)[: self.placer.max_starts]

  def result(self) -> Result:
    """The best of all, with all of their histories."""
    if not self.tried:
      raise self._nothing()
    best = best_first(self.tried)[0]
    return Result(
      "auto",
      best.placement,
      best.evaluation,
      improvements(self.history),
      self.clock.seconds,
      self.evaluations,
      tuple(self.tried),
      self.skipped,
    )

  def _keep(self, result: Result, began_s: float) -> None:
    for point in result.history:
      self.history.append(
        dataclasses.replace(
          point,
          seconds=point.seconds + began_s,
          evaluations=point.evaluations + self.evaluations,
        )
      )
    self.evaluations += result.evaluations
    self.tried.append(result)

  def _note(self, strategy: str, error: Exception) -> None:
    if not isinstance(error, TfplaceError):
      told = f"{type(error).__name__}: {error}"  # its message may say little
      self.skipped[strategy] = told
      error = TfplaceError(f"strategy {strategy!r} failed: {told}")
    self.skipped.setdefault(strategy, str(error))
    self.failure = self.failure or error
    if isinstance(error, InfeasibleError) and error.evaluation is not None:
      missing = sum(excess(self.problem, error.evaluation).values())
      if missing < self.excess:
        self.excess, self.nearest = missing, error.evaluation

  def _nothing(self) -> TfplaceError:
    """Why there is no placement: the nearest miss, else the first failure."""
    if self.nearest is not None:
      return infeasible(
        "no strategy found a placement", self.problem, self.nearest
      )
    return self.failure or TfplaceError("no strategy found a placement")
