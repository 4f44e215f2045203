"""Joint choice of execution order and placement.

One-shot strategies place the step in both orders. A search runs in one order:
by rank, in which searches gain more, unless data parallelism, pipelines and
hybrids are slower by rank. Its result is then judged in both orders.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.graph.argument_checks import AUTO
from tfplace.graph.budget import Budget
from tfplace.graph.evaluation import HistoryPoint, Result
from tfplace.graph.order import ARRIVAL, LEAST_GAIN, ORDERS, RANK
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.placers import registry
from tfplace.placers.groups import GroupGraph
from tfplace.placers.one_shot import placed_once
from tfplace.placers.repair import offer_starts
from tfplace.placers.requests import Request, followed, with_effort
from tfplace.placers.tracker import Tracker
from tfplace.simulate import Simulator

# Share of the budget for each rule in each order, and largest share of what is
# left of it.
_RULES_SHARE, _RULES_MOST = 0.12, 0.25


def place_in_order(
  request: Request, problem: Problem, budget: Budget, starts: np.ndarray | None
) -> Result:
  """Finds the best placement in the requested order, or in the better one.

  Rank order is chosen if it shortens the step by `LEAST_GAIN` or if only its
  placement fits.

  Args:
    problem: problem in any order; microbatched if the order is to be chosen.
    budget: budget for both orders together.

  Raises:
    InfeasibleError: nothing fits in any order.
  """
  if request.order != AUTO:
    return _placed(request, problem.in_order(request.order), budget, starts)
  if request.searches:
    results = _by_rules(problem, budget, starts, request.seed)
    if results:
      return _searched(request, results, budget)
  results, failure = {}, InfeasibleError("nothing fits")
  for order in reversed(ORDERS):
    ordered, share = problem.in_order(order), budget.fraction(1 / len(ORDERS))
    try:
      results[order] = _placed(request, ordered, share, starts)
    except InfeasibleError as error:
      failure = error
  if not results:
    raise failure
  return _better(results)


def _placed(
  request: Request, problem: Problem, budget: Budget, starts: np.ndarray | None
) -> Result:
  """Runs the strategy once, in the order of the problem."""
  placer = registry.get_placer(
    request.strategy,
    request.policy,
    start=starts if request.searches else None,
    tolerance=request.tolerance,
  )
  return placer.place(problem, request.judge(problem), budget, request.seed)


def better_order(step_us: Mapping[str, float]) -> str:
  """Chooses the order from the step times in microseconds by order."""
  us = {order: step_us.get(order, math.inf) for order in ORDERS}
  if math.isinf(us[ARRIVAL]):
    return RANK
  return RANK if us[RANK] <= (1 - LEAST_GAIN) * us[ARRIVAL] else ARRIVAL


def _better(results: Mapping[str, Result]) -> Result:
  """Returns the result of the better order, with the effort of both."""
  us = {
    order: result.evaluation.step_time_us for order, result in results.items()
  }
  order = better_order(us)
  others = [result for o, result in results.items() if o != order]
  return dataclasses.replace(
    with_effort(results[order], *others),
    other_order_us=min((us[o] for o in us if o != order), default=math.inf),
  )


def _by_rules(
  problem: Problem, budget: Budget, starts: np.ndarray | None, seed: int
) -> dict[str, Result]:
  """Returns the best start or rule in each order in which one fits."""
  results = {}
  for order in ORDERS:
    ordered = problem.in_order(order)
    simulator = Simulator(ordered)
    tracker = Tracker(
      "rules", ordered, simulator, budget.fraction(_RULES_SHARE)
    )
    if starts is not None:
      offer_starts(tracker, GroupGraph.of(ordered), starts)
    for strategy in registry.MICROBATCHED:
      placer = registry.get_placer(strategy)
      share = budget.fraction(_RULES_SHARE)
      seconds = min(share.seconds, _RULES_MOST * budget.left_s)
      share = dataclasses.replace(share, seconds=max(seconds, 0.0))
      try:
        result = placed_once(placer, ordered, simulator, share, seed)
      except TfplaceError:
        continue  # It needs more devices or memory; the others decide.
      tracker.evaluations += result.evaluations
      tracker.offer(result.placement.devices)
    if tracker.best is not None:
      results[order] = tracker.result()
  return results


def _searched(
  request: Request, results: dict[str, Result], budget: Budget
) -> Result:
  """Searches from the best rule in one order and judges the result in both."""
  us = {order: results[order].evaluation.step_time_us for order in results}
  order = RANK if RANK in results else ARRIVAL
  if ARRIVAL in results and us[ARRIVAL] <= (1 - LEAST_GAIN) * us[order]:
    order = ARRIVAL
  first = results[order].placement
  left = budget.minus(sum(result.evaluations for result in results.values()))
  last = _placed(request, first.problem, left, first.devices[np.newaxis])
  results[order] = followed(results[order], last)
  (other,) = (o for o in ORDERS if o != order)
  judged = _judged(results[order], other)
  if judged is not None and (
    judged.evaluation.step_time_us < us.get(other, math.inf)
  ):
    results[other] = judged
  return _better(results)


def _judged(result: Result, order: str) -> Result | None:
  """Simulates a result in another order; returns None if it does not fit."""
  problem = result.placement.problem.in_order(order)
  known = (result, *result.tried)
  rows = np.stack([r.placement.devices for r in known])
  judged = [
    dataclasses.replace(
      one,
      placement=Placement(problem, one.placement.devices),
      evaluation=evaluation,
      history=_ending(one, evaluation.step_time_us),
    )
    for one, evaluation in zip(
      known, Simulator(problem).evaluate(rows), strict=True
    )
  ]
  if not judged[0].evaluation.feasible:
    return None
  tried = tuple(r for r in judged[1:] if r.evaluation.feasible)
  return dataclasses.replace(
    judged[0], tried=tried, seconds=0.0, evaluations=len(known)
  )


def _ending(result: Result, step_us: float) -> tuple[HistoryPoint, ...]:
  """Returns the history of a result that takes another time in the end."""
  kept = [p for p in result.history if p.step_time_us > step_us]
  end = (result.seconds, result.evaluations, step_us, result.strategy)
  return (*kept, HistoryPoint(*end))
