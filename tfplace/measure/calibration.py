"""Links as a real step sees them.

Transfers timed on their own tell what a link can do; in a step they also take
time from the devices at both ends, which the simulated step has no term for.
So a few placements that move much are run, and the links slowed until the
simulated steps of these take as long as the measured ones.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tfplace.graph.cluster import Cluster
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.problem import Problem
from tfplace.measure import harness
from tfplace.simulate import Simulator

_SHARES = (1.0, 0.5, 0.25)  # of the groups that are scattered
_FACTORS = 2.0 ** np.arange(0.0, 6.01, 0.25)


def calibrated(
  problem: Problem, harness: harness.MeasurementHarness, seed: int = 0
) -> Problem:
  """The problem with links that are as slow as measured steps say.

  Args:
    problem: op times measured, links timed; a problem with one device, or
      whose placements cannot be run, is returned as it is.
    harness: runs placements of it.
    seed: of the placements.
  """
  if not problem.cluster.links:
    return problem
  rows = scattered(problem, seed)
  ran = harness.evaluate(rows)
  factor = slowdown(problem, rows, ran)
  return Problem(problem.graph, slowed(problem.cluster, factor))


def scattered(problem: Problem, seed: int) -> np.ndarray:
  """[3, num_ops]: all, half and a quarter of the groups on random devices.

  The others stay on the first device that they may be on.
  """
  rng = np.random.default_rng(seed)
  allowed = problem.group_allowed
  home = allowed.argmax(axis=1)
  # A random device among the allowed ones: the largest of random keys.
  away = np.where(allowed, rng.random(allowed.shape), -1.0).argmax(axis=1)
  moved = rng.random(problem.num_groups)
  rows = [np.where(moved < share, away, home) for share in _SHARES]
  return np.stack(rows)[:, problem.group_of].astype(np.int32)


def slowdown(
  problem: Problem, rows: np.ndarray, measured: Sequence[Evaluation]
) -> float:
  """The factor on the links with the least error of the simulated steps.

  The error is the mean of |log(simulated / measured)| over the placements
  that ran; where none did, the factor is 1.
  """
  times = np.array([e.step_time_us for e in measured])
  ran = np.isfinite(times)
  if not ran.any():
    return 1.0
  errors = [
    float(np.abs(np.log(_steps(problem, rows[ran], f) / times[ran])).mean())
    for f in _FACTORS
  ]
  return float(_FACTORS[int(np.argmin(errors))])


def _steps(problem: Problem, rows: np.ndarray, factor: float) -> np.ndarray:
  slow = Problem(problem.graph, slowed(problem.cluster, factor))
  return Simulator(slow).run(rows).step_time_us


def slowed(cluster: Cluster, factor: float) -> Cluster:
  """The cluster with links of `factor` times the cost for each transfer."""
  links = tuple(
    dataclasses.replace(
      link,
      bandwidth_bytes_per_us=link.bandwidth_bytes_per_us / factor,
      gap_us=link.gap_us * factor,
      extra={**link.extra, "slowdown": factor},
    )
    for link in cluster.links
  )
  return dataclasses.replace(cluster, links=links)
