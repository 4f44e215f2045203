"""The `auto` strategy: divides its budget among all strategies.

Rules, then the other classical placers and beside them the learned policy,
which changes the best placement; then search and `consolidate`. It stops once
a placement is within the budget's gap of the proven bound.
"""

import concurrent.futures
import contextlib
import contextvars
import dataclasses
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.graph.budget import Budget, cancelled_by
from tfplace.graph.evaluation import GIVEN, Result
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.graph.protocols import Evaluator
from tfplace.placers import registry
from tfplace.placers.consolidate import consolidate
from tfplace.placers.groups import GroupGraph
from tfplace.placers.one_shot import placed_once
from tfplace.placers.repair import offer_starts
from tfplace.placers.search.annealing import CLASSICAL_SHARE, improve
from tfplace.placers.tracker import (
  Tracker,
  best_first,
  improvements,
  infeasible,
)
from tfplace.simulate import Simulator

# Names of the given placements, and of a policy's, among the results.
_FOUND = "placements of the policy"
_MET = "a placement is known that is proven to be optimal, or nearly so"
# Division of the budget; shares were chosen by trial, times measured.
# Share of the remaining seconds for a classical placer that limits itself (the
# linear program of m-SCT, Scotch).
_CLASSICAL_SHARE = 0.25
# Share of the remaining budget for the placement of the learned policy, besides
# its setup. It ends early once its samples no longer improve.
_LEARNED_SHARE = 0.25
# Setup seconds of the policy, and further ones per op.
_LEARNED_SETUP_S, _LEARNED_SETUP_S_PER_OP = 0.4, 1.5e-5
# Remaining time without which the policy does not run: a multiple of its setup
# time.
_LEARNED_SETUPS = 6.0
# The same if TensorFlow is not loaded yet, in seconds.
_LEARNED_LOAD_S = 25.0
# Number of placements from which the search starts.
_STARTS = 3
# Share of the budget reserved for consolidation if it covers its setup, in
# seconds per op.
_CONSOLIDATION_SHARE, _CONSOLIDATION_S_PER_OP = 0.03, 6e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoPlacer:
  """Runs all placers and keeps the best placement.

  The policy changes the best placement before the search. On whole steps and
  on steps in units that XLA compiles only a given policy is asked, since the
  search gains as much as the shipped one in the same seconds.

  Attributes:
    learned: learned placers to run; () for none.
    policy: directory of a policy for a strategy that takes a user's policy,
      independent of `learned`; None means the shipped policy. Placements that
      its training found of the graph, or of a variant, are starts, too.
    start: [num_starts, num_ops] devices of further placements to start from, or
      None; the best of them counts.
    tolerance: share of the best step time that may be given up for less
      traffic, because among placements within the noise of measured costs, the
      one with less traffic is the better guess. 0 undoes only moves without
      gain. The result is never slower than a proven optimum or `start`.
  """

  learned: Sequence[str] = registry.LEARNED_IN_AUTO
  policy: str | None = None
  start: np.ndarray | None = None
  tolerance: float = 0.0
  name: ClassVar[str] = "auto"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Runs all strategies in turn; raises InfeasibleError if nothing fits."""
    run = _Run(self, problem, evaluator, budget, seed)
    if self.start is not None:
      given = self.start
      run.attempt_starts(GIVEN, lambda: given)
    if self.policy is not None and self.learned:
      policy = self.policy
      find = functools.partial(registry.policy_starts, policy, problem)
      run.attempt_starts(_FOUND, find)
    rules, others = _rules_first(registry.classical(problem))
    for strategy in rules:
      run.attempt_classical(strategy)
    with run.learning(self._asked):
      for strategy in others:
        run.attempt_classical(strategy)
    run.search()
    return run.consolidated(run.result())

  @property
  def _asked(self) -> Sequence[str]:
    """Learned placers, including those that a given policy may belong to."""
    if self.policy is None or not self.learned:
      return self.learned
    others = registry.named(takes_users_policy=True)
    return tuple(dict.fromkeys((*self.learned, *others)))


def _rules_first(
  strategies: Sequence[str],
) -> tuple[Sequence[str], Sequence[str]]:
  """Divides after the first one and the rules that follow it.

  Rules take next to no time.
  """
  end = 1
  for strategy in strategies[1:]:
    if registry.STRATEGIES[strategy].family != "rules":
      break
    end += 1
  return strategies[:end], strategies[end:]


@dataclasses.dataclass
class _Run:
  """The state of one call of `AutoPlacer.place`.

  Attributes:
    tracker: effort and history of all strategies, and their nearest miss.
    tried: results so far, in order.
    skipped: strategy -> reason why it has no result.
    failure: the first error of a strategy.
  """

  placer: AutoPlacer
  problem: Problem
  evaluator: Evaluator
  budget: Budget
  seed: int
  tried: list[Result] = dataclasses.field(default_factory=list)
  skipped: dict[str, str] = dataclasses.field(default_factory=dict)
  failure: TfplaceError | None = None

  def __post_init__(self) -> None:
    self.tracker = Tracker("auto", self.problem, self.evaluator, self.budget)

  @functools.cached_property
  def groups(self) -> GroupGraph:
    return GroupGraph.of(self.problem)

  @property
  def is_met(self) -> bool:
    gap = self.budget.gap
    return any(result.evaluation.is_within(gap) for result in self.tried)

  def attempt_starts(self, name: str, find: Callable[[], np.ndarray]) -> None:
    """Evaluates the [num_starts, num_ops] devices of `find`, if any."""
    tracker = Tracker(name, self.problem, self.evaluator, self.budget)

    def offer() -> Result | None:
      starts = np.atleast_2d(find())
      if not len(starts):
        return None
      offer_starts(tracker, self.groups, starts)
      return tracker.result()

    self._attempt(name, offer)

  def attempt_classical(self, strategy: str) -> None:
    if self.is_met:
      return
    if self.tried and self.budget.spent > CLASSICAL_SHARE:
      self.skipped[strategy] = "the time of the classical placers was over"
      return
    left_s = self.budget.left_s * _CLASSICAL_SHARE
    budget = dataclasses.replace(self.budget.fraction(1.0), seconds=left_s)
    self._attempt(strategy, lambda: self._place(strategy, budget))

  @contextlib.contextmanager
  def learning(self, strategies: Sequence[str]) -> Iterator[None]:
    """Runs learned placers beside the body, from the best placement so far.

    They run after it if evaluations are the budget, because results must not
    depend on the machine, or if the evaluator is not the simulator, which alone
    serves several threads.
    """
    is_shared = isinstance(self.evaluator, Simulator)
    if not (self.budget.is_timed and is_shared):
      yield
      for strategy in strategies:
        budget = self._learned_budget(strategy)
        if budget is not None:
          ask = functools.partial(self._place, strategy, budget)
          self._attempt(strategy, ask)
      return
    ended = self.budget.cancelled or threading.Event()
    jobs: dict[str, concurrent.futures.Future[Result]] = {}
    began_s = self.tracker.seconds
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      try:
        for strategy in strategies:
          budget = self._learned_budget(strategy)
          if budget is not None:
            with cancelled_by(ended):
              run = contextvars.copy_context().run
            jobs[strategy] = pool.submit(run, self._place, strategy, budget)
        yield
      except BaseException:
        ended.set()
        raise
      for strategy, job in jobs.items():
        self._attempt(strategy, job.result, began_s)

  def _learned_budget(self, strategy: str) -> Budget | None:
    """Returns the budget of a learned placer, or None and notes why not."""
    if self.is_met:
      self.skipped[strategy] = _MET
      return None
    graph = self.problem.graph
    is_asked = graph.num_microbatches > 1 and not graph.members
    if not is_asked and self.placer.policy is None:
      self.skipped[strategy] = (
        "the search gains as much on whole steps and on units that XLA compiles"
      )
      return None
    left, num_ops = self.tracker.left, self.problem.graph.num_ops
    setup_s = _LEARNED_SETUP_S + _LEARNED_SETUP_S_PER_OP * num_ops
    least_s = _LEARNED_LOAD_S
    # With an evaluation budget, results must not depend on loaded modules.
    if "tensorflow" in sys.modules and self.budget.is_timed:
      least_s = _LEARNED_SETUPS * setup_s
    if left.seconds < least_s:
      self.skipped[strategy] = (
        f"{left.seconds:.1f} s were left, and it is not loaded with fewer"
        f" than {least_s:.1f} s"
      )
      return None
    share = left.fraction(_LEARNED_SHARE)
    return dataclasses.replace(share, seconds=setup_s + share.seconds)

  def search(self) -> None:
    if self.is_met:
      self.skipped["annealing"] = _MET
      return
    starts = [result.placement.devices for result in self._starts()]
    left = self._before_consolidation
    # Without any placement, annealing runs even if the budget is spent.
    if self.tried and left.is_over:
      self.skipped["annealing"] = "nothing of the budget was left"
      return
    tracker = Tracker("annealing", self.problem, self.evaluator, left)
    self._attempt(
      "annealing",
      lambda: improve(tracker, self.groups, starts, seed=self.seed),
    )

  def result(self) -> Result:
    """Returns the best placement, or raises the nearest miss or first error."""
    message = "no strategy found a placement"
    if not self.tried and self.tracker.nearest is not None:
      raise infeasible(message, self.problem, self.tracker.nearest)
    if not self.tried:
      raise self.failure or TfplaceError(message)
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
    """Undoes moves of the result that gain no more than `tolerance`."""
    result = consolidated(
      result,
      groups=self.groups,
      evaluator=self.evaluator,
      budget=self.tracker.left,
      tolerance=self.placer.tolerance,
    )
    return dataclasses.replace(result, seconds=self.tracker.seconds)

  @property
  def _before_consolidation(self) -> Budget:
    kept = int(_CONSOLIDATION_SHARE * (self.budget.max_evaluations or 0))
    kept_s = _CONSOLIDATION_SHARE * self.budget.seconds
    is_short = kept_s < _CONSOLIDATION_S_PER_OP * self.problem.graph.num_ops
    return self.tracker.left.minus(kept, 0.0 if is_short else kept_s)

  def _starts(self) -> list[Result]:
    """Returns the starts of the search: the given one, then the best."""
    given = [r for r in self.tried if r.strategy == GIVEN]
    best = best_first(self.tried)[:_STARTS]
    return [*given, *(r for r in best if r not in given)]

  def _place(self, strategy: str, budget: Budget) -> Result:
    policy = start = None
    known = registry.STRATEGIES[strategy]
    if known.family == "learned":
      policy = self.placer.policy
      if self.tried and known.accepts_start:
        start = best_first(self.tried)[0].placement.devices[None]
    placer = registry.get_placer(strategy, policy, start=start)
    ask = placer.place
    if known.family == "rules":
      ask = functools.partial(placed_once, placer)
    return ask(self.problem, self.evaluator, budget, self.seed)

  def _attempt(
    self,
    strategy: str,
    find: Callable[[], Result | None],
    began_s: float | None = None,
  ) -> None:
    """Runs a strategy; records its result, if any, or its failure."""
    began_s = self.tracker.seconds if began_s is None else began_s
    before = self.tracker.evaluations
    try:
      result = find()
    except Exception as error:
      self._note(strategy, error)
      return
    if result is None:
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
      # The message alone may say little.
      reason = f"{type(error).__name__}: {error}"
      self.skipped[strategy] = reason
      error = TfplaceError(f"strategy {strategy!r} failed: {reason}")
    self.skipped.setdefault(strategy, str(error))
    self.failure = self.failure or error
    if isinstance(error, InfeasibleError) and error.evaluation is not None:
      self.tracker.note_miss(error.evaluation)


def consolidated(
  result: Result,
  *,
  groups: GroupGraph,
  evaluator: Evaluator,
  budget: Budget,
  tolerance: float,
) -> Result:
  """Undoes moves of a simulated result that gain no more than `tolerance`.

  The result is not slower than a proven optimum or a given start, nor changed
  if the budget does not cover the setup.
  """
  best, problem = result.evaluation, result.placement.problem
  if best.source != "simulated":
    return result
  limit_us = best.step_time_us * (1 + tolerance)
  if best.is_optimal:
    limit_us = best.step_time_us
  for tried in result.tried:
    if tried.strategy == GIVEN:
      limit_us = min(limit_us, tried.evaluation.step_time_us)
  setup_s = _CONSOLIDATION_S_PER_OP * problem.graph.num_ops
  if budget.left_s <= setup_s or budget.max_evaluations == 0:
    return result
  tracker = Tracker("auto", problem, evaluator, budget)
  devices, evaluation = consolidate(
    tracker, groups, result.placement.devices, limit_us
  )
  return dataclasses.replace(
    result,
    placement=Placement(problem, devices),
    evaluation=evaluation,
    seconds=result.seconds + tracker.seconds,
    evaluations=result.evaluations + tracker.evaluations,
  )
