"""Moves of ops, other hardware, sentences and JSON."""

import json
import math

import numpy as np
import pytest

from tests.testing import placed_graphs
from tfplace.core.cluster import Cluster, Device, Link
from tfplace.core.op_graph import OpSpec, build_graph
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.errors import TfplaceError
from tfplace.report.explain import explain, summary, what_if
from tfplace.report.explain.one_op import op_summary
from tfplace.report.explain.output import (
  explanation_tables,
  explanation_to_json,
)


def test_moving_an_op_moves_all_that_must_stay_with_it():
  # b to gpu:0: it starts when a ends, 2-3, and 6 + 9 bytes exceed its 12.
  op = explain(placed_graphs.chain(), "m/second/b").op
  (move,) = op.moves
  assert (move.device, move.step_time_us, move.change_us) == ("gpu:0", 3, -3.5)
  assert (move.fits, move.reason) == (False, "does not fit in memory")
  assert (op.received_bytes, op.sent_bytes, op.is_critical) == (6, 0, True)
  # a takes z along; then all runs on gpu:1, 0-2 and 2-3.
  op = explain(placed_graphs.chain(), "m/first/a").op
  assert op.colocation == ("m/first/z",)
  assert (op.moves[0].step_time_us, op.moves[0].fits) == (3, True)
  words = " ".join(op_summary(op, 6.5))
  assert "It is colocated with m/first/z" in words
  assert "shorten the step by 3.5 us (54%)" in words


def test_the_order_of_a_plan_is_named_unless_it_is_arrival():
  placement = placed_graphs.chain()
  arrival = explain(placement)
  assert "by rank" not in " ".join(summary(arrival))
  assert explanation_to_json(arrival)["order"] == "arrival"
  ranked = explain(
    Placement(placement.problem.in_order("rank"), placement.devices)
  )
  assert "Devices take their ops by rank" in " ".join(summary(ranked))
  assert explanation_to_json(ranked)["order"] == "rank"


def test_a_move_that_is_not_allowed_says_why():
  # x feeds y; there is no link back from gpu:1, and no kernel on the CPU.
  ops = [
    OpSpec("x", "X", {"GPU": 1.0}, [1.0]),
    OpSpec("y", "Y", {"GPU": 1.0, "CPU": 5.0}),
  ]
  devices = (Device("g0", "GPU"), Device("g1", "GPU"), Device("c", "CPU"))
  cluster = Cluster("c", devices, (Link("g0", "c", 1.0),))
  problem = Problem(build_graph("g", ops, [(0, 0, 1)]), cluster)
  placement = Placement(problem, np.array([0, 0]))
  op = explain(placement, "x").op
  assert ["no link" in op.moves[0].reason, op.moves[0].step_time_us] == [
    True,
    None,
  ]
  assert "cannot run on c" in op.moves[1].reason
  assert "no other device is possible" in op_summary(op, 2.0)[-1]
  # y on the CPU: x 0-1, its byte 1-2, y 2-7, against 2 here.
  op = explain(placement, "y").op
  assert [m.change_us for m in op.moves] == [None, 5.0]
  assert "5 us longer with it on c" in op_summary(op, 2.0)[-1]


@pytest.mark.parametrize(
  "name, hint",
  [
    ("m/first/aa", "near names: 'm/first/a'"),
    ("m/first", "ops below that name: 'm/first/a', 'm/first/z'"),
    ("first", "near names: 'm/first/a', 'm/first/z'"),
    ("nothing-like-it", "has no op 'nothing-like-it'"),
  ],
)
def test_an_unknown_op_is_answered_with_those_that_are_near(name, hint):
  with pytest.raises(TfplaceError, match=hint):
    explain(placed_graphs.chain(), name)


def test_other_hardware_is_simulated_by_hand():
  # Twice the bandwidth and half the latency: 2 + 1.5 + 0.25 + 1; free: 3.
  tried = {x.name: x for x in explain(placed_graphs.chain()).what_if}
  assert [(x.step_time_us, x.same_order_us) for x in tried.values()] == [
    (6.5, 6.5),
    (6.5, 6.5),
    (4.75, 4.75),
    (3.0, 3.0),
  ]
  assert list(tried)[:2] == ["as it is", "one more GPU"]
  # Without links there is only the launch gap: 2 + 3.
  tried = explain(placed_graphs.queue()).what_if
  assert [x.step_time_us for x in tried] == [5.5, 5.0]


def test_a_search_finds_what_one_more_device_gives():
  explanation = explain(placed_graphs.three_branches(), seconds=0.5)
  now, more, *_ = explanation.what_if
  assert (now.replaced_us, now.replaced_by) == (22.0, "the same placement")
  assert (more.step_time_us, more.replaced_us) == (22.0, 14.0)
  assert more.lower_bound_us <= 14.0
  assert "nothing better" in " ".join(summary(explanation))


