"""Shares of the critical path: by hand, and against the path for people."""

import numpy as np
import pytest

from tfplace import core
from tfplace.simulate import Simulator
from tfplace.simulate.critical_path import critical_shares


def problem(ops, edges, overhead_us=0.0):
  devices = tuple(
    core.Device(name, "GPU", 1e9, overhead_us) for name in ("a", "b")
  )
  links = tuple(core.Link(x, y, 10.0, 2.0) for x, y in (("a", "b"), ("b", "a")))
  specs = [
    core.OpSpec(f"op{i}", "MatMul", {"GPU": us}, [size])
    for i, (us, size) in enumerate(ops)
  ]
  graph = core.build_graph("g", specs, [(a, 0, b) for a, b in edges])
  return core.Problem(graph, core.Cluster("two", devices, links))


def shares_of(problem, *placements):
  devices = np.array(placements, np.int32)
  starts = np.empty(devices.shape)
  batch = Simulator(problem).run(devices, starts=starts)
  return batch.step_time_us, critical_shares(problem, devices, starts)


def test_a_transfer_is_shared_by_its_two_ends():
  # op0 0..5, 100 bytes at 10 a microsecond and 2 of latency: op1 17..24.
  step_us, shares = shares_of(problem([(5, 100), (7, 1)], [(0, 1)]), [0, 1])
  assert step_us.tolist() == [24.0]
  np.testing.assert_allclose(shares, [[5 + 6, 7 + 6]])


def test_a_wait_for_the_device_is_the_share_of_the_op_that_held_it():
  # On one device op0 0..5, op1 6..16 with an overhead of 1; op2 17..20.
  given = problem([(5, 1), (10, 1), (3, 1)], [(0, 2)], overhead_us=1.0)
  step_us, shares = shares_of(given, [0, 0, 0])
  assert step_us[0] == shares.sum()
  # Whichever of op1 and op2 runs last, all three are on the path.
  assert (shares > 0).all()


def test_an_op_beside_the_path_has_no_share():
  # op1 runs 0..4 on b, op0 0..9 on a, op2 9..10 on a after both.
  given = problem([(9, 0), (4, 0), (1, 0)], [(0, 2), (1, 2)])
  _, shares = shares_of(given, [0, 1, 0])
  np.testing.assert_allclose(shares, [[9, 0, 1]])


@pytest.mark.parametrize("seed", range(4))
def test_shares_add_up_to_the_step_and_lie_on_the_path(seed):
  rng = np.random.default_rng(seed)
  ops = [(float(us), float(size)) for us, size in rng.uniform(1, 99, (40, 2))]
  edges = {(int(rng.integers(max(0, j - 5), j)), j) for j in range(1, 40)}
  given = problem(ops, sorted(edges), overhead_us=0.5)
  placements = rng.integers(0, 2, (5, 40))
  step_us, shares = shares_of(given, *placements)
  np.testing.assert_allclose(shares.sum(axis=1), step_us)
  for row, devices in enumerate(placements):
    path = Simulator(given).schedule(devices.astype(np.int32)).critical_path
    on_path = {s.index for s in path if s.kind == "op"}
    found = set(np.flatnonzero(shares[row]).tolist())
    # A transfer that waited for its channel shares with its own producer
    # here, and the path for people goes on with what held the channel.
    assert path[-1].index in found
    assert len(found & on_path) >= 0.5 * len(on_path)
