"""The summary of a step: a row per device, and what holds it back."""

import dataclasses

import numpy as np
import pytest

from tests.testing import placed_graphs, problems
from tfplace.core import Placement, Problem
from tfplace.core.op_graph import OpSpec, build_graph
from tfplace.report import summary
from tfplace.simulate import Simulator


def schedule_of(devices, overhead=0.0, times=(2.0, 6.0, 4.0), memory=64.0):
  graph = problems.graph(
    list(times),
    [(i, i + 1) for i in range(len(times) - 1)],
    output_bytes=[(8.0,)] * len(times),
  )
  names = [f"net/layer_{i}/MatMul" for i in range(len(times))]
  graph = dataclasses.replace(graph, names=tuple(names))
  cluster = problems.cluster([memory] * 3, overhead=overhead)
  problem = Problem(graph, cluster)
  placement = Placement(problem, np.array(devices, np.int32))
  return Simulator(problem).schedule(placement)


def test_rows_tell_work_memory_and_layers():
  step = schedule_of([0, 0, 1])
  first, second = summary.device_rows(step)
  assert (first.work, second.work) == pytest.approx((8 / 12, 4 / 12))
  assert first.busy == pytest.approx(8 / step.step_time_us)
  assert first.holds == "layer_0 to layer_1" and second.holds == "layer_2"
  assert first.peak_bytes == step.peak_memory_bytes[0]
  assert summary.peak_in_words(first).endswith(
    f"of 64 B ({100 * first.peak_bytes / 64:.0f}%)"
  )


def test_a_device_without_limit_has_no_share():
  (row,) = summary.device_rows(schedule_of([0, 0, 0], memory=np.inf))
  assert " of " not in summary.peak_in_words(row)


def test_the_table_has_a_line_per_device():
  rows = summary.device_rows(schedule_of([0, 1, 2]))
  lines = summary.table_text(rows).splitlines()
  assert [line.split()[0] for line in lines[2:]] == [r.name for r in rows]
  assert lines[0].split()[:3] == ["device", "work", "busy"]


def test_the_table_is_text_in_a_notebook_too(monkeypatch):
  rows = summary.device_rows(schedule_of([0, 1, 2]))
  expected = summary.table_text(rows)
  monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
  assert summary.table_text(rows) == expected != ""


def test_what_holds_a_step_back_is_its_critical_path():
  assert summary.held_back(schedule_of([0, 0, 0])) == (
    "The critical path is 100% computation"
  )
  apart = summary.held_back(schedule_of([0, 1, 0]))
  assert "computation" in apart and "communication" in apart


def test_a_step_of_overheads_is_said_to_be_overhead_bound():
  told = summary.held_back(schedule_of([0, 0, 0], overhead=100.0))
  # Two gaps of 100 us between ops of 12 us together.
  assert told.startswith("Overhead-bound: 94% of the critical path")


def rows_of_split(*arguments):
  step = placed_graphs.split_step(*arguments)
  return summary.device_rows(Simulator(step.problem).schedule(step))


def test_microbatches_are_numbered_where_they_are_apart():
  def by_microbatch(microbatch, layer):
    return layer if microbatch is None else microbatch % 2

  rows = rows_of_split([4.0, 4.0], 4, by_microbatch)
  assert [row.holds for row in rows] == [
    "microbatches 0 and 2",
    "microbatches 1 and 3",
  ]


def test_a_pipeline_has_layers_on_its_devices():
  first, second = rows_of_split([4.0, 4.0], 4, lambda _, layer: layer)
  assert first.holds and second.holds and first.holds != second.holds
  assert "microbatch" not in first.holds + second.holds


def test_a_device_that_only_updates_says_so():
  # A layer with its gradient on one device, and Adam's arithmetic on another.
  both = {"GPU": 4.0}
  ops = [
    OpSpec("net/dense/w", "VarHandleOp", {"GPU": 0.0}, [8.0], 8.0, 0.0, "w"),
    OpSpec("net/dense/MatMul", "MatMul", both, [8.0], layer="net/dense"),
    OpSpec("gradient_tape/net/dense/MatMul", "MatMul", both, [8.0]),
    OpSpec("adam/dense/mul/Mul", "Mul", both, [8.0], layer="net/dense"),
    OpSpec("net/dense/Assign", "AssignSubVariableOp", both, colocation="w"),
    OpSpec("adam/Pow", "Pow", both, [8.0]),
  ]
  edges = [(0, 0, 1), (1, 0, 2), (2, 0, 3), (3, 0, 4), (5, 0, 4)]
  problem = Problem(build_graph("net", ops, edges), problems.cluster([64] * 3))
  placement = Placement(problem, np.array([1, 0, 0, 1, 1, 2], np.int32))
  rows = summary.device_rows(Simulator(problem).schedule(placement))
  assert [row.holds for row in rows] == ["dense", "updates of dense", "updates"]
