"""Links fitted to what real steps show."""

import dataclasses

import numpy as np
import pytest

from tests.testing.clusters import linked
from tests.testing.slow import slow
from tfplace.graph.cluster import Cluster
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.problem import Problem
from tfplace.measure import evaluations
from tfplace.measure.calibrate import calibration
from tfplace.measure.calibrate.calibration import Factors
from tfplace.measure.local import runtime
from tfplace.simulate import Simulator

DEPTH, WIDTH = 30, 4


def four_chains():
  """Four chains of 30 ops of 50 us; each sends tensors of one size.

  Op `WIDTH * step + chain` is the chain's op of that step.
  """
  sizes = (4.0, 10e3, 100.0, 1000.0)
  ops = [
    OpSpec(f"{chain}_{step}", "Relu", {"CPU": 50.0}, [sizes[chain]])
    for step in range(DEPTH)
    for chain in range(WIDTH)
  ]
  edges = [(i, 0, i + WIDTH) for i in range(WIDTH * (DEPTH - 1))]
  return build_graph("g", ops, edges)


def chains_on(**costs):
  """Four chains on two devices, whose transfers take 0 to 100 us and more."""
  return Problem(four_chains(), linked(("d0", "d1"), 100.0, **costs))


@pytest.fixture
def problem():
  """A message takes 5 and 4 us of the devices, and 10 us on the way."""
  return chains_on(
    send_us=5.0, send_us_per_byte=0.01, recv_us=4.0, latency_us=10.0
  )


