"""The critical path, added up."""

import numpy as np
import pytest

from tests.testing import placed_graphs
from tests.testing.random_problems import costly_case, random_case
from tfplace.graph.cluster import Cluster, Device, Link
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.report.path import Part, summarize_path
from tfplace.simulate import Simulator

LINK = "gpu:0 -> gpu:1"


def summary_of(placement):
  return summarize_path(Simulator(placement.problem).schedule(placement))


def late_input():
  """r on d1: 0-2, arrives at 2. x on d0: 0-5, y on d0: 5-6, ready at 2."""
  ops = [
    OpSpec(name, "X", {"GPU": us})
    for name, us in (("x", 5.0), ("y", 1.0), ("r", 2.0))
  ]
  devices = (Device("/gpu:0", "GPU"), Device("/gpu:1", "GPU"))
  cluster = Cluster("two", devices, (Link("/gpu:1", "/gpu:0", 1.0),))
  problem = Problem(build_graph("late", ops, [(2, -1, 1)]), cluster)
  return Placement(problem, np.array([0, 0, 1]))


@pytest.mark.parametrize(
  "placement, parts",
  [
    # All is needed next, and latency is idle.
    (
      placed_graphs.chain(),
      [
        Part("link", LINK, 1, 3.0, 0.0, 0.5),
        Part("device", "gpu:0", 1, 2.0, 0.0, 0.0),
        Part("device", "gpu:1", 1, 1.0, 0.0, 0.0),
      ],
    ),
    # y could start at 0 and starts at 2.5: behind x's 2 us and the idle gap.
    (placed_graphs.queue(), [Part("device", "gpu:0", 2, 3.0, 2.0, 0.5)]),
    # Nine ops of 3 us, each reads the one before: 8 gaps are no queue.
    (
      placed_graphs.chains(1, 9, 5.75),
      [Part("device", "gpu:0", 9, 27.0, 0.0, 46.0)],
    ),
    # a/0 0-3, b/0 3.5-6.5, a/1 7-10, ..., b/3 24.5-27.5. While a/0 runs, b/0 is
    # ready; while b/0 runs, a/1 is: 7 ops of 8 run while the next one is ready.
    (
      placed_graphs.chains(2, 4, 0.5),
      [Part("device", "gpu:0", 8, 3.0, 21.0, 3.5)],
    ),
    # y queues only from when it is ready, at 2.
    (late_input(), [Part("device", "gpu:0", 2, 3.0, 3.0, 0.0)]),
    # The second transfer waits for its channel behind the first.
    (
      placed_graphs.busy_link(),
      [
        Part("link", LINK, 2, 2.0, 2.0, 1.0),
        Part("device", "gpu:0", 1, 1.0, 0.0, 0.0),
        Part("device", "gpu:1", 1, 1.0, 0.0, 0.0),
      ],
    ),
    # Sends and receives are parts of their devices.
    (
      placed_graphs.messages(),
      [
        Part("link", LINK, 1, 3.0, 0.0, 0.5),
        Part("device", "gpu:0", 1, 2.0, 0.0, 0.0, message_us=1.0),
        Part("device", "gpu:1", 2, 1.0, 0.0, 0.0, message_us=2.0),
      ],
    ),
  ],
)
def test_parts_of_the_path_by_hand(placement, parts):
  assert list(summary_of(placement).parts) == parts


def test_layers_are_the_scopes_below_the_models_own():
  path = summary_of(placed_graphs.chain())
  assert [(x.name, x.count, x.compute_us, x.devices) for x in path.layers] == [
    ("first", 1, 2.0, ("gpu:0",)),
    ("second", 1, 1.0, ("gpu:1",)),
  ]


@pytest.mark.parametrize("case", [random_case, costly_case])
def test_parts_add_up_to_the_step(case):
  rng = np.random.default_rng(0)
  for _ in range(100):
    problem, devices = case(rng)
    schedule = Simulator(problem).schedule(Placement(problem, devices))
    path = summarize_path(schedule)
    kinds = (path.compute_us, path.transfer_us, path.idle_us, path.message_us)
    for total in (sum(part.total_us for part in path.parts), sum(kinds)):
      assert total == pytest.approx(schedule.step_time_us, abs=1e-9)
    assert path.queue_us <= path.compute_us + path.transfer_us + 1e-9
    for part in path.parts:
      assert min(part.needed_us, part.queue_us, part.message_us) >= 0
      assert part.idle_us >= -1e-9
    by_layer = sum(x.compute_us for x in path.layers)
    assert by_layer == pytest.approx(path.compute_us, abs=1e-9)
