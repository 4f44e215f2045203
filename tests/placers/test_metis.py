import sys

import numpy as np
import pytest

from tests.testing import problems
from tfplace.core import Problem
from tfplace.errors import TfplaceError
from tfplace.placers import place
from tfplace.placers.groups import GroupGraph
from tfplace.placers.partition.metis import cut, weighted_graph


@pytest.mark.parametrize("seed", range(2))
def test_parts_have_equal_work_within_three_percent(seed):
  # METIS's own limit for k-way is 1.03 times the mean.
  rng = np.random.default_rng(seed)
  edges = {(int(rng.integers(0, i)), i) for i in range(1, 600)}
  problem = Problem(
    problems.graph(list(rng.uniform(1, 3, 600)), sorted(edges)),
    problems.cluster([np.inf] * 4),
  )
  graph = weighted_graph(GroupGraph(problem), np.arange(4), 2**20)
  parts = cut(graph, 4, seed)
  work = np.bincount(parts, graph.vertex_weights)
  assert work.max() <= 1.04 * work.mean()
  assert (parts == cut(graph, 4, seed)).all()


def test_missing_library_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "pymetis", None)
  with pytest.raises(TfplaceError, match="needs the package pymetis"):
    place(problems.two_halves(), "metis", budget_s=5)


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


def test_nothing_is_printed_where_parts_stay_empty(capfd):
  problem = Problem(
    problems.graph([1000.0, 1.0, 1.0, 0.0], [(0, 1), (2, 3)]),
    problems.cluster([np.inf] * 8),
  )
  print("kept", flush=True)
  place(problem, "metis", budget_s=5)
  assert capfd.readouterr() == ("kept\n", "")
