"""Fits communication factors to placements that were run.

Links are timed with devices that do little else. In a real step the bytes are
not in a cache, and a message that arrives in the middle of an op disturbs it.
So factors on the timed costs, and on the ops of devices that share a host, are
fitted until the simulated steps take as long as the measured ones.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluation
from tfplace.measure.calibrate.communication import CommunicationFactors
from tfplace.measure.calibrate.prediction import Sample

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


# The step of a factor, in doublings: computing at the same time costs some
# percent, while the timed cost of a message may be wrong by a few times.
_STEPS = np.array([0.5, 0.5, 0.5, 0.05])
# Latency and work are easily confused: starts from little to much latency.
_STARTS = np.array([[0, 0, latency, 0] for latency in (0.0, 2.0, 4.0)])
_REFINED = (1.0, 0.5)  # of these steps
_ROUNDS = 12  # at most, for each
_LEAST, _MOST = (
  np.array([-2.0, -2.0, -2.0, 0.0]),
  np.array([5.0, 4.0, 5.0, 0.4]),
)
# Of two fits that are as good, the one nearer to the timed costs; per step.
# Chosen small beside the error that a wrong factor makes.
_PER_STEP = 0.002


def fitted(
  problem: Problem, rows: np.ndarray, measured: Sequence[Evaluation]
) -> CommunicationFactors:
  """The factors with the least error of the simulated steps.

  The error is the root of the mean square of log(simulated / measured) over
  the placements that ran; where none did, the factors are 1.

  Args:
    problem: with op times as measured and links as timed.
    rows: [placements, num_ops] what was run.
    measured: what each took.
  """
  times = np.array([e.step_time_us for e in measured])
  ran = np.isfinite(times) & (times > 0)
  samples = [Sample(problem, row) for row in rows[ran]]

  def cost(steps: np.ndarray) -> float:
    factors = _factors(steps)
    ratios = [s.step_us(factors) for s in samples] / times[ran]
    error = float(np.sqrt(np.mean(np.log(ratios) ** 2)))
    return error + _PER_STEP * float(np.abs(steps / _STEPS).sum())

  if not samples:
    return CommunicationFactors()
  found = [_refined(cost, start) for start in _STARTS]
  return _factors(min(found, key=cost))


def _refined(
  cost: Callable[[np.ndarray], float], start: np.ndarray
) -> np.ndarray:
  best = start
  for scale in _REFINED:
    best = descend(
      cost,
      best,
      functools.partial(_neighbours, steps=scale * _STEPS),
      _ROUNDS,
    )
  return best


def _factors(doublings: np.ndarray) -> CommunicationFactors:
  return CommunicationFactors(*(2.0**doublings).tolist())


def _neighbours(at: np.ndarray, steps: np.ndarray) -> list[np.ndarray]:
  """One factor up or down, or one up as another goes down."""
  result = []
  for moves in itertools.product((-1, 0, 1), repeat=len(at)):
    if np.abs(moves).sum() == 1 or (
      np.abs(moves).sum() == 2 and sum(moves) == 0
    ):
      other = np.clip(at + steps * np.array(moves), _LEAST, _MOST)
      if (other != at).any():
        result.append(other)
  return result
