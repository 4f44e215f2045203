"""The summary of a step: a row per device, and what holds it back."""

import dataclasses

import numpy as np
import pytest

from tests.testing import placed_graphs, problems
from tfplace.graph import Problem
from tfplace.report import summary
from tfplace.simulate import Simulator


def schedule_of(devices, overhead=0.0, memory=64.0):
  """A chain of layers of 2, 6 and 4 us."""
  graph = problems.graph(
    [2.0, 6.0, 4.0], [(0, 1), (1, 2)], output_bytes=[(8.0,)] * 3
  )
  names = tuple(f"net/layer_{i}/MatMul" for i in range(3))
  graph = dataclasses.replace(graph, names=names)
  problem = Problem(graph, problems.cluster([memory] * 3, overhead=overhead))
  return Simulator(problem).schedule(np.array(devices, np.int32))


def contents_of(placement):
  schedule = Simulator(placement.problem).schedule(placement)
  return summary.device_contents(schedule)


def test_rows_tell_work_memory_and_layers():
  step = schedule_of([0, 0, 1])
  first, second = summary.device_rows(step)
  assert (first.work, second.work) == pytest.approx((8 / 12, 4 / 12))
  assert first.busy == pytest.approx(8 / step.step_time_us)
  assert first.holds == "layer_0 to layer_1" and second.holds == "layer_2"
  assert first.peak_bytes == step.peak_memory_bytes[0]


def test_the_critical_path_holds_a_step_back():
  alone, apart, overhead = map(
    summary.held_back,
    (
      schedule_of([0, 0, 0]),
      schedule_of([0, 1, 0]),
      schedule_of([0, 0, 0], overhead=100.0),
    ),
  )
  assert alone == "The critical path is 100% computation"
  assert "computation" in apart and "communication" in apart
  # Two gaps of 100 us between ops of 12 us together.
  assert overhead.startswith("Overhead-bound: 94% of the critical path")


@pytest.mark.parametrize(
  "layers, microbatches, device_of, contents",
  [
    (
      2,
      4,
      lambda m, layer: layer if m is None else m % 2,
      ["microbatches 0 and 2", "microbatches 1 and 3"],
    ),
    (2, 4, lambda m, layer: layer, ["layer_0", "layer_1"]),
    (
      5,
      2,
      lambda m, layer: (0, 0, 1, 1, 0)[layer],
      ["layer_0 to layer_1 and layer_4", "layer_2 to layer_3"],
    ),
    (
      2,
      4,
      lambda m, layer: 2 * ((m or 0) // 2) + layer,
      [f"microbatches {x} (a pipeline)" for x in ("0 and 1", "2 and 3")] * 2,
    ),
  ],
)
def test_devices_have_microbatches_or_layers(
  layers, microbatches, device_of, contents
):
  step = placed_graphs.split_step([4.0] * layers, microbatches, device_of)
  assert sorted(contents_of(step)) == sorted(contents)
