"""The critical path, added up."""

import numpy as np
import pytest

from tests.testing import placed_graphs
from tests.testing.random_problems import costly_case, random_case
from tfplace.core.cluster import Cluster, Device, Link
from tfplace.core.op_graph import OpSpec, build_graph
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.report.explain import explain, summary
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


def test_an_op_waits_for_its_device_behind_the_op_before():
  # y could start at 0 and starts at 2.5: behind x's 2 us and the idle gap.
  path = summary_of(placed_graphs.queue())
  assert path.parts == (Part("device", "gpu:0", 2, 3.0, 2.0, 0.5),)
  assert path.queue_us == 2.0


def test_the_launch_gap_before_a_dependent_op_is_no_queue():
  # Nine ops of 3 us, each reads the one before, and eight gaps of 5.7 us.
  placement = placed_graphs.chains(1, 9, 5.7)
  path = summary_of(placement)
  assert path.queue_us == 0 and path.compute_us == 27
  assert path.launch_us == pytest.approx(8 * 5.7)
  assert path.latency_us == 0
  text = " ".join(summary(explain(placement)))
  assert "37% computation and 63% launch overhead of ops" in text  # of 72.6
  assert "queued" not in text


def test_chains_that_share_a_device_queue_for_it():
  # a/0 0-3, b/0 3.5-6.5, a/1 7-10, ..., b/3 24.5-27.5. While a/0 runs, b/0 is
  # ready; while b/0 runs, a/1 is: 7 ops of 8 run while the next one is ready.
  placement = placed_graphs.chains(2, 4, 0.5)
  path = summary_of(placement)
  assert path.parts == (Part("device", "gpu:0", 8, 3.0, 21.0, 3.5),)
  text = " ".join(summary(explain(placement)))
  assert "For 76% of the step" in text  # 21 of 27.5
  assert "queued for a busy device" in text


def test_an_op_queues_only_from_when_it_is_ready():
  # r on d1: 0-2, arrives at 2. x on d0: 0-5, y on d0: 5-6, ready at 2.
  ops = [
    OpSpec(name, "X", {"GPU": us}) for name, us in (("x", 5.0), ("y", 1.0))
  ]
  ops.append(OpSpec("r", "X", {"GPU": 2.0}))
  devices = (Device("/gpu:0", "GPU"), Device("/gpu:1", "GPU"))
  cluster = Cluster("two", devices, (Link("/gpu:1", "/gpu:0", 1.0),))
  problem = Problem(build_graph("late", ops, [(2, -1, 1)]), cluster)
  path = summary_of(Placement(problem, np.array([0, 0, 1])))
  assert path.parts == (Part("device", "gpu:0", 2, 3.0, 3.0, 0.0),)


def test_a_transfer_waits_for_its_channel_behind_the_other():
  path = summary_of(placed_graphs.busy_link())
  assert path.parts[0] == Part("link", "gpu:0 -> gpu:1", 2, 2.0, 2.0, 1.0)
  assert path.queues_us == {"link": 2.0}
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
