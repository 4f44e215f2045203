"""Corrects timed links by placements of a real step that are run.

Transfers timed on their own find caches warm and threads awake. In a step they
do not, so a few placements, from two halves to all scattered, are run, and the
costs of the links are fitted until the simulated steps match.
"""

import numpy as np

from tfplace.core.problem import Problem
from tfplace.measure import harness
from tfplace.measure.calibrate import fit, splits

_SHARES = (1.0, 0.5, 0.25, 0.1)  # of the groups that are scattered
_RUNS = (2, 8)  # of groups that stay together


def calibrated(
  problem: Problem, harness: harness.MeasurementHarness, seed: int = 0
) -> Problem:
  """The problem with link costs that match measured steps.

  Args:
    problem: op times measured, links timed; a problem with one device, or
      whose placements cannot be run, is returned as it is.
    harness: runs placements of it.
    seed: of the placements.
  """
  if not problem.cluster.links:
    return problem
  rows = samples(problem, seed)
  factors = fit.fit_runs(problem, rows, harness.evaluate(rows))
  return Problem(problem.graph, factors.of(problem.cluster))


def samples(problem: Problem, seed: int) -> np.ndarray:
  """[8, num_ops]: all groups scattered, two halves, all devices busy."""
  devices = splits.peers(problem)
  message_us = max(
    link.send_us + link.latency_us + link.recv_us
    for link in problem.cluster.links
  )
  return np.stack(
    [
      *splits.scattered(problem, devices, _SHARES, seed),
      *(splits.turns(problem, devices, runs) for runs in _RUNS),
      *(splits.balanced(problem, devices, us) for us in (0.0, message_us)),
    ]
  )
