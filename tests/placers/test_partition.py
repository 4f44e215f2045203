import numpy as np

from tests.testing import problems
from tfplace.core import Problem
from tfplace.placers.groups import GroupGraph
from tfplace.placers.partition.metis import weighted_graph


def test_weights_are_times_and_bytes_in_proportion():
  # Times 1, 2 and 5 of 8 and edges of 30, 30 and 40 of 100 bytes, each scaled
  # to a sum of 800.
  problem = Problem(
    problems.graph(
      [1.0, 2.0, 5.0],
      [(0, 1), (0, 2), (1, 2)],
      output_bytes=[(30.0,), (40.0,), (0.0,)],
    ),
    problems.cluster([np.inf] * 2),
  )
  graph = weighted_graph(GroupGraph(problem), np.array([0, 1]), 800)
  assert graph.vertex_weights.tolist() == [100, 200, 500]
  assert graph.offsets.tolist() == [0, 2, 4, 6]
  assert graph.adjacent.tolist() == [1, 2, 0, 2, 0, 1]
  assert graph.edge_weights.tolist() == [240, 240, 240, 320, 240, 320]


def test_what_the_parts_cannot_run_weighs_nothing():
  problem = Problem(
    problems.graph([{"CPU": 7.0}, 3.0], [(0, 1)]),
    problems.cluster([np.inf] * 2, kinds=["GPU", "CPU"]),
  )
  graph = weighted_graph(GroupGraph(problem), np.array([0]), 10)
  assert graph.vertex_weights.tolist() == [0, 10]
  assert graph.edge_weights.tolist() == [1, 1]  # no bytes, still an edge


def test_a_graph_that_takes_no_time_weighs_nothing():
  problem = Problem(
    problems.graph([0.0, 0.0], []), problems.cluster([np.inf] * 2)
  )
  graph = weighted_graph(GroupGraph(problem), np.array([0, 1]), 10)
  assert graph.vertex_weights.tolist() == [0, 0]
  assert graph.adjacent.tolist() == []