def test_one_more_device_has_copied_links_and_own_channels():
  names = [f"/job:w/device:GPU:{i}" for i in range(2)]
  links = (
    Link(names[0], names[1], 5.0, 1.0, channel="out 0"),
    Link(names[0], "cpu", 3.0, channel="out 0"),
    Link(names[1], names[0], 5.0, 1.0, channel="pair"),
    Link(names[1], "cpu", 3.0, channel="switch"),
    Link("cpu", names[0], 3.0, channel="switch"),
  )
  devices = (*(Device(n, "GPU", 7.0) for n in names), Device("cpu", "C"))
  more = what_if.one_more_device(Cluster("c", devices, links), 0)
  new = "/job:w/device:GPU:2"
  assert more.devices[3] == Device(new, "GPU", 7.0)
  assert more.links[:5] == links
  added = {(x.src, x.dst): x for x in more.links[5:]}
  assert {
    ends: (x.bandwidth_bytes_per_us, x.channel) for ends, x in added.items()
  } == {
    (new, names[1]): (5.0, f"out 0 of {new}"),
    (new, "cpu"): (3.0, f"out 0 of {new}"),
    (names[1], new): (5.0, None),  # a channel of that one link alone
    ("cpu", new): (3.0, "switch"),
    (names[0], new): (5.0, "out 0"),
    (new, names[0]): (5.0, f"out 0 of {new}"),
  }


def test_the_summary_names_bound_bottleneck_and_idle_devices():
  words = " ".join(summary(explain(placed_graphs.chain())))
  # The longest path, communication free, is 3; 6.5 / 3.
  assert "2.17 times the lower bound of 3 us" in words
  assert "more than 54%" in words
  assert "The bottleneck is link gpu:0 -> gpu:1, busy for 46%" in words
  assert "46% computation, 46% communication and 7.7% latency of links" in words
  alone = placed_graphs.three_branches()
  alone = Placement(alone.problem, np.zeros(5, int))
  words = " ".join(summary(explain(alone)))
  assert "gpu:1 computes nothing." in words
  assert "It fits" not in words  # nothing is limited


def test_sending_is_said_where_devices_spend_time_on_it():
  # 3 us of 9.5 are spent on it; free communication leaves 2 + 1.
  explanation = explain(placed_graphs.messages())
  words = " ".join(summary(explanation))
  assert "32% sending and receiving" in words
  tried = {x.name: x.step_time_us for x in explanation.what_if}
  assert (tried["as it is"], tried["free communication"]) == (9.5, 3.0)
  data = explanation_to_json(explanation)
  assert data["critical_path"]["message_us"] == 3.0
  assert headers_of(explanation)[4] == "sends, receives"
  plain = explain(placed_graphs.chain())
  assert "receiv" not in " ".join(summary(plain))
  assert "sends, receives" not in headers_of(plain)


def headers_of(explanation):
  tables = [x for x in explanation_tables(explanation) if hasattr(x, "columns")]
  return [str(column.header) for column in tables[0].columns]


def test_what_does_not_fit_is_said():
  moved = placed_graphs.chain()
  both = Placement(moved.problem, np.array([0, 0, 0]))
  explanation = explain(both)
  assert not explanation.is_feasible
  assert "does not fit: gpu:0 needs 15 B and has 12 B" in " ".join(
    summary(explanation)
  )


def test_json_is_plain_and_complete():
  data = explanation_to_json(explain(placed_graphs.chain(), "m/first/a"))
  data = json.loads(json.dumps(data, allow_nan=False))
  assert data["format"] == "tfplace.explanation.v1"
  assert data["bottleneck"] == {"kind": "link", "name": "gpu:0 -> gpu:1"}
  assert [d["memory_bytes"] for d in data["devices"]] == [12.0, None]
  assert math.isclose(data["ratio_to_bound"], 6.5 / 3)
  path = data["critical_path"]
  assert path["compute_us"] + path["transfer_us"] + path["idle_us"] == 6.5
  assert data["op"]["moves"][0]["step_time_us"] == 3
  assert data["summary"] and data["what_if"][0]["name"] == "as it is"


def test_an_empty_graph_is_explained():
  problem = Problem(
    build_graph("g", [], []), Cluster("c", (Device("d", "GPU"),))
  )
  explanation = explain(Placement(problem, np.zeros(0, np.int32)))
  assert explanation.path.parts == ()
  assert summary(explanation)[0].startswith("A step of g (0 ops) on c takes")
  json.dumps(explanation_to_json(explanation), allow_nan=False)
