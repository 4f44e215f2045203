"""Schedules: memory curves and critical paths."""

import itertools

import numpy as np
import pytest

from tests.testing import random_problems as cases
from tests.testing.reference import Reference
from tfplace.graph.cluster import Cluster, Device, Link
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.problem import Problem
from tfplace.simulate import Simulator, critical_path


def small_schedule():
  """a (2 us, 6 bytes, 1 us idle), then b on d0; c on d1 reads both."""
  ops = [
    OpSpec("a", "Op", {"GPU": 2.0}, [6.0], persistent_bytes=1.0),
    OpSpec("b", "Op", {"GPU": 4.0}, [2.0], temp_bytes=10.0),
    OpSpec("c", "Op", {"GPU": 1.0}),
  ]
  cluster = Cluster(
    "c",
    (Device("d0", "GPU", op_overhead_us=1.0), Device("d1", "GPU")),
    (Link("d0", "d1", 2.0, 0.5, 3.0),),
  )
  problem = Problem(build_graph("g", ops, [(0, 0, 2), (1, 0, 2)]), cluster)
  return Simulator(problem).schedule(np.array([0, 0, 1]))


def test_schedule_by_hand():
  # a 0-2; its 6 bytes 2-5, arrive 5.5, channel free at 8. b 3-7; its 2 bytes
  # are queued at 7, go 8-9, arrive 9.5. c 9.5-10.5.
  s = small_schedule()
  assert s.op_start_us.tolist() == [0.0, 3.0, 9.5]
  assert s.op_end_us.tolist() == [2.0, 7.0, 10.5]
  assert s.step_time_us == 10.5
  assert s.transfers.start_us.tolist() == [2.0, 8.0]
  assert s.transfers.sent_us.tolist() == [5.0, 9.0]
  assert s.transfers.arrival_us.tolist() == [5.5, 9.5]
  assert s.transfers.free_us.tolist() == [8.0, 12.0]


def test_memory_curve_by_hand():
  # d0: 1 always; a's 6 from 0 to 5.5; b's 2 from 3 to 9.5, its 10 from 3 to 7.
  # d1: 6 from 2, 2 from 8, both until 10.5.
  first, second = small_schedule().memory
  assert first.time_us.tolist() == [0.0, 3.0, 5.5, 7.0, 9.5]
  assert first.num_bytes.tolist() == [7.0, 19.0, 13.0, 3.0, 1.0]
  assert second.time_us.tolist() == [0.0, 2.0, 8.0, 10.5]
  assert second.num_bytes.tolist() == [0.0, 6.0, 8.0, 0.0]


def test_critical_path_by_hand():
  # b's transfer waits for the channel that a's holds until 8.
  path = critical_path.segments(small_schedule())
  assert [(s.kind, s.index, s.waited_for) for s in path] == [
    ("op", 0, "begin"),
    ("transfer", 0, "input"),
    ("transfer", 1, "channel"),
    ("op", 2, "input"),
  ]


@pytest.mark.parametrize("make", [cases.random_case, cases.costly_case])
@pytest.mark.parametrize("seed", range(50))
def test_curves_and_paths_of_random_schedules(seed, make):
  problem, devices = make(np.random.default_rng(seed))
  s = Simulator(problem).schedule(devices)
  # The kernel's peak is the curve's.
  peaks = [curve.num_bytes.max() for curve in s.memory]
  assert peaks == pytest.approx(s.peak_memory_bytes.tolist(), abs=1e-9)
  # And the reference's intervals, at every time that occurs.
  reference = Reference(problem, devices.tolist())
  reference.run()
  for d, curve in enumerate(s.memory):
    held = list(reference.intervals(d))
    always = problem.graph.persistent_bytes[devices == d].sum()
    for time, size in zip(*curve, strict=True):
      expected = always + sum(b for t0, t1, b in held if t0 <= time < t1)
      assert size == pytest.approx(expected, abs=1e-9)
  assert_path_is_tight(s)


def assert_path_is_tight(s):
  """Each segment starts exactly when the one before lets it."""
  path = critical_path.segments(s)
  if not path:
    assert s.placement.problem.graph.num_ops == 0
    return
  devices = s.placement.devices
  cluster = s.placement.problem.cluster
  own_us = s.placement.problem.time_us[np.arange(len(devices)), devices]
  assert path[0].start_us == 0.0 and path[0].waited_for == "begin"
  assert path[-1].kind == "op" and path[-1].end_us == s.step_time_us

  def device_of(segment):
    is_op = segment.kind == "op"
    return (devices if is_op else s.transfers.dst)[segment.index]

  for before, after in itertools.pairwise(path):
    if after.waited_for == "input":
      assert before.end_us == after.start_us
    elif after.waited_for == "device":
      assert device_of(before) == device_of(after)
      idle = 0.0
      if before.kind == "op" and own_us[before.index] > 0:
        idle = cluster.op_overhead_us[device_of(before)]
      assert before.end_us + idle == after.start_us
    else:
      channel = s.transfers.channel
      assert channel[before.index] == channel[after.index]
      assert s.transfers.free_us[before.index] == after.start_us
