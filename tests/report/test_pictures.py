"""Traces and timelines of simulated steps."""

import gzip
import json

import numpy as np
import pytest

from tests.testing import placed_graphs
from tfplace.errors import FormatError
from tfplace.graph.cluster import Cluster, Device
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.report import timeline, trace
from tfplace.simulate import Simulator

A, B, Z = "m/first/a", "m/second/b", "m/first/z"


def schedule_of(placement):
  return Simulator(placement.problem).schedule(placement)


def split_step():
  """Two microbatches of one layer on two devices, and an update on the first.

  Forward 0-2, backward 2-4 on each; the gradient of g1 has no bytes; updated
  4-7.
  """

  def device_of(microbatch, layer):
    return microbatch or 0

  return placed_graphs.split_step([2.0], 2, device_of, update_us=3.0)


def events_of(placement, phase, name=""):
  events = trace.make_trace(schedule_of(placement))["traceEvents"]
  return [e for e in events if e["ph"] == phase and name in e["name"]]


def slices_of(placement):
  return {
    (e["name"], e["pid"], e["tid"]): (e["ts"], e["dur"])
    for e in events_of(placement, "X")
  }


def test_trace_has_each_op_and_transfer_at_its_time():
  assert slices_of(placed_graphs.chain()) == {
    (A, trace.DEVICES, 0): (0.0, 2.0),
    (Z, trace.DEVICES, 0): (2.0, 0.0),
    (B, trace.DEVICES, 1): (5.5, 1.0),
    (f"{A}:0", trace.CHANNELS, 0): (2.0, 3.0),
    (A, trace.CRITICAL, 0): (0.0, 2.0),
    (f"{A}:0", trace.CRITICAL, 0): (2.0, 3.5),
    (B, trace.CRITICAL, 0): (5.5, 1.0),
  }


def test_trace_has_sends_and_receives_on_their_devices():
  assert slices_of(placed_graphs.messages()) == {
    (A, trace.DEVICES, 0): (0.0, 2.0),
    (f"send {A}:0", trace.DEVICES, 0): (2.0, 1.0),
    (f"receive {A}:0", trace.DEVICES, 1): (6.5, 2.0),
    (B, trace.DEVICES, 1): (8.5, 1.0),
    (f"{A}:0", trace.CHANNELS, 0): (3.0, 3.0),
    (A, trace.CRITICAL, 0): (0.0, 3.0),
    (f"{A}:0", trace.CRITICAL, 0): (3.0, 3.5),
    (f"receive {A}:0", trace.CRITICAL, 0): (6.5, 2.0),
    (B, trace.CRITICAL, 0): (8.5, 1.0),
  }


def test_trace_shows_microbatches_layers_and_passes():
  events = events_of(split_step(), "X")
  known = {
    (e["pid"], e["name"]): (e["args"].get("microbatch"), e["args"].get("layer"))
    for e in events
  }
  gradient = "microbatch_1/gradient_tape/net/layer_0/MatMul"
  assert known[trace.DEVICES, gradient] == (1, "net/layer_0")
  assert known[trace.CHANNELS, f"{gradient}:0"] == (1, "net/layer_0")
  assert known[trace.DEVICES, "sgd/update_0"] == (None, "net/layer_0")
  passes = {
    (e["name"], e["tid"]): (e["ts"], e["dur"], e["args"]["ops"])
    for e in events
    if e["pid"] == trace.PASSES
  }
  assert passes == {
    ("forward 0", 0): (0, 2, 1),
    ("backward 0", 0): (2, 2, 1),
    ("forward 1", 1): (0, 2, 1),
    ("backward 1", 1): (2, 2, 1),
    ("update", 0): (4, 3, 1),
  }


def test_trace_of_ops_without_time_has_no_passes():
  step = placed_graphs.split_step([0.0], 2, lambda microbatch, layer: 0)
  passes = [e for e in events_of(step, "X") if e["pid"] == trace.PASSES]
  assert not passes


@pytest.mark.parametrize(
  "name, reader", [("t.json", open), ("t.json.gz", gzip.open)]
)
def test_trace_file_is_json_and_leaves_nothing_else(tmp_path, name, reader):
  trace.save_trace(placed_graphs.chain(), tmp_path / name)
  with reader(tmp_path / name, "rt") as file:
    assert json.load(file)["otherData"]["step_time_us"] == 6.5
  assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["t.png", "t.svg", "t.pdf"])
def test_timeline_is_drawn_in_each_format(tmp_path, name):
  # Dollars are no TeX.
  op = OpSpec("a_$x$", "Mat$\\Mul$", {"GPU": 1.0})
  cluster = Cluster("$c$", (Device("$d$", "GPU"),))
  problem = Problem(build_graph("$g_$", [op], []), cluster)
  timeline.save_timeline(Placement(problem, np.array([0])), tmp_path / name)
  assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize(
  "name, words",
  [("t.bmp", r"t\.bmp.*\.png, \.svg, \.pdf"), ("nowhere/t.png", "nowhere")],
)
def test_timeline_that_cannot_be_written_is_refused(tmp_path, name, words):
  with pytest.raises(FormatError, match=words):
    timeline.save_timeline(placed_graphs.chain(), tmp_path / name)
  assert not list(tmp_path.iterdir())
