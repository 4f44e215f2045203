"""The critical path, added up."""

import numpy as np
import pytest

from tests.testing import placed_graphs
from tests.testing.random_problems import costly_case, random_case
from tfplace.core.placement import Placement
from tfplace.report.explain.path import Part, summarize_path
from tfplace.simulate import Simulator


def summary_of(placement):
  return summarize_path(Simulator(placement.problem).schedule(placement))


def test_a_chain_is_all_needed_and_latency_is_idle():
  path = summary_of(placed_graphs.chain())
  assert path.parts == (
    Part("link", "gpu:0 -> gpu:1", 1, 3.0, 0.0, 0.5),
    Part("device", "gpu:0", 1, 2.0, 0.0, 0.0),
    Part("device", "gpu:1", 1, 1.0, 0.0, 0.0),
  )
  assert (path.compute_us, path.transfer_us, path.idle_us) == (3.0, 3.0, 0.5)
  assert path.queue_us == 0


def test_an_op_that_waits_for_its_device_waits_behind_the_op_before():
  # y could start at 0 and starts at 2.5: behind x's 2 us and the idle gap.
  path = summary_of(placed_graphs.queue())
  assert path.parts == (Part("device", "gpu:0", 2, 3.0, 2.0, 0.5),)
  assert path.queue_us == 2.0


def test_a_transfer_that_waits_for_its_channel_waits_behind_the_other():
  path = summary_of(placed_graphs.busy_link())
  assert path.parts[0] == Part("link", "gpu:0 -> gpu:1", 2, 2.0, 2.0, 1.0)
  assert sum(part.total_us for part in path.parts) == 7.0


def test_layers_are_the_scopes_below_the_models_own():
  path = summary_of(placed_graphs.chain())
  assert [(x.name, x.count, x.compute_us, x.devices) for x in path.layers] == [
    ("first", 1, 2.0, ("gpu:0",)),
    ("second", 1, 1.0, ("gpu:1",)),
  ]


def test_sends_and_receives_are_parts_of_their_devices():
  path = summary_of(placed_graphs.messages())
  assert path.parts == (
    Part("link", "gpu:0 -> gpu:1", 1, 3.0, 0.0, 0.5),
    Part("device", "gpu:0", 1, 2.0, 0.0, 0.0, message_us=1.0),
    Part("device", "gpu:1", 2, 1.0, 0.0, 0.0, message_us=2.0),
  )
  assert (path.compute_us, path.message_us) == (3.0, 3.0)
  assert [x.compute_us for x in path.layers] == [2.0, 1.0]


@pytest.mark.parametrize("case", [random_case, costly_case])
@pytest.mark.parametrize("seed", range(5))
def test_the_parts_add_up_to_the_step(seed, case):
  rng = np.random.default_rng(seed)
  for _ in range(40):
    problem, devices = case(rng)
    schedule = Simulator(problem).schedule(Placement(problem, devices))
    path = summarize_path(schedule)
    total = sum(part.total_us for part in path.parts)
    assert total == pytest.approx(schedule.step_time_us, abs=1e-9)
    assert min((p.idle_us for p in path.parts), default=0) >= -1e-9
    assert min((p.message_us for p in path.parts), default=0) >= -1e-9
    assert sum(x.compute_us for x in path.layers) == pytest.approx(
      path.compute_us, abs=1e-9
    )
