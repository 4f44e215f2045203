"""Traces and timelines of simulated steps."""

import dataclasses
import gzip
import json

import matplotlib.colors
import numpy as np
import pytest

from tfplace.core.cluster import Cluster, Device, Link
from tfplace.core.op_graph import OpSpec, build_graph
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.errors import FormatError
from tfplace.report import op_colors, timeline, trace
from tfplace.simulate import Simulator


def two_device_placement():
  """a 0-2 on d0; its 6 bytes 2-5, arrive 5.5; b 5.5-6.5 on d1."""
  ops = [
    OpSpec("a", "Mat$Mul$", {"GPU": 2.0}, [6.0], temp_bytes=1.0),
    OpSpec("b_$x$", "Relu", {"GPU": 1.0}),
    OpSpec("z", "NoOp", {"GPU": 0.0}),
  ]
  cluster = Cluster(
    "c",
    tuple(
      Device(f"/job:w/task:0/device:GPU:{i}", "GPU", 10.0) for i in range(2)
    ),
    (
      Link(
        "/job:w/task:0/device:GPU:0", "/job:w/task:0/device:GPU:1", 2.0, 0.5
      ),
    ),
  )
  graph = build_graph("g", ops, [(0, 0, 1), (0, -1, 2)])
  return Placement(Problem(graph, cluster), np.array([0, 1, 0]))


def events_of(data, phase):
  return [e for e in data["traceEvents"] if e["ph"] == phase]


def test_trace_has_each_op_and_transfer_at_its_time():
  schedule = Simulator(two_device_placement().problem).schedule(
    two_device_placement().devices
  )
  data = trace.make_trace(schedule)
  slices = {
    (e["name"], e["pid"], e["tid"]): (e["ts"], e["dur"])
    for e in events_of(data, "X")
  }
  assert slices == {
    ("a", trace.DEVICES, 0): (0.0, 2.0),
    ("z", trace.DEVICES, 0): (2.0, 0.0),
    ("b_$x$", trace.DEVICES, 1): (5.5, 1.0),
    ("a:0", trace.CHANNELS, 0): (2.0, 3.0),
    ("a", trace.CRITICAL, 0): (0.0, 2.0),
    ("a:0", trace.CRITICAL, 0): (2.0, 3.5),
    ("b_$x$", trace.CRITICAL, 0): (5.5, 1.0),
  }


def test_trace_names_devices_channels_and_counts_memory():
  placement = two_device_placement()
  data = trace.make_trace(Simulator(placement.problem).schedule(placement))
  names = {
    (e["pid"], e["tid"]): e["args"]["name"]
    for e in events_of(data, "M")
    if e["name"] == "thread_name"
  }
  assert names == {
    (trace.DEVICES, 0): "/job:w/task:0/device:GPU:0",
    (trace.DEVICES, 1): "/job:w/task:0/device:GPU:1",
    (trace.CHANNELS, 0): "GPU:0 -> GPU:1",
  }
  counts = [
    (e["ts"], e["args"]["bytes"])
    for e in events_of(data, "C")
    if e["name"] == "memory GPU:0"
  ]
  # a: 6 bytes and 1 temporary from 0; 6 until they have arrived, at 5.5.
  assert counts == [(0.0, 7.0), (2.0, 6.0), (5.5, 0.0)]


@pytest.mark.parametrize(
  "name, reader", [("t.json", open), ("t.json.gz", gzip.open)]
)
def test_trace_file_is_json_and_leaves_nothing_else(tmp_path, name, reader):
  trace.save_trace(two_device_placement(), tmp_path / name)
  with reader(tmp_path / name, "rt") as file:
    assert json.load(file)["otherData"]["step_time_us"] == 6.5
  assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_timeline_is_drawn_in_each_format(tmp_path, suffix):
  path = tmp_path / f"t.{suffix}"
  timeline.save_timeline(two_device_placement(), path)
  assert path.stat().st_size


def test_timeline_draws_a_bar_per_op_and_transfer():
  placement = two_device_placement()
  figure = timeline.draw_timeline(
    Simulator(placement.problem).schedule(placement)
  )
  tracks, memory = figure.axes
  bars = sum(len(c.get_paths()) for c in tracks.collections)
  assert bars == 2 + 1 + 3  # a and b; the transfer; the critical path
  labels = [t.get_text() for t in tracks.get_yticklabels()]
  # a takes 2 of 6.5 us, 31%; b takes 1, 15%.
  assert labels == ["GPU:0 31%", "GPU:1 15%", "GPU:0 -> GPU:1"]
  # Two curves, and the capacity of 10 bytes, which 7 come near, twice.
  assert len(memory.lines) == 4


