"""Slows links down until simulated steps take as long as measured ones.

Transfers timed on their own show the capacity of a link. In a step they also
take time of the devices at both ends, and a busy host wakes the receiver late.
So a few placements, from two halves to all scattered, are run, and bandwidth,
gap and latency of the links slowed until the simulated steps match: many small
messages determine the gap, large ones the bandwidth, and chains that cross now
and then the latency. Searches use these links; `prediction` uses the
communication factors that `fit` finds from the same runs.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from tfplace.core.cluster import Cluster
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluation
from tfplace.measure import harness
from tfplace.measure.calibrate import communication, fit, splits
from tfplace.simulate import Simulator

_SHARES = (1.0, 0.5, 0.25, 0.1)  # of the groups that are scattered
_RUNS = (2, 8)  # of groups that stay together
_COARSE = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # in all combinations
_STEPS = (2.0**0.5, 2.0**0.25)  # by which the best is then refined
_ROUNDS = 8  # at most, for each step
_MIN_FACTOR, _MAX_FACTOR = 2.0**-2, 2.0**8
# Of two fits that are as good, the one nearer to the timed links.
_PER_DOUBLING = 0.002
# A gap or latency timed below this, or at 0 for noise, is slowed as if it were
# this: twice 0 would be 0. Chosen below the time of a message between two
# processes.
_LEAST_US = 1.0


@dataclasses.dataclass(frozen=True)
class Slowdown:
  """Factors on what a transfer costs; above 1 is slower."""

  bandwidth: float = 1.0
  gap: float = 1.0
  latency: float = 1.0

  def of(self, cluster: Cluster) -> Cluster:
    """The cluster with links that are so much slower."""
    links = tuple(
      dataclasses.replace(
        link,
        bandwidth_bytes_per_us=link.bandwidth_bytes_per_us / self.bandwidth,
        gap_us=_slowed(link.gap_us, self.gap),
        latency_us=_slowed(link.latency_us, self.latency),
        extra={**link.extra, "slowdown": dataclasses.asdict(self)},
      )
      for link in cluster.links
    )
    return dataclasses.replace(cluster, links=links)

  def doublings(self) -> float:
    """How far all three are from 1 together."""
    return float(np.abs(np.log2(dataclasses.astuple(self))).sum())


def _slowed(time_us: float, factor: float) -> float:
  """`time_us * factor`, which grows with the factor even from 0."""
  if factor <= 1.0:
    return time_us * factor
  return time_us + max(time_us, _LEAST_US) * (factor - 1.0)


def calibrated(
  problem: Problem, harness: harness.MeasurementHarness, seed: int = 0
) -> Problem:
  """The problem with links slowed to match measured steps.

  Args:
    problem: op times measured, links timed; a problem with one device, or
      whose placements cannot be run, is returned as it is.
    harness: runs placements of it.
    seed: of the placements.
  """
  if not problem.cluster.links:
    return problem
  rows = samples(problem, seed)
  ran = harness.evaluate(rows)
  cluster = slowdown(problem, rows, ran).of(problem.cluster)
  if communication.factors_of(cluster) is not None:
    cluster = fit.fitted(problem, rows, ran).recorded(cluster)
  return Problem(problem.graph, cluster)


def samples(problem: Problem, seed: int) -> np.ndarray:
  """[6 or 8, num_ops]: from all groups scattered to two halves.

  Where messages are work of the devices, also two that keep all devices busy.
  """
  devices = splits.peers(problem)
  halves = [splits.turns(problem, devices, runs) for runs in _RUNS]
  if communication.factors_of(problem.cluster) is not None:
    message_us = max(link.latency_us for link in problem.cluster.links)
    halves += [
      splits.balanced(problem, devices, us) for us in (0.0, message_us)
    ]
  away = splits.scattered(problem, devices, _SHARES, seed)
  return np.concatenate([away, np.stack(halves)])


def slowdown(
  problem: Problem, rows: np.ndarray, measured: Sequence[Evaluation]
) -> Slowdown:
  """The factors on the links with the least error of the simulated steps.

  The error is the mean of |log(simulated / measured)| over the placements
  that ran; where none did, nothing is slowed. The best of a coarse grid is
  refined, a factor or two at a time, as long as that helps.
  """
  times = np.array([e.step_time_us for e in measured])
  ran = np.isfinite(times) & (times > 0)  # 0: lost in the round trip to a host
  if not ran.any():
    return Slowdown()

  def cost(factors: Slowdown) -> float:
    slow = Problem(problem.graph, factors.of(problem.cluster))
    steps = Simulator(slow).run(rows[ran]).step_time_us
    error = float(np.abs(np.log(steps / times[ran])).mean())
    return error + _PER_DOUBLING * factors.doublings()

  best = min(itertools.starmap(Slowdown, _grid()), key=cost)
  for step in _STEPS:
    best = fit.descend(
      cost, best, functools.partial(_neighbours, step=step), _ROUNDS
    )
  return best


def _grid() -> Iterator[tuple[float, ...]]:
  return itertools.product(_COARSE, repeat=len(dataclasses.fields(Slowdown)))


def _neighbours(factors: Slowdown, step: float) -> list[Slowdown]:
  """One factor up or down; or one up as another goes down."""
  values = np.array(dataclasses.astuple(factors))
  result = []
  for powers in itertools.product((-1, 0, 1), repeat=len(values)):
    if 1 <= np.abs(powers).sum() <= 2:
      moved = values * step ** np.array(powers)
      limited = np.clip(moved, _MIN_FACTOR, _MAX_FACTOR)
      result.append(Slowdown(*limited.tolist()))
  return result
