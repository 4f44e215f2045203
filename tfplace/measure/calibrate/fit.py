"""What the transfers of a link cost, fitted to timed steps with SciPy.

`fit_link` finds the fields of a `Link` from its microbenchmark, `fit_runs`
corrects those of a cluster by placements of a real step that were run. Both
take the time of a step under the rules of the simulator as their model, so what
is predicted afterwards is the simulator on the cluster.

Which fields are seen where (LogGP: Alexandrov et al., SPAA 1995): time of the
sending device beside a busy producer, time of the receiving device beside a
busy destination, latency and the time per byte of the link in round trips
between idle devices, and what the link itself takes in a burst of messages.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from tfplace.core.cluster import Cluster, Link
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluation
from tfplace.errors import MeasurementError
from tfplace.simulate import Simulator

_LEAST_US_PER_BYTE = 1e-6  # 1 TB/s, faster than any copy
_OUTLIER = 0.1  # relative error from which one counts by its size, not square
_PULL = 1e-4  # of a cost towards 0, where the steps do not determine it
# Between idle devices, receiving begins while sending goes on: shorter than
# the rules say, so that round trips must not decide what either takes.
_TRIP_WEIGHT = 0.25
# A message that takes so long crosses a network, whose delay hides what it
# takes of the devices; between processes of a host it takes some 0.1 ms.
NETWORK_US = 1e3


class Costs(NamedTuple):
  """The cost fields of a `Link`; per byte, the link takes 1 / bandwidth."""

  send_us: float
  send_us_per_byte: float
  recv_us: float
  recv_us_per_byte: float
  latency_us: float
  gap_us: float
  us_per_byte: float

  def link(self, src: str, dst: str) -> Link:
    """A link with these costs, on a channel of its own."""
    fields = self._asdict()
    slowness = max(fields.pop("us_per_byte"), _LEAST_US_PER_BYTE)
    return Link(src, dst, 1.0 / slowness, **fields)


@dataclasses.dataclass(frozen=True)
class Timed:
  """The timed steps of one load of the microbenchmark.

  Attributes:
    pattern: "send" and "recv": the source or the destination is busy with
      other ops for `alone_us`; "burst": neither is; "trip": there and back,
      one message after the other.
    size: bytes of each message.
    count: messages of the step.
    alone_us: the same ops without messages.
    step_us: the step.
  """

  pattern: str
  size: int
  count: int
  alone_us: float
  step_us: float

  @property
  def each_us(self) -> float:
    """What a message adds to the step."""
    return max(self.step_us - self.alone_us, 0.0) / self.count

  def expected_us(self, costs: Costs) -> float:
    """What the rules of a simulated step say of `step_us`."""
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
    # The last op is at the source; an empty message tells it of the others.
    told = costs.send_us + costs.latency_us + costs.recv_us
    busy = send if self.pattern == "send" else recv
    return max(self.alone_us + self.count * busy, stream + told)


def fit_link(timed: Sequence[Timed]) -> Costs:
  """The costs under which the steps take what was timed.

  Least squares of the relative errors of what messages add to a step, robust
  against outliers (soft L1); no cost is negative.

  Raises:
    MeasurementError: no size was timed.
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
  # What is lost in the noise of the step, a percent of it, counts little.
  noise = np.abs(added) + 0.01 * np.array([t.alone_us for t in timed]) + 1e-3
  is_trip = np.array([t.pattern == "trip" for t in timed])
  weights = np.where(is_trip, _TRIP_WEIGHT, 1.0) / noise

  def errors(shares: np.ndarray) -> np.ndarray:
    costs = Costs(*(shares * scale).tolist())
    expected = np.array([t.expected_us(costs) for t in timed])
    off = (expected - [t.step_us for t in timed]) * weights
    return np.concatenate([off, _PULL * shares])

  starts = [  # the devices' work, the link's, both
    np.array([0.4, 0.4, 0.4, 0.4, 0.2, 0.0, 0.2]),
    np.array([0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 1.0]),
    np.full(7, 0.3),
  ]
  shares = _least(errors, starts, (0.0, np.inf))
  return Costs(*(shares * scale).tolist())


