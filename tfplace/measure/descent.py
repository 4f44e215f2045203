"""Descent to a fit, by the best of a few neighbours at a time."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Fit = TypeVar("Fit")


def descend(
  cost: Callable[[Fit], float],
  start: Fit,
  neighbours: Callable[[Fit], Iterable[Fit]],
  rounds: int,
) -> Fit:
  """Moves to the best neighbour as long as it is better.

  Args:
    cost: of a fit; the less, the better.
    start: where it begins.
    neighbours: of a fit, one or more; the first of equals is taken.
    rounds: moves at most.
  """
  best, least = start, cost(start)
  for _ in range(rounds):
    trials = [(cost(other), other) for other in neighbours(best)]
    found, other = min(trials, key=lambda trial: trial[0])
    if found >= least:
      break
    least, best = found, other
  return best
