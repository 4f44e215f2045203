"""Corrects timed links by placements of a real step that are run.

Transfers timed on their own find caches warm and threads awake. In a step they
do not, so a few placements, from two halves to all scattered, are run, and the
costs of the links are fitted until the simulated steps match. Most of them are
such as a search ends with: fitted to steps in which one device does nearly all,
a message's work passes for latency, and fitted to steps that messages fill,
what ops lose while other devices compute does not show.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluation
from tfplace.measure import harness
from tfplace.measure.calibrate import fit, splits
from tfplace.simulate import Simulator

_SHARES = (1.0, 0.5, 0.25, 0.1)  # of the groups that are scattered
_RUNS = (2, 8)  # of groups that stay together
_SURE_STEPS = 3


# Placements of a problem to calibrate with: [placements, num_ops] devices.
Guesses: TypeAlias = Callable[[Problem], np.ndarray]


def calibrated(
  problem: Problem,
  harness: harness.MeasurementHarness,
  seed: int = 0,
  guesses: Guesses | None = None,
) -> Problem:
  """The problem with link costs that match measured steps.

  Args:
    problem: op times measured, links timed; a problem with one device, or
      whose placements cannot be run, is returned as it is.
    harness: runs placements of it.
    seed: of the placements.
    guesses: placements such as will be asked about; left out, all devices are
      kept busy whatever crosses.
  """
  if not problem.cluster.links:
    return problem
  rows = samples(problem, seed, guesses)
  return fit.fit_runs(problem, rows, harness.evaluate(rows)).of(problem)


def refitted(
  problem: Problem,
  rows: np.ndarray,
  measured: Sequence[Evaluation],
  starting_us: float = 0.0,
) -> Problem:
  """The problem with op times and link costs that match what ran.

  Op times and overheads are scaled by the placements on one device, which are
  without messages; a host is not as fast an hour later. Then all factors are
  fitted to all. Where enough steps of some were timed, the others, whose first
  steps count, tell nothing.

  Args:
    problem: with costs from an earlier fit.
    rows: [placements, num_ops] what ran.
    measured: what each took; not finite where it did not run.
    starting_us: of a measured step, until its devices begin.
  """
  ran = [
    (row, evaluation)
    for row, evaluation in zip(rows, measured, strict=True)
    if 0 < evaluation.step_time_us < np.inf
  ]
  ran = [pair for pair in ran if is_sure(pair[1])] or ran
  alone = [(row, e) for row, e in ran if (row == row[0]).all()]
  if alone:
    steps = Simulator(problem).run(np.stack([row for row, _ in alone]))
    took_us = np.array([e.step_time_us - starting_us for _, e in alone])
    factor = float(np.median(took_us / steps.step_time_us))
    problem = fit.with_work(problem, factor)
  if not problem.cluster.links or len(alone) == len(ran):
    return problem
  rows = np.stack([row for row, _ in ran])
  known = fit.KNOWN_PER_DOUBLING
  return fit.fit_runs(problem, rows, [e for _, e in ran], known).of(problem)


def is_sure(measured: Evaluation) -> bool:
  """Whether steps were timed often enough, as they are unless the seconds end:
  the first ones of a placement take up to several times as long."""
  times = measured.extra.get("step_times_us")
  return times is None or len(times) >= _SURE_STEPS


def samples(
  problem: Problem, seed: int, guesses: Guesses | None = None
) -> np.ndarray:
  """[placements, num_ops]: guesses, ever more of the last scattered, halves."""
  devices = splits.peers(problem)
  guessed = guesses(problem) if guesses else ()
  rows = np.asarray(guessed) if len(guessed) else _busy(problem, devices)
  scattered = splits.scattered(problem, rows[-1], devices, _SHARES, seed)
  halves = [splits.turns(problem, devices, runs) for runs in _RUNS]
  return np.concatenate([rows, scattered, np.stack(halves)])


def _busy(problem: Problem, devices: Sequence[int]) -> np.ndarray:
  """[2, num_ops]: every op where it can start first, whatever crosses, or as
  long as messages are worth their while."""
  message_us = max(
    link.send_us + link.latency_us + link.recv_us
    for link in problem.cluster.links
  )
  rows = [splits.balanced(problem, devices, us) for us in (0.0, message_us)]
  return np.stack(rows)