def _fit_network(each_us: dict[int, float]) -> Costs:
  """Latency and time per byte of a slow link: bytes -> time of one message.

  The steps without messages wait for the network, too, so that the other
  patterns tell nothing of it.
  """
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
  """Factors on what a step costs, as runs of a real step show them.

  Attributes:
    message: on `send_us`, `recv_us` and `gap_us`.
    bytes: on all that a byte takes.
    latency: on `latency_us`.
    work: on op times and overheads: ops were profiled on one device, and take
      longer while others compute on the same host.
  """

  message: float = 1.0
  bytes: float = 1.0
  latency: float = 1.0
  work: float = 1.0

  def of(self, problem: Problem) -> Problem:
    """The problem with ops and links that take so much longer."""
    cluster = self.of_links(problem.cluster)
    linked = Problem(problem.graph, cluster, order=problem.order)
    return with_work(linked, self.work)

  def of_links(self, cluster: Cluster) -> Cluster:
    """The cluster with links that cost so much more."""
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


# A latency or gap timed below this, or at 0 for noise, grows as if it were
# this. Chosen below the time of a message between two processes.
_LEAST_US = 1.0
_DOUBLINGS = (-2.0, 8.0)  # of a factor, least and most
# Doublings of `work`: ops take 1.1 to 1.3 times as long where other devices of
# their host compute; on hosts of their own they do not.
_MOST_WORK, _NEARLY_0 = 0.6, 1e-6
# Latency and work of devices are easily confused: starts with much of either.
_STARTS = ((0, 0, 0), (0, 0, 3), (3, 0, 0), (3, 3, 0), (3, 0, 3))
# Of two fits that are as good, the one nearer to the timed links.
_PER_DOUBLING = 0.002
# The same of links that were fitted before, to placements that differ more:
# what a search ends with may have few messages, and tells little of them.
KNOWN_PER_DOUBLING = 0.03
_STEP = 0.1  # doublings, to see what a factor changes: a step has kinks


def fit_runs(
  problem: Problem,
  rows: np.ndarray,
  measured: Sequence[Evaluation],
  per_doubling: float = _PER_DOUBLING,
) -> Factors:
  """The factors under which simulated steps take what was measured.

  Least squares of log(simulated / measured), robust against outliers. Where no
  placement ran, all are 1.

  Args:
    problem: with op times as measured and links as timed.
    rows: [placements, num_ops] what was run.
    measured: what each took; not finite where it did not run.
    per_doubling: error of a step that doubling a cost must explain.
  """
  times = np.array([e.step_time_us for e in measured])
  ran = np.isfinite(times) & (times > 0)  # 0: lost in the round trip to a host
  if not ran.any():
    return Factors()

  def errors(doublings: np.ndarray) -> np.ndarray:
    # A step of which everything takes twice as long takes twice as long.
    *relative, work = doublings
    costs = Factors(*(2.0 ** (np.array(relative) - work)).tolist())
    cluster = costs.of_links(problem.cluster)
    scaled = Problem(problem.graph, cluster, order=problem.order)
    steps = Simulator(scaled).run(rows[ran])
    off = np.log(steps.step_time_us / times[ran]) + work * np.log(2.0)
    return np.concatenate([off, per_doubling * doublings])

  def slopes(doublings: np.ndarray) -> np.ndarray:
    moved = [errors(doublings + row) for row in _STEP * np.eye(len(doublings))]
    return (np.stack(moved, axis=1) - errors(doublings)[:, None]) / _STEP

  starts = np.array([(*start, 0.0) for start in _STARTS])
  least, most = ([bound] * 3 for bound in _DOUBLINGS)
  shares = min(link.latency_us for link in problem.cluster.links) < NETWORK_US
  bounds = [*least, 0.0], [*most, _MOST_WORK if shares else _NEARLY_0]
  best = _least(errors, starts, bounds, slopes)
  return Factors(*(2.0**best).tolist())


def _least(
  errors: Callable[[np.ndarray], np.ndarray],
  starts: Iterable[np.ndarray],
  bounds: tuple[Any, Any],
  slopes: Any = "2-point",
) -> np.ndarray:
  """The best of the local optima from `starts`."""
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
  """The problem with all work of devices so much longer."""
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
  """`time_us * factor`, which grows with the factor even from 0."""
  if factor <= 1.0:
    return time_us * factor
  return time_us + max(time_us, _LEAST_US) * (factor - 1.0)
