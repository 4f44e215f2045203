"""Joint choice of execution order and placement.

Each order gets a short search, and the better one the rest of the budget.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np

from tfplace.core.budget import Budget
from tfplace.core.evaluation import Result
from tfplace.core.order import ARRIVAL, LEAST_GAIN, ORDERS, RANK
from tfplace.core.problem import Problem
from tfplace.errors import InfeasibleError

# Places a problem within a budget, from [num_starts, num_ops] devices if given.
Place = Callable[[Problem, Budget, np.ndarray | None], Result]


def place_in_best_order(
  problem: Problem,
  budget: Budget,
  start: np.ndarray | None,
  place: Place,
  searches: bool,
  trial_share: float = 0.2,
) -> Result:
  """Finds the best placement in the best execution order.

  Rank order is chosen if it shortens the step by `LEAST_GAIN` or if only its
  placement fits.

  Args:
    problem: problem in any order.
    budget: budget for both orders together.
    start: [num_starts, num_ops] devices to start from, or None.
    place: places a problem in one order.
    searches: True if `place` continues from a start for as long as allowed;
      otherwise it runs once per order.
    trial_share: share of the budget for the short search in each order, chosen
      by trial.

  Raises:
    InfeasibleError: nothing fits in either order.
  """
  found: dict[str, Result] = {}
  failure: InfeasibleError | None = None
  for order in ORDERS:
    share = budget.fraction(trial_share if searches else 1 / len(ORDERS))
    try:
      found[order] = place(problem.in_order(order), share, start)
    except InfeasibleError as error:
      failure = failure or error
      continue
    start = _row(found[order]) if searches else None
  if not found:
    raise failure or InfeasibleError("nothing fits")
  order = better_order({o: r.evaluation.step_time_us for o, r in found.items()})
  best, others = found[order], [r for o, r in found.items() if o != order]
  left = budget.minus(sum(result.evaluations for result in found.values()))
  if searches and not left.is_over:
    ordered = problem.in_order(order)
    best = followed(best, place(ordered, left, _row(best)))
  other_us = others[0].evaluation.step_time_us if others else math.inf
  return dataclasses.replace(
    best,
    seconds=best.seconds + sum(r.seconds for r in others),
    evaluations=best.evaluations + sum(r.evaluations for r in others),
    other_order_us=other_us,
  )


def better_order(step_us: Mapping[str, float]) -> str:
  """Chooses the order from the step times in microseconds by order."""
  us = {order: step_us.get(order, math.inf) for order in ORDERS}
  if math.isinf(us[ARRIVAL]):
    return RANK
  return RANK if us[RANK] <= (1 - LEAST_GAIN) * us[ARRIVAL] else ARRIVAL


def _row(result: Result) -> np.ndarray:
  return result.placement.devices[np.newaxis]


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