def mixed(problem):
  """[2, num_ops]: chains on devices by turns, and all steps by turns."""
  chain, step = np.array(
    [[int(part) for part in name.split("_")] for name in problem.graph.names]
  ).T
  return np.stack([chain // 2, (chain + step // 3) % 2]).astype(np.int32)


class Real:
  """Devices whose messages cost more than the problem says."""

  def __init__(self, problem, factors, drift=0.0):
    self.simulator = Simulator(factors.scale(problem))
    self.rng, self.drift = np.random.default_rng(0), drift

  def evaluate(self, placements):
    found = self.simulator.evaluate(placements)
    off = 1.0 + self.drift * self.rng.standard_normal(len(found))
    return [
      dataclasses.replace(e, step_time_us=e.step_time_us * factor)
      for e, factor in zip(found, off, strict=True)
    ]


def steps(problem, rows):
  return [e.step_time_us for e in Simulator(problem).evaluate(rows)]


@pytest.mark.parametrize(
  "factors",
  [
    Factors(),
    Factors(message=4.0, bytes=2.0),
    slow(Factors(message=0.5, bytes=1.5, latency=8.0)),
    slow(Factors(message=8.0, bytes=1.0, latency=8.0)),
    Factors(latency=32.0),
  ],
  ids=str,
)
def test_steps_of_other_placements_are_right_with_fitted_links(
  problem, factors
):
  real = Real(problem, factors)
  found = calibration.calibrated(problem, real, mixed)
  others = calibration.samples(problem, 7, mixed)[:4]
  took = [e.step_time_us for e in real.evaluate(others)]
  assert steps(found, others) == pytest.approx(took, rel=0.05)
  if factors == Factors():
    for link in found.cluster.links:
      assert link.extra["fitted"] == pytest.approx(
        dataclasses.asdict(factors), rel=0.01
      )


def test_steps_that_vary_still_show_what_messages_cost(problem):
  factors = Factors(message=4.0, bytes=2.0, latency=4.0)
  found = calibration.calibrated(
    problem, Real(problem, factors, drift=0.03), mixed
  )
  others = calibration.samples(problem, 7, mixed)[:4]
  took = [e.step_time_us for e in Real(problem, factors).evaluate(others)]
  assert steps(found, others) == pytest.approx(took, rel=0.15)


def test_links_that_take_nothing_of_devices_keep_to_that():
  # Many small messages determine the gap, large ones the bandwidth.
  network = chains_on(gap_us=2.0, latency_us=5.0)
  real = Real(network, Factors(message=10.0, bytes=6.0, latency=10.0))
  found = calibration.calibrated(network, real, mixed)
  others = calibration.samples(network, 7, mixed)[:4]
  took = [e.step_time_us for e in real.evaluate(others)]
  assert steps(found, others) == pytest.approx(took, rel=0.1)
  assert not found.cluster.has_message_costs


def test_factors_multiply_what_a_transfer_costs(problem):
  link = (
    Factors(message=2.0, bytes=4.0, latency=8.0).scale(problem).cluster.links[0]
  )
  assert link.bandwidth_bytes_per_us == 25.0
  assert (link.send_us, link.recv_us) == (10.0, 8.0)
  assert (link.send_us_per_byte, link.recv_us_per_byte) == (0.04, 0.0)
  assert link.latency_us == 80.0
  assert link.gap_us == 1.0  # it was timed at nothing, so as if at 1 us


@pytest.mark.parametrize("delay_us", [1000.0, 20_000.0])
def test_delays_of_a_step_are_not_taken_for_those_scale_links(delay_us):
  # On several machines a step starts a delay late and is known a delay late.
  slow = chains_on(latency_us=delay_us, gap_us=2.0)

  class Remote(Real):
    def evaluate(self, placements):
      return [
        dataclasses.replace(e, step_time_us=e.step_time_us + 2 * delay_us)
        for e in super().evaluate(placements)
      ]

  found = calibration.calibrated(slow, Remote(slow, Factors()), mixed)
  latency_us = found.cluster.links[0].latency_us
  assert latency_us == pytest.approx(delay_us, rel=0.2)


def test_placements_that_failed_are_left_out(problem):
  rows = calibration.samples(problem, 0, mixed)
  ran = Real(problem, Factors(message=8.0)).evaluate(rows)
  without = calibration.fit_runs(problem, rows[1:], ran[1:])
  ran[0] = evaluations.failed(problem, runtime.ChildError("died", "it died"))
  assert calibration.fit_runs(problem, rows, ran) == without != Factors()
  nothing = [ran[0]] * len(rows)
  assert calibration.fit_runs(problem, rows, nothing) == Factors()


def test_ops_slowed_by_others_are_told_from_messages(problem):
  factors = Factors(message=2.0, bytes=2.0, work=1.2)
  rows = calibration.samples(problem, 0, two_and_two)
  ran = Real(problem, factors).evaluate(rows)
  found = calibration.fit_runs(problem, rows, ran)
  assert found.work == pytest.approx(1.2, rel=0.05)
  took = [e.step_time_us for e in ran]
  assert steps(found.scale(problem), rows) == pytest.approx(took, rel=0.05)
  longer = found.scale(problem).time_us / problem.time_us
  assert longer == pytest.approx(np.full(longer.shape, 1.2), rel=0.05)


def two_and_two(problem):
  """[1, num_ops]: half of the four chains on each device; nothing crosses."""
  chain = [int(name.split("_")[0]) for name in problem.graph.names]
  return np.array([chain], np.int32) // 2


def test_placements_on_one_device_say_what_ops_take_there(problem):
  # Ops run 1.5 times as fast as they were profiled, 1.2 times as long together.
  graph, cluster = problem.graph, problem.cluster
  slow = calibration.with_work(Problem(graph, cluster), 1.5)
  rows = np.concatenate(
    [
      np.zeros((1, graph.num_ops), int),
      calibration.samples(problem, 0, two_and_two),
    ]
  )
  ran = [
    *Real(problem, Factors()).evaluate(rows[:1]),
    *Real(problem, Factors(work=1.2)).evaluate(rows[1:]),
  ]
  found = calibration.refitted(slow, rows, ran)
  took = [e.step_time_us for e in ran[1:]]
  assert steps(found, rows[1:]) == pytest.approx(took, rel=0.05)
  assert steps(found, rows[:1])[0] == pytest.approx(
    1.2 * ran[0].step_time_us, rel=0.05
  )


def test_guesses_are_what_is_scattered(problem):
  mine = two_and_two(problem)
  found = calibration.samples(problem, 0, two_and_two)
  assert (found[0] == mine[0]).all()
  assert 0 < (found[4] != mine[0]).sum() < (found[1] != mine[0]).sum()
  # Without guesses, halves of the graph are scattered.
  without = calibration.samples(problem, 0, lambda _: mine[:0])
  assert len(without) == len(found) - 1
  assert set(without[-2][:60]) == {0}


def test_a_single_device_has_nothing_to_calibrate(problem):
  alone = Problem(problem.graph, Cluster("one", problem.cluster.devices[:1]))
  assert calibration.calibrated(alone, Real(problem, Factors()), mixed) is alone
