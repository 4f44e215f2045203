"""Corrects timed links by placements of a real step that are run.

Transfers timed on their own find caches warm and threads awake. In a step they
do not, so a few placements, from two halves to all scattered, are run, and the
costs of the links are fitted until the simulated steps match. Most of them keep
all devices busy, as the placements do that a search ends with: fitted to steps
in which one device does nearly all, a message's work passes for latency.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluation
from tfplace.measure import harness
from tfplace.measure.calibrate import fit, splits
from tfplace.simulate import Simulator

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
  cluster = factors.of(problem.cluster)
  return Problem(problem.graph, cluster, order=problem.order)


def refitted(
  problem: Problem,
  rows: np.ndarray,
  measured: Sequence[Evaluation],
  starting_us: float = 0.0,
) -> Problem:
  """The problem with op times and link costs that match what ran.

  Op times and overheads are scaled by the placements on one device, which are
  without messages; a host is not as fast an hour later. The links' costs are
  fitted to all.

  Args:
    problem: with costs from an earlier fit.
    rows: [placements, num_ops] what ran.
    measured: what each took; not finite where it did not run.
    starting_us: of a measured step, until its devices begin.
  """
  alone = [
    (row, evaluation.step_time_us - starting_us)
    for row, evaluation in zip(rows, measured, strict=True)
    if (row == row[0]).all() and 0 < evaluation.step_time_us < np.inf
  ]
  if alone:
    steps = Simulator(problem).run(np.stack([row for row, _ in alone]))
    took_us = np.array([us for _, us in alone])
    problem = _scaled(problem, float(np.median(took_us / steps.step_time_us)))
  if not problem.cluster.links:
    return problem
  factors = fit.fit_runs(problem, rows, measured)
  cluster = factors.of(problem.cluster)
  return Problem(problem.graph, cluster, order=problem.order)


def _scaled(problem: Problem, factor: float) -> Problem:
  """The problem with all work of devices so much longer."""
  if not 0 < factor < np.inf:
    return problem
  graph, cluster = problem.graph, problem.cluster
  times = {kind: us * factor for kind, us in graph.time_us.items()}
  devices = tuple(
    dataclasses.replace(d, op_overhead_us=d.op_overhead_us * factor)
    for d in cluster.devices
  )
  return Problem(
    dataclasses.replace(graph, time_us=times),
    dataclasses.replace(cluster, devices=devices),
    order=problem.order,
  )


def samples(problem: Problem, seed: int) -> np.ndarray:
  """[8, num_ops]: all devices busy, ever more of that scattered, two halves."""
  devices = splits.peers(problem)
  message_us = max(
    link.send_us + link.latency_us + link.recv_us
    for link in problem.cluster.links
  )
  busy = [splits.balanced(problem, devices, us) for us in (message_us, 0.0)]
  scattered = splits.scattered(problem, busy[0], devices, _SHARES, seed)
  halves = [splits.turns(problem, devices, runs) for runs in _RUNS]
  return np.stack([*busy, *scattered, *halves])
