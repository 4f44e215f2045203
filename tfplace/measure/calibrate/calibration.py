"""Calibration of timed links with runs of a real step.

Transfers timed alone find warm caches, so link costs are fitted to a few
placements, most of them like results of a search, with SciPy. Each cost shows
in one pattern (LogGP: Alexandrov et al., SPAA 1995).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy import optimize

from tfplace.graph.cluster import Cluster
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.problem import Problem
from tfplace.graph.protocols import Evaluator
from tfplace.measure.calibrate import placements
from tfplace.simulate import Simulator

# A message that takes this long crosses a network, whose latency hides the
# overhead on the devices. Between processes of a host, it takes some 0.1 ms.
NETWORK_US = 1e3

_SCATTERED = (1.0, 0.5, 0.25, 0.1)  # groups on random devices, per placement
_RUNS = (2, 8)  # runs of consecutive groups, per placement
_MIN_STEPS = 3  # timed steps of a placement to fit to, if some have as many
# The links were fitted before to more diverse placements, and results of a
# search may have few messages, so a refit needs more evidence (`fit_runs`).
_REFIT_PER_DOUBLING = 0.03

_OUTLIER = 0.1  # relative error above which the loss becomes linear
_DOUBLINGS = (-2.0, 8.0)  # bounds of the doublings of a factor
# Ops take 1.1 to 1.3 times as long while other devices of their host compute.
_WORK_DOUBLINGS = 0.6
_WORK_DOUBLINGS_APART = 1e-6
# Doublings of messages, bytes and latency to start from. Latency and work on
# devices are easily confused, so some starts have much of either.
_STARTS = ((0, 0, 0), (0, 0, 3), (3, 0, 0), (3, 3, 0), (3, 0, 3))
_DIFFERENCE = 0.1  # of finite differences, since step times have kinks
# A latency or gap below this, including a noisy 0, grows as if it had this
# value, which is below the time of a message between two processes.
_LEAST_US = 1.0

# Maps a problem to placements for its calibration: [placements, num_ops]
# devices.
Guesses: TypeAlias = Callable[[Problem], np.ndarray]


def calibrated(
  problem: Problem, evaluator: Evaluator, guesses: Guesses
) -> Problem:
  """Fits the link costs to measured steps.

  Args:
    problem: a problem with measured op times and timed links. It is returned
      unchanged if it has one device or if no placement can be timed.
    evaluator: measures placements.
    guesses: placements that resemble those to predict; may be none.
  """
  if not problem.cluster.links:
    return problem
  rows = samples(problem, 0, guesses)
  return fit_runs(problem, rows, evaluator.evaluate(rows)).scale(problem)


def refitted(
  problem: Problem,
  rows: np.ndarray,
  measured: Sequence[Evaluation],
  starting_us: float = 0.0,
) -> Problem:
  """Fits op times and link costs to placements that ran.

  First, op times and overheads are scaled to the placements on one device,
  which have no messages, because the speed of a host changes over time. Then
  all factors are fitted to all placements.

  Args:
    rows: [placements, num_ops] placements that ran.
    measured: their evaluations; not finite for failed runs.
    starting_us: time in each measured step before its devices start.
  """
  timed = _timed(measured)
  alone = [i for i in timed if (rows[i] == rows[i][0]).all()]
  if alone:
    steps = Simulator(problem).run(rows[alone])
    took_us = np.array([measured[i].step_time_us - starting_us for i in alone])
    factor = float(np.median(took_us / steps.step_time_us))
    problem = with_work(problem, factor)
  if not problem.cluster.links or len(alone) == len(timed):
    return problem
  factors = fit_runs(problem, rows, measured, _REFIT_PER_DOUBLING)
  return factors.scale(problem)


def _timed(measured: Sequence[Evaluation]) -> list[int]:
  """Returns the placements that ran; with enough timed steps, if any did.

  An unknown number of steps is enough.
  """
  # A time is 0 if it was lost in the round trip to a host.
  ran = [i for i, e in enumerate(measured) if 0 < e.step_time_us < np.inf]
  times: dict[int, Any] = {
    i: measured[i].extra.get("step_times_us") for i in ran
  }
  enough = [i for i in ran if times[i] is None or len(times[i]) >= _MIN_STEPS]
  return enough or ran


def samples(problem: Problem, seed: int, guesses: Guesses) -> np.ndarray:
  """Returns [placements, num_ops] guesses, scattered ones and halves."""
  devices = placements.peers(problem)
  halves = np.stack(
    [placements.round_robin(problem, devices, runs) for runs in _RUNS]
  )
  guessed = guesses(problem).reshape(-1, problem.graph.num_ops)
  start = guessed[-1] if len(guessed) else halves[0]
  scattered = placements.scattered(
    problem, start, devices, _SCATTERED, seed=seed
  )
  return np.concatenate([guessed, scattered, halves])


@dataclasses.dataclass(frozen=True)
class Factors:
  """Correction factors of costs, fitted to runs of a real step.

  Attributes:
    message: factor of `send_us`, `recv_us` and `gap_us`.
    bytes: factor of all costs per byte.
    latency: factor of `latency_us`.
    work: factor of op times and overheads; ops were profiled on one device and
      slow down while other devices of the host compute.
  """

  message: float = 1.0
  bytes: float = 1.0
  latency: float = 1.0
  work: float = 1.0

  def scale(self, problem: Problem) -> Problem:
    """Applies the factors to the ops and links of a problem."""
    cluster = self.scale_links(problem.cluster)
    linked = Problem(problem.graph, cluster, order=problem.order)
    return with_work(linked, self.work)

  def scale_links(self, cluster: Cluster) -> Cluster:
    """Applies the factors to the links of a cluster."""
    links = tuple(
      dataclasses.replace(
        link,
        bandwidth_bytes_per_us=link.bandwidth_bytes_per_us / self.bytes,
        latency_us=_times(link.latency_us, self.latency),
        gap_us=_times(link.gap_us, self.message),
        send_us=link.send_us * self.message,
        recv_us=link.recv_us * self.message,
        send_us_per_byte=link.send_us_per_byte * self.bytes,
        recv_us_per_byte=link.recv_us_per_byte * self.bytes,
        extra={**link.extra, "fitted": dataclasses.asdict(self)},
      )
      for link in cluster.links
    )
    return dataclasses.replace(cluster, links=links)


def _times(time_us: float, factor: float) -> float:
  """Scales a time by a factor, growing even from 0."""
  if factor <= 1.0:
    return time_us * factor
  return time_us + max(time_us, _LEAST_US) * (factor - 1.0)


def fit_runs(
  problem: Problem,
  rows: np.ndarray,
  measured: Sequence[Evaluation],
  per_doubling: float = 0.002,
) -> Factors:
  """Fits the factors with which simulated steps match measured ones.

  Minimizes squared errors of log(simulated / measured), robust against
  outliers. All factors are 1 if no placement ran.

  Args:
    problem: a problem with measured op times and timed links.
    rows: [placements, num_ops] placements that ran.
    measured: their evaluations; not finite for failed runs. Those with few
      timed steps count only if there are no others.
    per_doubling: relative error that must justify doubling a cost. Among
      equally good fits, the one closest to the timed links wins.
  """
  timed = _timed(measured)
  if not timed:
    return Factors()
  times = np.array([measured[i].step_time_us for i in timed])

  def errors(doublings: np.ndarray) -> np.ndarray:
    # Doubling all costs doubles the step, so work is factored out.
    *relative, work = doublings
    costs = Factors(*(2.0 ** (np.array(relative) - work)).tolist())
    cluster = costs.scale_links(problem.cluster)
    scaled = Problem(problem.graph, cluster, order=problem.order)
    steps = Simulator(scaled).run(rows[timed])
    off = np.log(steps.step_time_us / times) + work * np.log(2.0)
    return np.concatenate([off, per_doubling * doublings])

  def slopes(doublings: np.ndarray) -> np.ndarray:
    rows = _DIFFERENCE * np.eye(len(doublings))
    moved = [errors(doublings + row) for row in rows]
    return (np.stack(moved, axis=1) - errors(doublings)[:, None]) / _DIFFERENCE

  latency_us = min(link.latency_us for link in problem.cluster.links)
  apart = latency_us >= NETWORK_US
  most_work = _WORK_DOUBLINGS_APART if apart else _WORK_DOUBLINGS
  least, most = ([bound] * 3 for bound in _DOUBLINGS)
  fits = [
    optimize.least_squares(
      errors,
      (*start, 0.0),
      slopes,
      ([*least, 0.0], [*most, most_work]),
      loss="soft_l1",
      f_scale=_OUTLIER,
      max_nfev=100,
    )
    for start in _STARTS
  ]
  best = min(fits, key=lambda fit: fit.cost).x
  return Factors(*(2.0**best).tolist())


def with_work(problem: Problem, factor: float) -> Problem:
  """Scales all op times and overheads of a problem."""
  if factor == 1.0 or not 0 < factor < np.inf:
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
