"""Calibration of timed links with runs of a real step.

Transfers timed alone find warm caches, so link costs are fitted to a few
placements, most of them like results of a search.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from tfplace.graph.evaluation import Evaluation
from tfplace.graph.problem import Problem
from tfplace.measure import harness
from tfplace.measure.calibrate import fit, placements
from tfplace.simulate import Simulator

_SCATTERED = (1.0, 0.5, 0.25, 0.1)  # groups on random devices, per placement
_RUNS = (2, 8)  # runs of consecutive groups, per placement
_MIN_STEPS = 3  # timed steps of a placement to refit to; first steps are slower
# The links were fitted before to more diverse placements, and results of a
# search may have few messages, so a refit needs more evidence (`fit_runs`).
_REFIT_PER_DOUBLING = 0.03

# Maps a problem to placements for its calibration: [placements, num_ops]
# devices.
Guesses: TypeAlias = Callable[[Problem], np.ndarray]


def calibrated(
  problem: Problem,
  harness: harness.MeasurementHarness,
  guesses: Guesses,
) -> Problem:
  """Fits the link costs to measured steps.

  Args:
    problem: a problem with measured op times and timed links. It is returned
      unchanged if it has one device or if no placement can be run.
    guesses: placements that resemble those to predict; may be none.
  """
  if not problem.cluster.links:
    return problem
  rows = samples(problem, 0, guesses)
  return fit.fit_runs(problem, rows, harness.evaluate(rows)).of(problem)


def refitted(
  problem: Problem,
  rows: np.ndarray,
  measured: Sequence[Evaluation],
  starting_us: float = 0.0,
) -> Problem:
  """Fits op times and link costs to placements that ran.

  First, op times and overheads are scaled to the placements on one device,
  which have no messages, because the speed of a host changes over time. Then
  all factors are fitted to all placements. Placements with few timed steps are
  ignored if others have enough, because first steps are slower.

  Args:
    rows: [placements, num_ops] placements that ran.
    measured: their evaluations; not finite for failed runs.
    starting_us: time in each measured step before its devices start.
  """
  ran = [
    (row, evaluation)
    for row, evaluation in zip(rows, measured, strict=True)
    if 0 < evaluation.step_time_us < np.inf
  ]
  ran = [pair for pair in ran if has_steps(pair[1], _MIN_STEPS)] or ran
  alone = [(row, e) for row, e in ran if (row == row[0]).all()]
  if alone:
    steps = Simulator(problem).run(np.stack([row for row, _ in alone]))
    took_us = np.array([e.step_time_us - starting_us for _, e in alone])
    factor = float(np.median(took_us / steps.step_time_us))
    problem = fit.with_work(problem, factor)
  if not problem.cluster.links or len(alone) == len(ran):
    return problem
  rows = np.stack([row for row, _ in ran])
  evaluations = [e for _, e in ran]
  return fit.fit_runs(problem, rows, evaluations, _REFIT_PER_DOUBLING).of(
    problem
  )


def has_steps(measured: Evaluation, least: int) -> bool:
  """Returns whether enough steps were timed; True if that is unknown."""
  times = measured.extra.get("step_times_us")
  return times is None or len(times) >= least


def samples(problem: Problem, seed: int, guesses: Guesses) -> np.ndarray:
  """Returns [placements, num_ops] guesses, scattered ones and halves."""
  devices = placements.peers(problem)
  halves = np.stack(
    [placements.round_robin(problem, devices, runs) for runs in _RUNS]
  )
  guessed = guesses(problem).reshape(-1, problem.graph.num_ops)
  start = guessed[-1] if len(guessed) else halves[0]
  scattered = placements.scattered(problem, start, devices, _SCATTERED, seed)
  return np.concatenate([guessed, scattered, halves])
