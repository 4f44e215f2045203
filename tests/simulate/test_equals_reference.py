"""The engine equals the plain-Python reference on thousands of problems."""

import math

import numpy as np
import pytest
import random_problems as cases
from hypothesis import HealthCheck, given, settings
from reference import reference_step

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


@pytest.mark.parametrize("block", range(8))
def test_equals_reference_on_random_problems(block):
  for seed in range(500 * block, 500 * (block + 1)):
    problem, devices = cases.random_case(np.random.default_rng(seed))
    try:
      assert_equal(problem, devices)
    except AssertionError as error:
      raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("block", range(8))
def test_equals_reference_where_messages_take_time_of_devices(block):
  for seed in range(500 * block, 500 * (block + 1)):
    problem, devices = cases.costly_case(np.random.default_rng(seed))
    try:
      assert_equal(problem, devices)
    except AssertionError as error:
      raise AssertionError(f"seed {seed}: {error}") from error


@settings(
  max_examples=400,
  deadline=None,
  derandomize=True,
  suppress_health_check=[HealthCheck.too_slow],
)
@given(cases.tied_cases())
def test_equals_reference_where_nearly_everything_ties(case):
  assert_equal(*case)


def test_random_problems_have_what_they_are_to_cover():
  seen = dict.fromkeys(
    (
      "zero-time op",
      "control transfer",
      "transfer of 0 bytes",
      "shared channel",
      "infeasible",
      "no ops",
      "one device",
      "colocation",
      "op that cannot run everywhere",
      "transfer that waits for its channel",
      "op with two outputs that are read",
      "output that nobody reads",
      "same start of two ops on one device",
    ),
    0,
  )
  for seed in range(300):
    problem, devices = cases.random_case(np.random.default_rng(seed))
    graph, cluster = problem.graph, problem.cluster
    schedule = Simulator(problem).schedule(devices)
    moves = schedule.transfers
    edges = np.stack([graph.edge_src, graph.edge_output], axis=1)
    read = {tuple(e) for e in edges[graph.edge_output >= 0].tolist()}
    starts = list(zip(devices, schedule.op_start_us, strict=True))
    off_src = cluster.channel[cluster.channel >= 0]
    found = {
      "zero-time op": (schedule.op_end_us == schedule.op_start_us).any(),
      "control transfer": (moves.output < 0).any(),
      "transfer of 0 bytes": (
        (moves.num_bytes == 0) & (moves.output >= 0)
      ).any(),
      "shared channel": len(np.unique(off_src)) < len(off_src),
      "infeasible": (schedule.peak_memory_bytes > cluster.memory_bytes).any(),
      "no ops": graph.num_ops == 0,
      "one device": cluster.num_devices == 1,
      "colocation": (np.bincount(graph.colocation + 1)[1:] > 1).any(),
      "op that cannot run everywhere": not problem.allowed.all(),
      "transfer that waits for its channel": (
        moves.start_us > schedule.op_end_us[moves.src_op]
      ).any(),
      "op with two outputs that are read": len({s for s, _ in read})
      < len(read),
      "output that nobody reads": len(read) < len(graph.output_bytes),
      "same start of two ops on one device": len(set(starts)) < len(starts),
    }
    for name, holds in found.items():
      seen[name] += bool(holds)
  assert all(count >= 5 for count in seen.values()), seen


@pytest.mark.parametrize("seed", range(20))
def test_equals_reference_on_larger_problems(seed):
  rng = np.random.default_rng(seed)
  cluster = cases.random_cluster(rng, 4, integers=True)
  graph = cases.random_graph(rng, 60, integers=True)
  problem = cases.Problem(graph, cluster)
  assert_equal(problem, cases.random_placement(rng, problem))


@pytest.mark.parametrize("seed", range(60))
def test_a_cutoff_stops_only_steps_that_are_longer(seed):
  rng = np.random.default_rng(seed)
  problem, devices = cases.random_case(rng)
  simulator = Simulator(problem)
  step = simulator.run(devices).step_time_us[0]
  assert simulator.run(devices, cutoff_us=step).step_time_us[0] == step
  if step > 0:
    shorter = simulator.run(devices, cutoff_us=step * 0.999)
    assert shorter.step_time_us[0] == math.inf and not shorter.feasible[0]
  # The workspace of the aborted run is used again, and forgets it.
  assert simulator.run(devices).step_time_us[0] == step
