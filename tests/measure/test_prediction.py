"""The simulator for devices whose messages take their time."""

import dataclasses

import numpy as np
import pytest
from four_chains import DEPTH, WIDTH, four_chains

from tfplace.core.cluster import Cluster, Device, Link
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.measure import Predictor
from tfplace.measure.calibrate import communication, fit, prediction
from tfplace.measure.calibrate.communication import CommunicationFactors
from tfplace.simulate import Simulator

DEVICES = (Device("d0", "CPU"), Device("d1", "CPU"))


def timed_problem(on_devices=True):
  """Four chains on two devices.

  A message takes 5 us and 0.01 us a byte of both devices, and 20 us between.
  """
  links = []
  for src, dst in (("d0", "d1"), ("d1", "d0")):
    link = Link(src, dst, 100.0, gap_us=5.0, latency_us=20.0, channel="c")
    extra = communication.as_timed(link) if on_devices else {}
    links.append(
      Link(
        src, dst, 100.0, gap_us=5.0, latency_us=20.0, channel="c", extra=extra
      )
    )
  return Problem(four_chains(), Cluster("two", DEVICES, tuple(links)))


def scattered(problem, count, seed):
  rng = np.random.default_rng(seed)
  shares = np.linspace(0.1, 0.9, count)[:, None]
  return (rng.random((count, problem.graph.num_ops)) < shares).astype(np.int32)


def with_factors(problem, factors):
  return Problem(problem.graph, factors.recorded(problem.cluster))


def test_without_work_of_devices_it_is_the_simulator():
  problem = timed_problem(on_devices=False)
  rows = scattered(problem, 3, seed=0)
  assert Predictor(problem).evaluate(rows) == Simulator(problem).evaluate(rows)


def test_all_but_the_step_time_is_that_of_the_simulator():
  problem = timed_problem()
  rows = scattered(problem, 2, seed=0)
  plain = Simulator(problem).evaluate(rows)
  placements = [Placement(problem, row) for row in rows]
  for found, expected in zip(
    Predictor(problem).evaluate(placements), plain, strict=True
  ):
    assert found.step_time_us != expected.step_time_us
    assert found.peak_memory_bytes == expected.peak_memory_bytes
    assert found.bytes_moved == expected.bytes_moved
    assert found.source == "simulated"


@pytest.mark.parametrize(
  "factors",
  [
    CommunicationFactors(),
    CommunicationFactors(message=4.0, bytes=2.0),
    CommunicationFactors(message=0.5, bytes=1.5, latency=8.0),
    CommunicationFactors(message=2.0, computing=1.15),
  ],
  ids=str,
)
def test_steps_of_other_placements_are_right_once_factors_are_found(factors):
  problem = timed_problem()
  real = Predictor(with_factors(problem, factors))
  rows = scattered(problem, 8, seed=1)
  found = fit.fitted(problem, rows, real.evaluate(rows))
  others = scattered(problem, 8, seed=2)
  predicted = Predictor(with_factors(problem, found)).evaluate(others)
  took = [e.step_time_us for e in real.evaluate(others)]
  assert [e.step_time_us for e in predicted] == pytest.approx(took, rel=0.05)
  if factors == CommunicationFactors():
    assert found == factors


def test_placements_that_could_not_be_run_tell_nothing():
  problem = timed_problem()
  rows = scattered(problem, 2, seed=0)
  lost = [
    dataclasses.replace(evaluation, step_time_us=np.inf)
    for evaluation in Simulator(problem).evaluate(rows)
  ]
  assert fit.fitted(problem, rows, lost) == CommunicationFactors()


@pytest.mark.parametrize("on_devices", [False, True])
def test_ops_are_ready_when_their_last_input_is_there(on_devices):
  problem = timed_problem(on_devices)
  # The chain of 10,000 bytes goes over once, after its first op.
  row = np.zeros(problem.graph.num_ops, np.int32)
  row[[WIDTH * step + 1 for step in range(1, DEPTH)]] = 1
  times = prediction.times(Placement(problem, row))
  # The four first ops run one after the other; the second of them sends, which
  # takes 100 us on the wire, or 105 us of each device.
  assert times.ready[1] == 0.0
  assert times.start[1] == 50.0
  ended, there = (100.0, 220.0) if not on_devices else (205.0, 330.0)
  assert times.end[1] == ended
  second = times.ready[WIDTH + 1]
  assert second == pytest.approx(there, abs=0.02)
  assert times.start[WIDTH + 1] == second