def costly_placement():
  """a 0-2 on d0 and sends until 3; 6 bytes 3-6, arrive 6.5; d1 receives until
  8.5; b 8.5-9.5."""
  placement = two_device_placement()
  problem = placement.problem
  (link,) = problem.cluster.links
  link = dataclasses.replace(link, send_us=1.0, recv_us=2.0)
  cluster = dataclasses.replace(problem.cluster, links=(link,))
  return Placement(Problem(problem.graph, cluster), placement.devices)


def test_trace_has_sends_and_receives_on_their_devices():
  placement = costly_placement()
  data = trace.make_trace(Simulator(placement.problem).schedule(placement))
  slices = {
    (e["name"], e["pid"], e["tid"]): (e["ts"], e["dur"])
    for e in events_of(data, "X")
    if e["pid"] != trace.CHANNELS
  }
  assert slices == {
    ("a", trace.DEVICES, 0): (0.0, 2.0),
    ("send a:0", trace.DEVICES, 0): (2.0, 1.0),
    ("z", trace.DEVICES, 0): (3.0, 0.0),
    ("receive a:0", trace.DEVICES, 1): (6.5, 2.0),
    ("b_$x$", trace.DEVICES, 1): (8.5, 1.0),
    ("a", trace.CRITICAL, 0): (0.0, 3.0),
    ("a:0", trace.CRITICAL, 0): (3.0, 3.5),
    ("receive a:0", trace.CRITICAL, 0): (6.5, 2.0),
    ("b_$x$", trace.CRITICAL, 0): (8.5, 1.0),
  }


def test_timeline_draws_sends_and_receives():
  placement = costly_placement()
  schedule = Simulator(placement.problem).schedule(placement)
  tracks, _ = timeline.draw_timeline(schedule).axes
  bars = sum(len(c.get_paths()) for c in tracks.collections)
  assert bars == 2 + 2 + 1 + 4  # ops; send, receive; transfer; critical path
  spans = {
    (box.x0, box.x1): (box.y0, box.y1)
    for collection in tracks.collections
    for box in (path.get_extents() for path in collection.get_paths())
    if box.height > 0.5  # the bars of devices
  }
  # The receive stands beside b, in the second device's row, the send by a.
  assert spans[6.5, 8.5] == spans[8.5, 9.5] == pytest.approx((1.08, 1.8))
  assert spans[2.0, 3.0] == spans[0.0, 2.0] == pytest.approx((0.08, 0.8))
  names = [text.get_text() for text in tracks.get_legend().get_texts()]
  assert names == [
    *("Mat$Mul$", "Relu", "send, receive", "transfer", "critical path")
  ]


def test_an_empty_graph_has_a_trace_and_a_timeline(tmp_path):
  problem = Problem(
    build_graph("g", [], []), Cluster("c", (Device("d", "GPU"),))
  )
  placement = Placement(problem, np.zeros(0, np.int32))
  trace.save_trace(placement, tmp_path / "t.json")
  timeline.save_timeline(placement, tmp_path / "t.png")
  assert "traceEvents" in json.loads((tmp_path / "t.json").read_text())
  assert (tmp_path / "t.png").stat().st_size


def test_an_unknown_picture_format_is_refused(tmp_path):
  with pytest.raises(FormatError, match=r"t\.bmp.*\.png, \.svg, \.pdf"):
    timeline.save_timeline(two_device_placement(), tmp_path / "t.bmp")
  assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_named(tmp_path):
  with pytest.raises(FormatError, match="nowhere"):
    timeline.save_timeline(
      two_device_placement(), tmp_path / "nowhere" / "t.png"
    )


def split_placement():
  """Two microbatches of one layer on two devices, and an update on the first.

  Forward 0-2, backward 2-5 on each; 6 bytes of gradient from d1 5-8, arrive
  8.5; added at once, updated 8.5-9.5.
  """
  pair = two_device_placement().problem.cluster
  back = dataclasses.replace(
    pair.links[0], src=pair.links[0].dst, dst=pair.links[0].src
  )
  ops, edges = [], []
  for i in range(2):
    for scope, us in (("", 2.0), ("gradient_tape/", 3.0)):
      name = f"microbatch_{i}/{scope}net/dense/MatMul"
      own = {"layer": "net/dense", "microbatch": i}
      ops.append(OpSpec(name, "MatMul", {"GPU": us}, [6.0], **own))
    edges += [(2 * i, 0, 2 * i + 1), (2 * i + 1, 0, 4)]
  ops.append(OpSpec("add", "AddV2", {"GPU": 0.0}, [0.0], layer="net/dense"))
  ops.append(OpSpec("update", "Assign", {"GPU": 1.0}))
  edges.append((4, 0, 5))
  cluster = dataclasses.replace(pair, links=(*pair.links, back))
  problem = Problem(build_graph("g", ops, edges), cluster)
  return Placement(problem, np.array([0, 0, 1, 1, 0, 0]))


