"""Joint choice of execution order and placement.

One-shot strategies place the step in both orders. A search runs in one order:
by rank, in which searches gain more, unless data parallelism, pipelines and
hybrids are slower by rank. Its result is then judged in both orders.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np

from tfplace.core.budget import Budget
from tfplace.core.evaluation import HistoryPoint, Result
from tfplace.core.order import ARRIVAL, LEAST_GAIN, ORDERS, RANK
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.placers import registry
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_starts
from tfplace.placers.tracker import Tracker
from tfplace.simulate import Simulator

# Function that places a problem within a budget, from [num_starts, num_ops]
# devices if given.
Place = Callable[[Problem, Budget, np.ndarray | None], Result]
# Share of the budget for the rules in each order.
_RULES_SHARE = 0.1


def place_in_best_order(
  problem: Problem,
  budget: Budget,
  starts: np.ndarray | None,
  place: Place,
  searches: bool,
) -> Result:
  """Finds the best placement in the best execution order.

  Rank order is chosen if it shortens the step by `LEAST_GAIN` or if only its
  placement fits.

  Args:
    problem: microbatched problem in any order.
    budget: budget for both orders together.
    starts: [num_starts, num_ops] devices to start from, or None.
    place: places a problem in one order.
    searches: True if `place` continues from starts for as long as allowed;
      otherwise it runs once per order.

  Raises:
    InfeasibleError: nothing fits in either order.
  """
  if searches:
    found = _by_rules(problem, budget, starts)
    if found:
      return _searched(found, budget, place)
  found, failure = {}, InfeasibleError("nothing fits")
  for order in reversed(ORDERS):
    share = budget.fraction(1 / len(ORDERS))
    try:
      found[order] = place(problem.in_order(order), share, starts)
    except InfeasibleError as error:
      failure = error
  if not found:
    raise failure
  return _better(found)


def better_order(step_us: Mapping[str, float]) -> str:
  """Chooses the order from the step times in microseconds by order."""
  us = {order: step_us.get(order, math.inf) for order in ORDERS}
  if math.isinf(us[ARRIVAL]):
    return RANK
  return RANK if us[RANK] <= (1 - LEAST_GAIN) * us[ARRIVAL] else ARRIVAL


def _better(found: Mapping[str, Result]) -> Result:
  """Returns the result of the better order, with the effort of both."""
  us = {
    order: result.evaluation.step_time_us for order, result in found.items()
  }
  order = better_order(us)
  return dataclasses.replace(
    found[order],
    seconds=sum(result.seconds for result in found.values()),
    evaluations=sum(result.evaluations for result in found.values()),
    other_order_us=min((us[o] for o in us if o != order), default=math.inf),
  )


def _by_rules(
  problem: Problem, budget: Budget, starts: np.ndarray | None
) -> dict[str, Result]:
  """Returns the best start or rule in each order in which one fits."""
  found = {}
  for order in ORDERS:
    ordered = problem.in_order(order)
    simulator, share = Simulator(ordered), budget.fraction(_RULES_SHARE)
    tracker = Tracker("rules", ordered, simulator, share)
    if starts is not None:
      offer_starts(tracker, GroupGraph(ordered), starts)
    for strategy in registry.MICROBATCHED:
      placer = registry.get_placer(strategy)
      try:
        result = placer.place(ordered, simulator, share, seed=0)
      except TfplaceError:
        continue  # It needs more devices or memory; the others decide.
      tracker.evaluations += result.evaluations
      tracker.offer(result.placement.devices)
    if tracker.best is not None:
      found[order] = tracker.result()
  return found


def _searched(found: dict[str, Result], budget: Budget, place: Place) -> Result:
  """Searches from the best rule in one order and judges the result in both."""
  us = {order: found[order].evaluation.step_time_us for order in found}
  order = RANK if RANK in found else ARRIVAL
  if ARRIVAL in found and us[ARRIVAL] <= (1 - LEAST_GAIN) * us[order]:
    order = ARRIVAL
  first = found[order]
  left = budget.minus(sum(result.evaluations for result in found.values()))
  last = place(
    first.placement.problem, left, first.placement.devices[np.newaxis]
  )
  found[order] = followed(first, last)
  (other,) = (o for o in ORDERS if o != order)
  judged = _judged(found[order], other)
  if judged is not None and (
    judged.evaluation.step_time_us < us.get(other, math.inf)
  ):
    found[other] = judged
  return _better(found)


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
    last,
    history=(*first.history, *later),
    seconds=first.seconds + last.seconds,
    evaluations=first.evaluations + last.evaluations,
  )
