"""A microbatched step: how microbatches are used, the bubble, and limits."""

import dataclasses

import numpy as np
import pytest

from tests.testing import placed_graphs
from tests.testing.random_problems import costly_case, random_case
from tfplace.graph import phases
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.report import parallelism
from tfplace.report.explain import microbatches as limits
from tfplace.report.explain.bottleneck import FixedOrder
from tfplace.simulate import Simulator


def by_stage(microbatch, layer):
  return layer


def by_microbatch(microbatch, layer):
  return layer if microbatch is None else microbatch


def on_one(microbatch, layer):
  return 0


def two_by_two(microbatch, layer):
  replica = 0 if microbatch is None else microbatch // 2
  return 2 * replica + layer


def mixed(microbatch, layer):
  """Layers 0 and 1 by stage, 2 and 3 by microbatch."""
  if layer < 2:
    return layer
  return layer % 2 if microbatch is None else microbatch % 2


def report_of(placement):
  schedule = Simulator(placement.problem).schedule(placement)
  return schedule, limits.report_microbatches(FixedOrder(schedule))


def found_in(placement):
  schedule = Simulator(placement.problem).schedule(placement)
  return parallelism.find_parallelism(schedule)


@pytest.mark.parametrize(
  "arguments, options, step_us, name, gain_us",
  [
    # g1 begins at 1, when the first microbatch has passed g0, and computes 4
    # times 9 + 9 us; g0 ends 1 later. Spread evenly, stages of 5: 5 + 40 + 5.
    (([1.0, 9.0], 4, by_stage), {}, 74, limits.BALANCE, 24),
    # g1: 5-25, waiting for 5 before and after; g0: 0-10 and 15-20, 25-30.
    (([5.0, 5.0], 2, by_stage), {}, 30, limits.FILL, 10),
    # 100 bytes to g1 take 50 us; there 10 + 10 follow. Without, 20 in all.
    (([10.0], 2, by_microbatch), {"read_bytes": 100.0}, 70, limits.LINKS, 50),
    # Both microbatches are done at 20, then one device updates for 30.
    (
      ([10.0], 2, by_microbatch),
      {"update_us": 30.0},
      50,
      limits.THE_UPDATE,
      30,
    ),
    # On each device 1 us, 5 of overhead, 1, 5; then gradients are added.
    (([1.0], 2, by_microbatch), {"overhead_us": 5.0}, 12, limits.OVERHEAD, 10),
    # Nothing of the microbatches holds it back.
    (([10.0], 2, by_microbatch), {}, 20, limits.BALANCE, 0),
  ],
)
def test_largest_limit_by_hand(arguments, options, step_us, name, gain_us):
  schedule, report = report_of(placed_graphs.split_step(*arguments, **options))
  assert schedule.step_time_us == step_us
  assert report.limits[0] == limits.Limit(name, gain_us)
  assert all(limit.gain_us <= gain_us for limit in report.limits)
  if name == limits.THE_UPDATE:
    assert report.tail_us == 30
  if name == limits.BALANCE and gain_us:
    # Then each of the two waits for 10: to fill it, or to drain it.
    assert limits.Limit(limits.FILL, 10) in report.limits
    assert report.bubble == pytest.approx(1 - (8 + 72) / 148)
    assert report.microbatch_us == [[2, 18]] * 4
    assert report.devices[1].forward_us == 36


@pytest.mark.parametrize(
  "device_of, layers, microbatches, pattern, groups",
  [
    (on_one, 2, 3, parallelism.ONE_DEVICE, [((0, 1, 2), (0,))]),
    (
      by_microbatch,
      2,
      3,
      parallelism.DATA_PARALLEL,
      [((i,), (i,)) for i in range(3)],
    ),
    (by_stage, 3, 2, parallelism.PIPELINE, [((0, 1), (0, 1, 2))]),
    (
      two_by_two,
      2,
      4,
      parallelism.PIPELINES,
      [((0, 1), (0, 1)), ((2, 3), (2, 3))],
    ),
    (mixed, 4, 2, parallelism.MIXTURE, [((0, 1), (0, 1))]),
  ],
)
def test_pattern_is_found_in_the_placement(
  device_of, layers, microbatches, pattern, groups
):
  step = placed_graphs.split_step([4.0] * layers, microbatches, device_of)
  found = found_in(step)
  assert (found.pattern, found.followed) == (pattern, 1)
  assert list(found.groups) == groups


@pytest.mark.parametrize("case", [random_case, costly_case])
def test_times_of_a_device_add_up_to_the_step(case):
  rng = np.random.default_rng(0)
  seen = 0
  for _ in range(60):
    problem, devices = case(rng)
    number = rng.integers(-1, 3, problem.graph.num_ops).astype(np.int32)
    graph = dataclasses.replace(problem.graph, microbatch=number)
    placement = Placement(Problem(graph, problem.cluster), devices)
    schedule, report = report_of(placement)
    assert (report is None) == (not phases.is_microbatched(graph))
    if report is None:
      continue
    seen += 1
    for device in report.devices:
      parts = dataclasses.astuple(device)[1:]
      assert min(parts) >= -1e-9
      assert sum(parts) == pytest.approx(schedule.step_time_us, abs=1e-6)
    assert min(limit.gain_us for limit in report.limits) >= 0
    assert -1e-9 <= report.bubble <= 1
  assert seen > 40
