"""Least-squares fits of transfer costs to timed steps, with SciPy.

`fit_link` fits a link to its microbenchmark, `fit_runs` a cluster's links to
placements of a step. Each cost shows in one pattern (LogGP: Alexandrov et al.,
SPAA 1995).
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from tfplace.errors import MeasurementError
from tfplace.graph.cluster import Cluster, Link
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.problem import Problem
from tfplace.simulate import Simulator

_LEAST_US_PER_BYTE = 1e-6  # 1 TB/s, faster than any copy


# A message that takes this long crosses a network, whose latency hides the
# overhead on the devices. Between processes of a host, it takes some 0.1 ms.
NETWORK_US = 1e3
_OUTLIER = 0.1  # relative error above which the loss becomes linear

# Constants of `fit_link`.
_PULL = 1e-4  # weight that pulls a cost to 0 if the steps do not determine it
_NOISE = 0.01  # of a step; added times within it get little weight
# Between idle devices, receiving overlaps with sending, so round trips are
# shorter than the simulation rules say.
_TRIP_WEIGHT = 0.25

# Constants of `fit_runs`: doublings of a factor.
_DOUBLINGS = (-2.0, 8.0)  # bounds
# Ops take 1.1 to 1.3 times as long while other devices of their host compute.
_WORK_DOUBLINGS = 0.6
_WORK_DOUBLINGS_APART = 1e-6
# Doublings of messages, bytes and latency to start from. Latency and work on
# devices are easily confused, so some starts have much of either.
_STARTS = ((0, 0, 0), (0, 0, 3), (3, 0, 0), (3, 3, 0), (3, 0, 3))
_DIFFERENCE = 0.1  # of finite differences, since step times have kinks


class Costs(NamedTuple):
  """Cost fields of a `Link`; `us_per_byte` is 1 / bandwidth."""

  send_us: float
  send_us_per_byte: float
  recv_us: float
  recv_us_per_byte: float
  latency_us: float
  gap_us: float
  us_per_byte: float

  def link(self, src: str, dst: str) -> Link:
    """Returns a link with these costs and its own channel."""
    fields = self._asdict()
    slowness = max(fields.pop("us_per_byte"), _LEAST_US_PER_BYTE)
    return Link(src, dst, 1.0 / slowness, **fields)


@dataclasses.dataclass(frozen=True)
class Timed:
  """Timed steps of one load of the microbenchmark.

  Attributes:
    pattern: "send" or "recv": the source or the destination is busy with other
      ops for `alone_us`; "burst": neither is busy; "trip": sequential round
      trips.
    size: bytes of each message.
    count: messages in the step.
    alone_us: time of the same ops without messages.
    step_us: time of the step.
  """

  pattern: str
  size: int
  count: int
  alone_us: float
  step_us: float

  @property
  def each_us(self) -> float:
    """Returns the time that one message adds to the step."""
    return max(self.step_us - self.alone_us, 0.0) / self.count

  def expected_us(self, costs: Costs) -> float:
    """Predicts `step_us` by the simulation rules."""
    send = costs.send_us + self.size * costs.send_us_per_byte
    recv = costs.recv_us + self.size * costs.recv_us_per_byte
    carry = self.size * costs.us_per_byte
    one = send + carry + costs.latency_us + recv
    if self.pattern == "trip":
      return self.alone_us + self.count * one
    slowest = max(send, costs.gap_us + carry, recv)
    stream = one + (self.count - 1) * slowest
    if self.pattern == "burst":
      return self.alone_us + stream
    # The last op is at the source; an empty message tells it that the
    # destination is done.
    told = costs.send_us + costs.latency_us + costs.recv_us
    busy = send if self.pattern == "send" else recv
    return max(self.alone_us + self.count * busy, stream + told)


def fit_link(timed: Sequence[Timed]) -> Costs:
  """Fits link costs to timed steps.

  Minimizes the squared relative errors of the time that messages add to a step,
  with soft L1 loss against outliers. Costs are nonnegative.

  Raises:
    MeasurementError: no round trip was timed.
  """
  trips = [t for t in timed if t.pattern == "trip"]
  if not trips:
    raise MeasurementError("no round trip of a message was timed")
  each_us = {t.size: t.each_us for t in trips}
  if min(each_us.values()) > NETWORK_US:
    return _fit_network(each_us)
  largest = max(each_us)
  message_us = max(each_us[min(each_us)], 1e-3)
  byte_us = max(each_us[largest] / largest, 1e-9)
  is_bytes = np.array(["byte" in field for field in Costs._fields])
  scale = np.where(is_bytes, byte_us, message_us)
  added = np.array([t.step_us - t.alone_us for t in timed])
  alone = np.array([t.alone_us for t in timed])
  noise = np.abs(added) + _NOISE * alone + 1e-3
  is_trip = np.array([t.pattern == "trip" for t in timed])
  weights = np.where(is_trip, _TRIP_WEIGHT, 1.0) / noise

  def errors(shares: np.ndarray) -> np.ndarray:
    costs = Costs(*(shares * scale).tolist())
    expected = np.array([t.expected_us(costs) for t in timed])
    off = (expected - [t.step_us for t in timed]) * weights
    return np.concatenate([off, _PULL * shares])

  starts = [  # costs on the devices, on the link, or both
    np.array([0.4, 0.4, 0.4, 0.4, 0.2, 0.0, 0.2]),
    np.array([0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 1.0]),
    np.full(7, 0.3),
  ]
  shares = _least(errors, starts, (0.0, np.inf))
  return Costs(*(shares * scale).tolist())


def _fit_network(each_us: dict[int, float]) -> Costs:
  """Fits a slow link to round trips; other patterns wait for the network."""
  sizes = np.array(list(each_us), np.float64)
  times = np.array(list(each_us.values()))
  rows = np.stack([np.ones(len(sizes)), sizes / sizes.max()], axis=1)
  (latency_us, largest_us), _ = optimize.nnls(
    rows / times[:, None], np.ones(len(times))
  )
  per_byte = float(largest_us / sizes.max())
  return Costs(0.0, 0.0, 0.0, 0.0, float(latency_us), 0.0, per_byte)


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

  def of(self, problem: Problem) -> Problem:
    """Applies the factors to the ops and links of a problem."""
    cluster = self.of_links(problem.cluster)
    linked = Problem(problem.graph, cluster, order=problem.order)
    return with_work(linked, self.work)

  def of_links(self, cluster: Cluster) -> Cluster:
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


# A latency or gap below this, including a noisy 0, grows as if it had this
# value, which is below the time of a message between two processes.
_LEAST_US = 1.0


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
    measured: their evaluations; not finite for failed runs.
    per_doubling: relative error that must justify doubling a cost. Among
      equally good fits, the one closest to the timed links wins.
  """
  times = np.array([e.step_time_us for e in measured])
  ran = np.isfinite(times) & (times > 0)  # 0: lost in the round trip to a host
  if not ran.any():
    return Factors()

  def errors(doublings: np.ndarray) -> np.ndarray:
    # Doubling all costs doubles the step, so work is factored out.
    *relative, work = doublings
    costs = Factors(*(2.0 ** (np.array(relative) - work)).tolist())
    cluster = costs.of_links(problem.cluster)
    scaled = Problem(problem.graph, cluster, order=problem.order)
    steps = Simulator(scaled).run(rows[ran])
    off = np.log(steps.step_time_us / times[ran]) + work * np.log(2.0)
    return np.concatenate([off, per_doubling * doublings])

  def slopes(doublings: np.ndarray) -> np.ndarray:
    rows = _DIFFERENCE * np.eye(len(doublings))
    moved = [errors(doublings + row) for row in rows]
    return (np.stack(moved, axis=1) - errors(doublings)[:, None]) / _DIFFERENCE

  starts = np.array([(*start, 0.0) for start in _STARTS])
  least, most = ([bound] * 3 for bound in _DOUBLINGS)
  latency_us = min(link.latency_us for link in problem.cluster.links)
  most_work = _WORK_DOUBLINGS_APART
  if latency_us < NETWORK_US:
    most_work = _WORK_DOUBLINGS
  bounds = [*least, 0.0], [*most, most_work]
  best = _least(errors, starts, bounds, slopes)
  return Factors(*(2.0**best).tolist())


def _least(
  errors: Callable[[np.ndarray], np.ndarray],
  starts: Iterable[np.ndarray],
  bounds: tuple[Any, Any],
  slopes: Any = "2-point",
) -> np.ndarray:
  found = [
    optimize.least_squares(
      errors,
      start,
      slopes,
      bounds,
      loss="soft_l1",
      f_scale=_OUTLIER,
      max_nfev=100,
    )
    for start in starts
  ]
  return min(found, key=lambda result: result.cost).x


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


def _times(time_us: float, factor: float) -> float:
  """Scales a time by a factor, growing even from 0."""
  if factor <= 1.0:
    return time_us * factor
  return time_us + max(time_us, _LEAST_US) * (factor - 1.0)
