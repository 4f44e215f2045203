"""Chooses the order in which devices take their ops, with the placement.

A race of two: each order gets a short search, the second one from what the
first has found, and the better one the rest of the budget (the first rounds of
successive halving, as for microbatches in `tfplace.plan.race`).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

from tfplace.core.order import ARRIVAL, LEAST_GAIN, ORDERS, RANK
from tfplace.core.problem import Problem
from tfplace.core.protocols import Budget, Result
from tfplace.errors import InfeasibleError
from tfplace.placers.replan import Start

_TRIAL = 0.2  # of the budget, for each order's short search; our choice

# Places a problem within a budget, from a placement if there is one.
Place = Callable[[Problem, Budget, Start | None], Result]


def place_in_best_order(
  problem: Problem,
  budget: Budget,
  start: Start | None,
  place: Place,
  searches: bool,
) -> Result:
  """The best placement in the order that serves it best.

  By rank only where that gains `LEAST_GAIN` of the step time, or fits where
  arrival does not.

  Args:
    problem: in any order.
    budget: for both orders together.
    start: to start from; None for none.
    place: places in one order.
    searches: whether `place` goes on from a start, for as long as it may; else
      it runs once for each order.

  Raises:
    InfeasibleError: nothing fits, in either order.
  """
  found: dict[str, Result] = {}
  failure: InfeasibleError | None = None
  for order in ORDERS:
    share = _share(budget, _TRIAL if searches else 1 / len(ORDERS))
    try:
      found[order] = place(problem.in_order(order), share, start)
    except InfeasibleError as error:
      failure = failure or error
      continue
    start = found[order].placement if searches else None
  if not found:
    raise failure or InfeasibleError("nothing fits")
  order = _better(found)
  best, others = found[order], [r for o, r in found.items() if o != order]
  left = _left(budget, found)
  if searches and left.left_s > 0 and left.max_evaluations != 0:
    ordered = problem.in_order(order)
    best = _followed(best, place(ordered, left, best.placement))
  other_us = others[0].evaluation.step_time_us if others else math.inf
  return dataclasses.replace(
    best,
    seconds=best.seconds + sum(r.seconds for r in others),
    evaluations=best.evaluations + sum(r.evaluations for r in others),
    other_order_us=other_us,
  )


def _better(found: Mapping[str, Result]) -> str:
  if len(found) == 1:
    return next(iter(found))
  us = {order: found[order].evaluation.step_time_us for order in ORDERS}
  return RANK if us[RANK] <= (1 - LEAST_GAIN) * us[ARRIVAL] else ARRIVAL


def _share(budget: Budget, share: float) -> Budget:
  most = budget.max_evaluations
  if most is not None:
    most = max(1, int(share * most))
  return Budget(share * budget.seconds, most)


def _left(budget: Budget, found: Mapping[str, Result]) -> Budget:
  most = budget.max_evaluations
  if most is not None:
    most = max(0, most - sum(r.evaluations for r in found.values()))
  return Budget(max(0.0, budget.left_s), most)


def _followed(first: Result, last: Result) -> Result:
  """The last of two searches, with what both took."""
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
