"""Links slowed to what real steps show."""

import dataclasses

import numpy as np
import pytest

from tfplace.graph.cluster import Cluster, Device, Link
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.problem import Problem
from tfplace.measure import calibration, measured, processes
from tfplace.simulate import Simulator


@pytest.fixture
def problem():
  """Twenty pairs of an op and its reader; a transfer takes 10 us."""
  ops = [OpSpec(str(i), "Relu", {"CPU": 5.0}, [1000.0]) for i in range(40)]
  edges = [(i, 0, i + 20) for i in range(20)]
  devices = (Device("d0", "CPU"), Device("d1", "CPU"))
  links = (
    Link("d0", "d1", 100.0, gap_us=1.0, channel="c"),
    Link("d1", "d0", 100.0, gap_us=1.0, channel="c"),
  )
  return Problem(build_graph("g", ops, edges), Cluster("two", devices, links))


class Real:
  """Devices whose links take `factor` times what the problem says."""

  def __init__(self, problem, factor):
    slow = calibration.slowed(problem.cluster, factor)
    self.simulator = Simulator(Problem(problem.graph, slow))

  def evaluate(self, placements):
    return self.simulator.evaluate(placements)


@pytest.mark.parametrize("factor", [1.0, 4.0, 16.0])
def test_the_factor_of_the_links_is_found(problem, factor):
  found = calibration.calibrated(problem, Real(problem, factor))
  link = found.cluster.links[0]
  assert link.bandwidth_bytes_per_us == pytest.approx(100.0 / factor)
  assert link.gap_us == pytest.approx(factor)
  assert link.extra["slowdown"] == factor
  assert found.graph is problem.graph


def test_scattered_placements_move_less_and_less(problem):
  rows = calibration.scattered(problem, seed=0)
  moved = (rows != 0).sum(axis=1)
  assert rows.shape == (3, 40)
  assert moved[0] > moved[1] > moved[2] > 0


def test_placements_that_failed_are_left_out(problem):
  rows = calibration.scattered(problem, seed=0)
  ran = Real(problem, 4.0).evaluate(rows)
  ran[0] = measured.failed(problem, processes.ChildError("died", "it died"))
  assert calibration.slowdown(problem, rows, ran) == 4.0
  nothing = [ran[0]] * 3
  assert calibration.slowdown(problem, rows, nothing) == 1.0


def test_a_single_device_has_nothing_to_calibrate(problem):
  alone = Problem(problem.graph, Cluster("one", problem.cluster.devices[:1]))
  assert calibration.calibrated(alone, Real(problem, 1.0)) is alone


def test_every_scattered_op_is_allowed_where_it_is(problem):
  graph = problem.graph
  limited = {"CPU": graph.time_us["CPU"], "GPU": np.full(40, np.nan)}
  limited["GPU"][:20] = 1.0
  devices = (Device("g", "GPU"), Device("c", "CPU"))
  links = (Link("g", "c", 1.0), Link("c", "g", 1.0))
  mixed = Problem(
    dataclasses.replace(graph, time_us=limited),
    Cluster("mixed", devices, links),
  )
  Simulator(mixed).evaluate(calibration.scattered(mixed, seed=1))
