"""`auto`: spends its budget among all strategies and keeps the best.

First the classical placers, which take moments; then the learned policy, if
there is one and time to load it; then the search, from the best of these. At
last, moves that gain nothing, or less than `tolerance` in all, are undone
where they cause traffic (`consolidate`). Whatever goes wrong in one of them
leaves the others untouched, and once a placement is proven optimal nothing
further is tried.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.protocols import Budget, Evaluator, Result
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.placers import registry
from tfplace.placers.consolidate import consolidate
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_starts
from tfplace.placers.search.annealing import (
  CLASSICAL_TOTAL,
  best_first,
  improve,
  improvements,
)
from tfplace.placers.search.config import SearchConfig
from tfplace.placers.tracker import Tracker, infeasible

_START = "init"  # named so among what was tried
_OPTIMAL = "a placement is known that is proven to be optimal"
# Of the seconds left, what a classical placer may count on that bounds itself
# by them (m-SCT's linear program, Scotch).
_CLASSICAL_SHARE = 0.25
# For the learned policy: a share of what is left, after the seconds that it
# takes before its first draw, for each op and else. It ends sooner where its
# draws are no longer better.
_LEARNED_SHARE = 0.15
_LEARNED_S_PER_OP, _LEARNED_S = 1e-5, 0.3
# Seconds that must be left for it to be asked: times what it takes to begin;
# and where TensorFlow, which takes several, is not loaded yet.
_LEARNED_TIMES = 1.5
_LEARNED_MIN_S = 25.0
_MAX_STARTS = 3  # placements that the search starts from
# Of the budget, at its end, where the seconds that it takes before its first
# evaluation, for each op, fit; and those.
_CONSOLIDATION_SHARE = 0.03
_CONSOLIDATION_S_PER_OP = 6e-6


@dataclasses.dataclass(frozen=True)
class AutoPlacer:
  """The best of all placers.

  The shipped policy is asked about steps in microbatches alone: of others its
  draws are longer than those of the classical placers, and take time of the
  search.

  Attributes:
    learned: the learned placers that it asks; () asks none.
    policy: directory of a policy, of a placer of `registry.OWN`, whatever
      `learned` says; None is the shipped one.
    loaded_min_s: seconds that must be left for the learned policy where
      TensorFlow is loaded, whatever the graph's size.
    start: [num_starts, num_ops] devices of placements to start from, too, of
      which the best counts; None for none.
    tolerance: share of the best step time by which the result may be slower,
      for less traffic: of placements within the noise of measured costs, the
      one that moves less is the better guess. Where the best is proven optimal
      it grows by nothing, and never beyond `start`. 0 undoes only what gains
      nothing; None turns this off.
  """

  learned: Sequence[str] = registry.ASKED
  policy: str | None = None
  loaded_min_s: float = 0.5
  start: np.ndarray | None = None
  tolerance: float | None = 0.0
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
    for strategy in registry.classical(problem):
      run.attempt_classical(strategy)
    for strategy in self._asked:
      run.attempt_learned(strategy)
    run.search()
    result = run.result()
    return result if self.tolerance is None else run.consolidated(result)

  @property
  def _asked(self) -> Sequence[str]:
    """The learned placers, those that a given policy may be of among them."""
    if self.policy is None or not self.learned:
      return self.learned
    return tuple(dict.fromkeys((*self.learned, *registry.OWN)))


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
    self.tracker = Tracker("auto", problem, evaluator, budget)
    self.tried: list[Result] = []
    self.skipped: dict[str, str] = {}
    self.failure: TfplaceError | None = None

  @functools.cached_property
  def groups(self) -> GroupGraph:
    return GroupGraph(self.problem)

  @property
  def is_optimal(self) -> bool:
    """Whether a placement is known that nothing beats."""
    return any(result.evaluation.is_optimal for result in self.tried)

  def attempt_start(self, starts: np.ndarray) -> None:
    """Evaluates the placements that were given to start from, repaired."""
    tracker = Tracker(_START, self.problem, self.evaluator, self.budget)

    def offer() -> Result:
      offer_starts(tracker, self.groups, starts)
      return tracker.result()

    self._attempt(_START, offer)

  def attempt_classical(self, strategy: str) -> None:
    """Runs a strategy that takes moments."""
    if self.is_optimal:
      return
    if self.tried and self.budget.spent > CLASSICAL_TOTAL:
      self.skipped[strategy] = "the time of the classical placers was over"
      return
    left_s = self.budget.left_s * _CLASSICAL_SHARE
    budget = Budget(left_s, self.budget.max_evaluations)
    self._attempt(strategy, lambda: self._place(strategy, None, budget))

  def attempt_learned(self, strategy: str) -> None:
    """Runs a learned strategy within its share of the time."""
    if self.is_optimal:
      self.skipped[strategy] = _OPTIMAL
      return
    if self.placer.policy is None and not self._is_split:
      self.skipped[strategy] = "its policy is for steps in microbatches"
      return
    left_s, least_s = self.budget.left_s, _LEARNED_MIN_S
    begins_s = _LEARNED_S + _LEARNED_S_PER_OP * self.problem.graph.num_ops
    # What happens to be loaded must not decide where evaluations count.
    if "tensorflow" in sys.modules and self.budget.max_evaluations is None:
      least_s = max(self.placer.loaded_min_s, _LEARNED_TIMES * begins_s)
    if left_s < least_s:
      self.skipped[strategy] = (
        f"{max(left_s, 0):.1f} s were left, and it is not loaded with fewer"
        f" than {least_s:.1f} s"
      )
      return
    left = self._left_evaluations
    budget = Budget(
      begins_s + left_s * _LEARNED_SHARE,
      None if left is None else max(1, int(left * _LEARNED_SHARE)),
    )
    policy = self.placer.policy
    self._attempt(strategy, lambda: self._place(strategy, policy, budget))

  def search(self) -> None:
    """Anneals from the best placements, with the time that is left."""
    if self.is_optimal:
      self.skipped["annealing"] = _OPTIMAL
      return
    starts = [result.placement.devices for result in self._starts()]
    left = self._before_consolidation
    # Without a placement, a last attempt takes what it needs.
    if self.tried and (left.left_s <= 0 or left.max_evaluations == 0):
      self.skipped["annealing"] = "nothing of the budget was left"
      return
    tracker = Tracker("annealing", self.problem, self.evaluator, left)
    config = SearchConfig()
    self._attempt(
      "annealing",
      lambda: improve(tracker, self.groups, starts, self.seed, config),
    )

  def result(self) -> Result:
    """The best of all, with all of their histories.

    Raises:
      TfplaceError: there is none: the nearest miss, else the first failure.
    """
    told = "no strategy found a placement"
    if not self.tried and self.tracker.nearest is not None:
      raise infeasible(told, self.problem, self.tracker.nearest)
    if not self.tried:
      raise self.failure or TfplaceError(told)
    best = best_first(self.tried)[0]
    return Result(
      "auto",
      best.placement,
      best.evaluation,
      improvements(self.tracker.history),
      self.tracker.seconds,
      self.tracker.evaluations,
      tuple(self.tried),
      self.skipped,
    )

  def consolidated(self, result: Result) -> Result:
    """The result with moves undone that gain no more than `tolerance`."""
    best = result.evaluation
    if best.source != "simulated":
      return result
    limit_us = best.step_time_us * (1 + (self.placer.tolerance or 0.0))
    if best.is_optimal:
      limit_us = best.step_time_us
    for tried in self.tried:
      if tried.strategy == _START:  # the result is no worse
        limit_us = min(limit_us, tried.evaluation.step_time_us)
    left = dataclasses.replace(
      self.budget, max_evaluations=self._left_evaluations
    )
    if left.left_s <= self._consolidation_s or left.max_evaluations == 0:
      return result
    tracker = Tracker("auto", self.problem, self.evaluator, left)
    devices, evaluation = consolidate(
      tracker, self.groups, result.placement.devices, limit_us
    )
    return dataclasses.replace(
      result,
      placement=Placement(self.problem, devices),
      evaluation=evaluation,
      seconds=self.tracker.seconds,
      evaluations=result.evaluations + tracker.evaluations,
    )

  @property
  def _before_consolidation(self) -> Budget:
    """What is left for the search."""
    budget, left = self.budget, self._left_evaluations
    if self.placer.tolerance is None:
      return dataclasses.replace(budget, max_evaluations=left)
    if left is not None and budget.max_evaluations is not None:
      kept = int(_CONSOLIDATION_SHARE * budget.max_evaluations)
      left = max(0, left - kept)
    kept_s = _CONSOLIDATION_SHARE * budget.seconds
    if kept_s < self._consolidation_s:
      kept_s = 0.0
    seconds = budget.seconds - kept_s
    return dataclasses.replace(budget, seconds=seconds, max_evaluations=left)

  @property
  def _consolidation_s(self) -> float:
    """Seconds that consolidation takes before its first evaluation."""
    return _CONSOLIDATION_S_PER_OP * self.problem.graph.num_ops

  @property
  def _is_split(self) -> bool:
    return self.problem.graph.num_microbatches > 1

  @property
  def _left_evaluations(self) -> int | None:
    """Of the budget; None where it counts seconds only."""
    limit = self.budget.max_evaluations
    return None if limit is None else max(0, limit - self.tracker.evaluations)

  def _starts(self) -> list[Result]:
    """What the search begins from: what was given, then the best first."""
    given = [r for r in self.tried if r.strategy == _START]
    best = best_first(self.tried)[:_MAX_STARTS]
    return [*given, *(r for r in best if r not in given)]

  def _place(self, strategy: str, policy: str | None, budget: Budget) -> Result:
    start = None
    if self.tried and strategy in set(registry.LEARNED) & {*registry.SEARCHES}:
      start = best_first(self.tried)[0].placement.devices[None]
    placer = registry.get_placer(strategy, policy, start)
    return placer.place(self.problem, self.evaluator, budget, self.seed)

  def _attempt(self, strategy: str, find: Callable[[], Result]) -> None:
    """Keeps what is found; a failure, of any kind, is noted, not raised."""
    began_s, before = self.tracker.seconds, self.tracker.evaluations
    try:
      result = find()
    except Exception as error:
      self._note(strategy, error)
      return
    self.tracker.history += [
      dataclasses.replace(
        point,
        seconds=point.seconds + began_s,
        evaluations=point.evaluations + before,
      )
      for point in result.history
    ]
    self.tracker.evaluations += result.evaluations
    self.tried.append(result)

  def _note(self, strategy: str, error: Exception) -> None:
    if not isinstance(error, TfplaceError):
      told = f"{type(error).__name__}: {error}"  # its message may say little
      self.skipped[strategy] = told
      error = TfplaceError(f"strategy {strategy!r} failed: {told}")
    self.skipped.setdefault(strategy, str(error))
    self.failure = self.failure or error
    if isinstance(error, InfeasibleError) and error.evaluation is not None:
      self.tracker.note_miss(error.evaluation)
