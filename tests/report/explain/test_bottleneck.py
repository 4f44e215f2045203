"""Steps with their order held fixed, and what gains by being faster."""

import numpy as np
import pytest

from tests.testing import placed_graphs
from tests.testing.random_problems import costly_case, random_case
from tfplace.graph.placement import Placement
from tfplace.report.explain.bottleneck import FixedOrder, find_loads
from tfplace.simulate import Simulator


def order_of(placement):
  return FixedOrder(Simulator(placement.problem).schedule(placement))


@pytest.mark.parametrize(
  "placement, gains",
  [
    # Link: 3 sending and 0.5 latency; gpu:0: 2; gpu:1: 1. Halves of these;
    # sends and receives stay.
    (placed_graphs.chain(), {"link": 1.75, "gpu:0": 1.0, "gpu:1": 0.5}),
    (placed_graphs.messages(), {"link": 1.75, "gpu:0": 1.0, "gpu:1": 0.5}),
    # Launch gaps stay: 1 + 0.5 + 1.5 in place of 5.5.
    (placed_graphs.queue(), {"gpu:0": 2.5}),
    # So do gaps of the link: a 0-1; sent 1-2, gap until 3, sent 3-4; b 4-5.
    (placed_graphs.busy_link(), {"link": 2.0, "gpu:0": 0.5, "gpu:1": 0.5}),
  ],
)
def test_gains_by_hand(placement, gains):
  order = order_of(placement)
  loads = find_loads(order)
  found = {x.kind if x.kind == "link" else x.name: x.gain_us for x in loads}
  assert list(found.items()) == list(gains.items())
  for load in loads:
    assert load.if_twice_as_fast_us == order.step_us - load.gain_us


@pytest.mark.parametrize("case", [random_case, costly_case])
def test_fixed_order_is_exact_and_monotone(case):
  rng = np.random.default_rng(0)
  for _ in range(200):
    problem, devices = case(rng)
    order = order_of(Placement(problem, devices))
    step_us = order.schedule.step_time_us
    assert order.step_us == pytest.approx(step_us, abs=1e-9)
    faster = type(order.times)(*(t * rng.random(len(t)) for t in order.times))
    assert order.step_time_us(faster) <= step_us + 1e-9
    assert all(load.gain_us >= 0 for load in find_loads(order))
