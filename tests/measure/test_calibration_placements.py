"""Placements to measure with: allowed, and from a few moved ops to all."""

import numpy as np
import pytest

from tests.testing.clusters import linked
from tfplace.graph.cluster import Cluster, Device
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.problem import Problem
from tfplace.measure.calibrate import placements
from tfplace.simulate import Simulator

DEPTH, WIDTH = 30, 4


def chains(*kinds):
  """Four chains of 30 ops; the first 20 ops can run on every kind."""
  ops = [
    OpSpec(
      f"{chain}_{step}",
      "Relu",
      dict.fromkeys(kinds if WIDTH * step < 20 else kinds[-1:], 1.0),
      [4.0],
    )
    for step in range(DEPTH)
    for chain in range(WIDTH)
  ]
  edges = [(i, 0, i + WIDTH) for i in range(WIDTH * (DEPTH - 1))]
  devices = [Device(f"{k}{i}", k) for i, k in enumerate(kinds)]
  return Problem(build_graph("g", ops, edges), linked(devices, 1.0))


@pytest.fixture
def problem():
  return chains("CPU", "CPU")


def test_scattered_placements_move_less_and_less(problem):
  start = np.zeros(problem.graph.num_ops, int)
  rows = placements.scattered(problem, start, (0, 1), (1.0, 0.5, 0.1), seed=0)
  moved = (rows != 0).sum(axis=1)
  assert rows.shape == (3, problem.graph.num_ops)
  # Half of what is scattered lands at home again.
  assert 40 < moved[0] < 80 and 15 < moved[1] < 45 and 0 < moved[2] < 15
  assert ((rows[2] != 0) <= (rows[0] != 0)).all()


def test_every_op_is_allowed_where_it_is():
  mixed = chains("GPU", "CPU")
  at_home = placements.home_devices(mixed)[mixed.group_of]
  rows = [
    *placements.scattered(mixed, at_home, (0, 1), (1.0,), seed=1),
    *placements.scattered(mixed, at_home, (0,), (1.0,), seed=1),
    placements.round_robin(mixed, (0, 1), 4),
    at_home,
  ]
  Simulator(mixed).evaluate(np.stack(rows))  # refuses what is not allowed
  assert (
    placements.home_devices(mixed)[mixed.group_of].tolist()
    == [0] * 20 + [1] * 100
  )


def test_peers_are_the_devices_of_the_kind_that_does_the_work():
  # All ops can run on the CPUs, 20 of 120 on the GPU, which comes first.
  assert placements.peers(chains("GPU", "CPU", "CPU")) == [1, 2]
  assert placements.peers(chains("GPU", "CPU")) == [0, 1]  # of one, all
  everywhere = Problem(
    chains("CPU").graph,
    Cluster("c", (Device("a", "CPU"), Device("b", "CPU"))),
  )
  assert placements.peers(everywhere) == [0, 1]
