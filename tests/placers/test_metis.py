import sys

import numpy as np
import pytest

from tests.testing import problems
from tfplace.core import Placement, Problem
from tfplace.errors import TfplaceError
from tfplace.placers import place
from tfplace.placers.groups import GroupGraph
from tfplace.placers.partition.metis import cut, weighted_graph


def test_cut_of_two_halves_is_at_the_thin_edge():
  problem = problems.two_halves()
  result = place(problem, "metis", budget_s=5)
  devices = result.placement.devices.tolist()
  assert devices[:4] == [devices[0]] * 4 != devices[4:] == [devices[4]] * 4
  assert result.evaluation.step_time_us == 6.0 == problems.optimum(problem)


@pytest.mark.parametrize("seed", range(20))
def test_never_below_the_optimum(seed):
  problem = problems.small_problem(seed)
  step = place(problem, "metis", budget_s=5).evaluation.step_time_us
  assert step >= problems.optimum(problem) * (1 - 1e-12)


@pytest.mark.parametrize("seed", range(5))
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


@pytest.mark.parametrize("devices", [2, 3, 4, 8])
@pytest.mark.parametrize(
  "times",
  [
    [1000.0, 1.0, 1.0, 0.0],  # one op outweighs a part
    [1.0],
    [0.0] * 5,
    [1.0] * 7,  # fewer ops than some clusters have devices
    [1.0] * 40 + [1e5] * 3,
    [1.0] * 300 + [1e6],
  ],
  ids=len,
)
def test_nothing_is_printed_however_metis_fares(times, devices, capfd):
  edges = [(i, i + 1) for i in range(0, len(times) - 1, 2)]
  problem = Problem(
    problems.graph(times, edges), problems.cluster([np.inf] * devices)
  )
  print("kept", flush=True)
  place(problem, "metis", budget_s=5)
  print("as well", flush=True)
  assert capfd.readouterr() == ("kept\nas well\n", "")


def test_memory_that_metis_does_not_know_is_kept():
  # Equal work would put three of the four 30-byte weights with their
  # consumers on one device of 70 bytes.
  problem = Problem(
    problems.graph(
      [1.0, 1.0, 1.0, 3.0],
      [(0, 1), (1, 2)],
      output_bytes=[(5.0,)] * 4,
      persistent_bytes=[30.0] * 4,
    ),
    problems.cluster([70.0] * 2),
  )
  result = place(problem, "metis", budget_s=5)
  Placement(problem, result.placement.devices)
  assert sorted(np.bincount(result.placement.devices)) == [2, 2]


def test_missing_library_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "pymetis", None)
  with pytest.raises(TfplaceError, match="needs the package pymetis"):
    place(problems.two_halves(), "metis", budget_s=5)
