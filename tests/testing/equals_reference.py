"""Checks that the engine and the reference agree."""

import numpy as np
import pytest

from tests.testing.reference import reference_step
from tfplace.simulate import Simulator


def assert_equal(problem, devices):
  simulator = Simulator(problem)
  schedule = simulator.schedule(devices)
  (evaluation,) = simulator.evaluate(devices[np.newaxis])
  expected = reference_step(problem, devices)
  # The same sums in the same order: times are equal to the last bit.
  assert schedule.op_start_us.tolist() == expected.op_start_us
  assert schedule.op_end_us.tolist() == expected.op_end_us
  assert evaluation.step_time_us == expected.step_time_us
  assert evaluation.feasible == expected.feasible
  names = [device.name for device in problem.cluster.devices]
  for actual, wanted in (
    (evaluation.peak_memory_bytes, expected.peak_memory_bytes),
    (evaluation.busy_us, expected.busy_us),
  ):
    assert [actual[name] for name in names] == pytest.approx(
      wanted, rel=1e-9, abs=1e-12
    )
  assert evaluation.bytes_moved == pytest.approx(expected.bytes_moved, rel=1e-9)
  moves = schedule.transfers
  columns = (moves.src_op, moves.output, moves.dst)
  keys = list(zip(*(c.tolist() for c in columns), strict=True))
  times = (moves.start_us.tolist(), moves.arrival_us.tolist())
  assert dict(zip(keys, zip(*times, strict=True), strict=True)) == (
    expected.transfers
  )
  received = [
    (key, (start, end))
    for key, arrival, start, end in zip(
      keys,
      moves.arrival_us.tolist(),
      moves.recv_start_us.tolist(),
      moves.recv_end_us.tolist(),
      strict=True,
    )
    if key in expected.receives or end != arrival
  ]
  assert dict(received) == expected.receives
  assert len(keys) == len(expected.transfers)
  bound = problem.lower_bound_us
  assert bound <= evaluation.step_time_us * (1 + 1e-12)
