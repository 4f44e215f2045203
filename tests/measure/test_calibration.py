"""Links slowed to what real steps show."""

import dataclasses

import pytest
from four_chains import four_chains

from tfplace.core.cluster import Cluster, Device, Link
from tfplace.core.problem import Problem
from tfplace.measure import evaluations
from tfplace.measure.calibrate import calibration
from tfplace.measure.calibrate.calibration import Slowdown
from tfplace.measure.local import runtime
from tfplace.simulate import Simulator


@pytest.fixture
def problem():
  """Four chains on two devices.

  A transfer takes 0 to 100 us, 2 more until the next can start, and 5 more
  until it is there.
  """
  devices = (Device("d0", "CPU"), Device("d1", "CPU"))
  links = (
    Link("d0", "d1", 100.0, gap_us=2.0, latency_us=5.0, channel="c"),
    Link("d1", "d0", 100.0, gap_us=2.0, latency_us=5.0, channel="c"),
  )
  return Problem(four_chains(), Cluster("two", devices, links))


class Real:
  """Devices whose links are slower than the problem says."""

  def __init__(self, problem, slowdown):
    slow = Problem(problem.graph, slowdown.of(problem.cluster))
    self.simulator = Simulator(slow)

  def evaluate(self, placements):
    return self.simulator.evaluate(placements)


def steps(problem, rows):
  return [e.step_time_us for e in Simulator(problem).evaluate(rows)]


@pytest.mark.parametrize(
  "slowdown",
  [
    Slowdown(),
    Slowdown(4.0, 4.0, 1.0),
    Slowdown(16.0, 16.0, 16.0),
    Slowdown(bandwidth=1.0, gap=1.0, latency=32.0),
    Slowdown(bandwidth=1.0, gap=50.0, latency=1.0),
    Slowdown(bandwidth=6.0, gap=1.0, latency=10.0),
  ],
  ids=str,
)
def test_steps_of_other_placements_are_right_once_links_are_slowed(
  problem, slowdown
):
  real = Real(problem, slowdown)
  found = calibration.calibrated(problem, real)
  others = calibration.samples(problem, seed=7)[:4]
  took = [e.step_time_us for e in real.evaluate(others)]
  # A factor is found to within a quarter of a doubling.
  assert steps(found, others) == pytest.approx(took, rel=0.1)
  if slowdown != Slowdown():
    assert steps(problem, others) != pytest.approx(took, rel=0.25)
  assert found.graph is problem.graph


def test_links_that_are_as_timed_are_left_alone(problem):
  found = calibration.calibrated(problem, Real(problem, Slowdown()))
  pairs = zip(found.cluster.links, problem.cluster.links, strict=True)
  for link, before in pairs:
    slowed = link.extra["slowdown"]
    assert slowed == {"bandwidth": 1.0, "gap": 1.0, "latency": 1.0}
    assert dataclasses.replace(link, extra={}) == before


def test_a_slowdown_multiplies_what_a_transfer_costs(problem):
  link = Slowdown(2.0, 3.0, 4.0).of(problem.cluster).links[0]
  assert link.bandwidth_bytes_per_us == 50.0
  assert link.gap_us == 6.0
  assert link.latency_us == 20.0


def test_gaps_and_latencies_that_were_timed_as_nothing_are_found(problem):
  links = tuple(
    dataclasses.replace(link, gap_us=0.0, latency_us=0.0)
    for link in problem.cluster.links
  )
  cluster = dataclasses.replace(problem.cluster, links=links)
  timed = Problem(problem.graph, cluster)
  real = Real(problem, Slowdown(gap=10.0, latency=20.0))  # 20 and 100 us
  found = calibration.calibrated(timed, real)
  others = calibration.samples(problem, seed=7)[:4]
  took = [e.step_time_us for e in real.evaluate(others)]
  assert steps(found, others) == pytest.approx(took, rel=0.1)
  assert Slowdown().of(cluster).links[0].gap_us == 0.0


@pytest.mark.parametrize("delay_us", [1000.0, 20_000.0])
def test_delays_of_a_step_are_not_taken_for_those_of_links(problem, delay_us):
  # On several machines a step starts a delay late and is known a delay late.
  links = tuple(
    dataclasses.replace(link, latency_us=delay_us)
    for link in problem.cluster.links
  )
  cluster = dataclasses.replace(problem.cluster, links=links)
  slow = Problem(problem.graph, cluster)

  class Remote(Real):
    def evaluate(self, placements):
      return [
        dataclasses.replace(e, step_time_us=e.step_time_us + 2 * delay_us)
        for e in super().evaluate(placements)
      ]

  found = calibration.calibrated(slow, Remote(slow, Slowdown()))
  latency_us = found.cluster.links[0].latency_us
  assert latency_us == pytest.approx(delay_us, rel=0.2)


def test_placements_that_failed_are_left_out(problem):
  rows = calibration.samples(problem, seed=0)
  real = Slowdown(8.0, 8.0, 1.0)
  ran = Real(problem, real).evaluate(rows)
  without = calibration.slowdown(problem, rows[1:], ran[1:])
  ran[0] = evaluations.failed(problem, runtime.ChildError("died", "it died"))
  assert calibration.slowdown(problem, rows, ran) == without != Slowdown()
  nothing = [ran[0]] * len(rows)
  assert calibration.slowdown(problem, rows, nothing) == Slowdown()


def test_a_single_device_has_nothing_to_calibrate(problem):
  alone = Problem(problem.graph, Cluster("one", problem.cluster.devices[:1]))
  assert calibration.calibrated(alone, Real(problem, Slowdown())) is alone
