"""Steps with their order held fixed, and what gains by being faster."""

import numpy as np
import pytest

from tests.testing import placed_graphs
from tests.testing.random_problems import costly_case, random_case
from tfplace.core.placement import Placement
from tfplace.report.explain.bottleneck import find_loads, fixed_order, times_on
from tfplace.simulate import Simulator


def schedule_of(placement):
  return Simulator(placement.problem).schedule(placement)


def test_each_part_of_a_chain_gains_half_of_what_it_takes():
  # Link: 3 sending and 0.5 latency; gpu:0: 2; gpu:1: 1. Halves of these.
  loads = find_loads(schedule_of(placed_graphs.chain()))
  assert [(x.name, x.busy_us, x.gain_us) for x in loads] == [
    ("gpu:0 -> gpu:1", 3.0, 1.75),
    ("gpu:0", 2.0, 1.0),
    ("gpu:1", 1.0, 0.5),
  ]
  assert loads[0].if_twice_as_fast_us == 6.5 - 1.75


def test_launch_gaps_and_gaps_between_transfers_stay():
  # 1 + 0.5 + 1.5 with the gap of 0.5 between: 5.5 - (2 + 3) / 2.
  (load,) = find_loads(schedule_of(placed_graphs.queue()))
  assert load.if_twice_as_fast_us == 3.0
  # a 0-1; sent 1-2, gap until 3, sent 3-4; b 4-5.
  link = find_loads(schedule_of(placed_graphs.busy_link()))[0]
  assert (link.kind, link.if_twice_as_fast_us) == ("link", 5.0)


def test_sends_and_receives_stay():
  # Of 2 + 1 + 3 + 0.5 + 2 + 1, halves of the 3.5, the 2 and the 1.
  loads = find_loads(schedule_of(placed_graphs.messages()))
  assert [(x.name, x.gain_us) for x in loads] == [
    ("gpu:0 -> gpu:1", 1.75),
    ("gpu:0", 1.0),
    ("gpu:1", 0.5),
  ]


@pytest.mark.parametrize("case", [random_case, costly_case])
@pytest.mark.parametrize("seed", range(5))
def test_with_its_own_times_the_order_gives_the_simulated_step(seed, case):
  rng = np.random.default_rng(seed)
  for _ in range(150):
    problem, devices = case(rng)
    schedule = schedule_of(Placement(problem, devices))
    times = times_on(problem, schedule)
    step_us = fixed_order(schedule).step_time_us(times)
    assert step_us == pytest.approx(schedule.step_time_us, abs=1e-9)


@pytest.mark.parametrize("case", [random_case, costly_case])
@pytest.mark.parametrize("seed", range(3))
def test_in_a_fixed_order_nothing_faster_makes_the_step_longer(seed, case):
  rng = np.random.default_rng(100 + seed)
  for _ in range(40):
    problem, devices = case(rng)
    schedule = schedule_of(Placement(problem, devices))
    order, times = fixed_order(schedule), times_on(problem, schedule)
    faster = type(times)(*(t * rng.random(len(t)) for t in times))
    assert order.step_time_us(faster) <= schedule.step_time_us + 1e-9
    assert all(load.gain_us >= 0 for load in find_loads(schedule))
