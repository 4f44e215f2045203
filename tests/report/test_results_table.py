"""The table of placers, and the units in it."""

import numpy as np
import pytest

from tfplace.graph.cluster import Cluster, Device
from tfplace.graph.evaluation import Evaluation, Result
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.report.rows import short_names
from tfplace.report.table import results_table


def result(strategy, step_time_us, feasible=True, num_devices=2):
  names = [f"/job:w/device:GPU:{i}" for i in range(num_devices)]
  cluster = Cluster("c", tuple(Device(name, "GPU") for name in names))
  problem = Problem(
    build_graph("g", [OpSpec("a", "A", {"GPU": 1.0})], []), cluster
  )
  evaluation = Evaluation(
    step_time_us=step_time_us,
    feasible=feasible,
    peak_memory_bytes={n: (i + 1) * 2.0**30 for i, n in enumerate(names)},
    busy_us=dict.fromkeys(names, 1.0),
    bytes_moved=0.0,
    lower_bound_us=1000.0,
    source="simulated",
  )
  placement = Placement(problem, np.zeros(1, np.int32))
  return Result(strategy, placement, evaluation, (), 1.234, 5)


def test_rows_compare_with_single_and_with_the_bound():
  table = results_table([result("single", 3000.0), result("x", 1500.0)])
  assert table.columns == [
    *("placer", "step time", "vs single", "vs bound"),
    *("peak GPU:0", "peak GPU:1", "seconds"),
  ]
  assert table.rows == [
    ["single", "3 ms", "1.000x", "3.000", "1 GiB", "2 GiB", "1.23"],
    ["x", "1.5 ms", "2.000x", "1.500", "1 GiB", "2 GiB", "1.23"],
  ]


@pytest.mark.parametrize(
  "names, short",
  [
    (["/job:a/device:GPU:0", "/job:a/device:GPU:1"], ["GPU:0", "GPU:1"]),
    (
      ["/job:w/task:0/device:CPU:0", "/job:w/task:1/device:CPU:0"],
      ["task:0/CPU:0", "task:1/CPU:0"],
    ),
    (["GPU:0", "/device:GPU:0"], ["GPU:0", "/device:GPU:0"]),
    (["/device:GPU:0"], ["GPU:0"]),
    ([], []),
  ],
)
def test_short_device_names_tell_devices_apart(names, short):
  assert short_names(names) == short
