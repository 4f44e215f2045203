"""The engine equals the plain-Python reference on thousands of problems."""

import collections
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.testing import random_problems as cases
from tests.testing.equals_reference import assert_equal
from tests.testing.reference import reference_step
from tests.testing.slow import SLOW_TESTS
from tfplace.simulate import Simulator, simulator

# 500 problems each; some ten minutes with TFPLACE_SLOW_TESTS=1.
COSTLY_BLOCKS = 100 if SLOW_TESTS else 8


@pytest.mark.parametrize("block", range(8))
def test_equals_reference_on_random_problems(block):
  for seed in range(500 * block, 500 * (block + 1)):
    problem, devices = cases.random_case(np.random.default_rng(seed))
    try:
      assert_equal(problem, devices)
    except AssertionError as error:
      raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("block", range(COSTLY_BLOCKS))
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


@pytest.mark.parametrize("make", [cases.random_case, cases.costly_case])
@pytest.mark.parametrize("seed", range(60))
def test_a_cutoff_stops_only_steps_that_are_longer(seed, make):
  rng = np.random.default_rng(seed)
  problem, devices = make(rng)
  simulator = Simulator(problem)
  step = simulator.run(devices).step_time_us[0]
  assert simulator.run(devices, cutoff_us=step).step_time_us[0] == step
  if step > 0:
    shorter = simulator.run(devices, cutoff_us=step * 0.999)
    assert shorter.step_time_us[0] == math.inf and not shorter.feasible[0]
  # The workspace of the aborted run is used again, and forgets it.
  assert simulator.run(devices).step_time_us[0] == step


@pytest.mark.parametrize("seed", range(40))
def test_a_batch_equals_the_reference_row_by_row(seed, monkeypatch):
  """Evaluates parts in several threads, whose workspaces are reused."""
  monkeypatch.setattr(simulator, "MIN_PARALLEL_SIZE", 0)
  rng = np.random.default_rng(seed)
  problem, _ = cases.costly_case(rng)
  rows = np.stack([cases.random_placement(rng, problem) for _ in range(12)])
  batch = Simulator(problem, num_threads=2).run(rows)
  steps = [reference_step(problem, row).step_time_us for row in rows]
  assert batch.step_time_us.tolist() == steps


def test_costly_problems_have_what_they_are_to_cover():
  seen = collections.Counter()
  for seed in range(300):
    problem, devices = cases.costly_case(np.random.default_rng(seed))
    schedule, step = (
      Simulator(problem).schedule(devices),
      reference_step(problem, devices),
    )
    own_us = problem.time_us[np.arange(len(devices)), devices]
    moves, sent = (
      schedule.transfers,
      schedule.op_end_us > (schedule.op_start_us + own_us),
    )
    starts = set(zip(devices.tolist(), step.op_start_us, strict=True))
    waits = [
      (start, key[2])
      for key, (start, _) in step.receives.items()
      if start > step.transfers[key][1]
    ]
    arrivals = [(m[1], k) for k, m in step.transfers.items()]
    seen["zero-time op that sends"] += bool((sent & (own_us == 0)).any())
    seen["op of two sends"] += bool(
      (
        np.bincount(
          moves.src_op[moves.send_end_us > moves.send_start_us], minlength=1
        )
        > 1
      ).any()
    )
    seen["control message that is sent"] += bool(
      (moves.send_end_us > moves.send_start_us)[moves.num_bytes == 0].any()
    )
    seen["receive that waits for its device"] += bool(waits)
    seen["receive and op that wait together"] += any(
      (device, end) in starts
      for (_, _, device), (_, end) in step.receives.items()
    )
    seen["arrivals of one instant at one device"] += len(arrivals) > len(
      {(time, key[2]) for time, key in arrivals}
    )
    seen["received and other transfers"] += 0 < len(step.receives) < len(moves)
    seen["infeasible"] += not step.feasible
  assert min(seen.values()) >= 5 and len(seen) == 8, seen