def test_a_trace_knows_layer_and_microbatch_of_ops_and_transfers():
  placement = split_placement()
  data = trace.make_trace(Simulator(placement.problem).schedule(placement))
  known = {
    (e["pid"], e["name"]): (e["args"].get("microbatch"), e["args"].get("layer"))
    for e in events_of(data, "X")
    if e["pid"] in (trace.DEVICES, trace.CHANNELS)
  }
  gradient = "microbatch_1/gradient_tape/net/dense/MatMul"
  assert known[trace.DEVICES, gradient] == (1, "net/dense")
  assert known[trace.CHANNELS, f"{gradient}:0"] == (1, "net/dense")
  assert known[trace.DEVICES, "add"] == (None, "net/dense")
  assert known[trace.DEVICES, "update"] == (None, None)


def test_a_trace_shows_the_passes_of_microbatches():
  placement = split_placement()
  data = trace.make_trace(Simulator(placement.problem).schedule(placement))
  passes = {
    (e["name"], e["tid"]): (e["ts"], e["dur"], e["args"]["ops"])
    for e in events_of(data, "X")
    if e["pid"] == trace.PASSES
  }
  assert passes == {
    ("forward 0", 0): (0, 2, 1),
    ("backward 0", 0): (2, 3, 1),
    ("forward 1", 1): (0, 2, 1),
    ("backward 1", 1): (2, 3, 1),
    ("update", 0): (8.5, 1, 1),
  }
  # A whole step has none.
  whole = two_device_placement()
  data = trace.make_trace(Simulator(whole.problem).schedule(whole))
  assert not [e for e in data["traceEvents"] if e["pid"] == trace.PASSES]


def test_a_timeline_has_a_color_for_each_microbatch():
  placement = split_placement()
  schedule = Simulator(placement.problem).schedule(placement)
  ops = op_colors.op_colors(schedule, timeline.TYPE_COLORS, "#000000")
  assert [ops.labels[i] for i in ops.kind] == [
    *("forward of microbatch 0", "backward of microbatch 0"),
    *("forward of microbatch 1", "backward of microbatch 1"),
    *("update, shared", "update, shared"),
  ]
  assert len(set(ops.colors)) == 5
  tracks, _ = timeline.draw_timeline(schedule).axes
  drawn = {
    (box.x0, round(box.y0)): matplotlib.colors.to_hex(color)
    for bars in tracks.collections
    for path, color in zip(
      bars.get_paths(),
      np.resize(bars.get_facecolors(), (len(bars.get_paths()), 4)),
      strict=True,
    )
    for box in [path.get_extents()]
    if box.height > 0.2  # without the critical path
  }
  assert (drawn[0, 0], drawn[2, 0]) == ops.colors[:2]
  assert (drawn[0, 1], drawn[2, 1]) == ops.colors[2:4]
  assert drawn[8.5, 0] == timeline.OTHER_COLOR
  assert drawn[5, 2] == ops.colors[3]  # what it sends has its colour, too
  names = [text.get_text() for text in tracks.get_legend().get_texts()]
  assert names == [
    *("microbatch 0", "microbatch 1", "update, shared", "other transfer"),
    "critical path",
  ]


def test_of_many_microbatches_neighbors_share_a_colour():
  ops = [OpSpec(f"x{i}", "X", {"GPU": 1.0}, microbatch=i) for i in range(30)]
  cluster = Cluster("c", (Device("d", "GPU"),))
  problem = Problem(build_graph("g", ops, []), cluster)
  schedule = Simulator(problem).schedule(np.zeros(30, int))
  found = op_colors.op_colors(schedule, timeline.TYPE_COLORS, "#000000")
  assert len(set(found.legend)) == op_colors.MAX_MICROBATCHES + 1
  assert found.legend[0] == "microbatches 0 to 2"
  assert found.labels[found.kind[29]] == "forward of microbatches 28 to 29"
  assert np.all(np.diff(found.kind) >= 0)
