"""Graph partitioning by METIS and Scotch."""

import sys

import numpy as np
import pytest

from tests.testing import exact, problems
from tfplace.errors import TfplaceError
from tfplace.graph import Cluster, Device, Link, Problem
from tfplace.placers import place
from tfplace.placers.groups import GroupGraph
from tfplace.placers.partition.metis import WeightedGraph, cut, weighted_graph
from tfplace.placers.partition.scotch import distances, mapped


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


SEEDS = np.array([1, 3])


def fake_python(folder, monkeypatch, script):
  """Makes a shell script the Python of the child process."""
  path = folder / "python"
  path.write_text(f"#!/bin/sh\n{script}\n")
  path.chmod(0o755)
  monkeypatch.setattr(sys, "executable", str(path))


def weighted(num_vertices, edges, vertex_weights=None):
  """A graph of edges (low, high, weight)."""
  ends = sorted(
    end for a, b, weight in edges for end in ((a, b, weight), (b, a, weight))
  )
  first, adjacent, weights = np.array(ends, np.int64).reshape(-1, 3).T
  degree = np.bincount(first, minlength=num_vertices)
  if vertex_weights is None:
    vertex_weights = np.ones(num_vertices, np.int64)
  return WeightedGraph(
    np.concatenate(([0], np.cumsum(degree))),
    adjacent,
    weights,
    np.array(vertex_weights, np.int64),
  )


def apart(num_parts):
  return 4 * (1 - np.eye(num_parts, dtype=np.int64))


def test_distances_are_as_links_are_slow():
  # d0 - d1 is twice as fast as d0 - d2; d1 - d2 has one direction only.
  devices = tuple(Device(f"d{i}", "GPU", np.inf, 0.0) for i in range(3))
  rates = {(0, 1): 8.0, (1, 0): 8.0, (0, 2): 8.0, (2, 0): 4.0, (1, 2): 8.0}
  links = tuple(Link(f"d{a}", f"d{b}", r, 0.0) for (a, b), r in rates.items())
  problem = Problem(problems.graph([1.0], []), Cluster("c", devices, links))
  got = distances(GroupGraph(problem), np.arange(3))
  assert got.tolist() == [[0, 4, 8], [4, 0, 64], [8, 64, 0]]


@pytest.mark.parametrize(
  ("graph", "num_parts"),
  [
    (weighted(1, []), 2),
    (weighted(5, []), 2),  # Isolated vertices only.
    (weighted(3, [(0, 1, 7)]), 8),  # More parts than vertices.
    (weighted(4, [(0, 1, 5), (2, 3, 5)], [0] * 4), 3),
    (weighted(6, [(0, i, 1) for i in range(1, 6)], [0, 1, 0, 2, 0, 3]), 2),
    (weighted(4, [(i, i + 1, 2**40) for i in range(3)], [2**40] * 4), 4),
    (weighted(300, [(i, i + 1, 1) for i in range(0, 299, 2)]), 5),
  ],
)
def test_degenerate_graphs_are_mapped(graph, num_parts, capfd):
  found = mapped(graph, apart(num_parts), SEEDS, 60.0)
  assert found.shape == (2, len(graph.vertex_weights))
  assert found.min() >= 0
  assert found.max() < num_parts
  assert capfd.readouterr() == ("", "")


def test_missing_pyscotch_is_named_and_auto_goes_on(monkeypatch):
  monkeypatch.setitem(sys.modules, "pyscotch", None)
  problem = problems.two_halves()
  with pytest.raises(TfplaceError, match="needs the package pyscotch"):
    place(problem, "scotch", budget_s=5)
  result = place(problem, "auto", budget_s=5, max_evaluations=100)
  assert "pyscotch" in result.skipped["scotch"]


@pytest.mark.parametrize(
  ("script", "says"),
  [
    ("exit 0", "0 bytes, not the 48 of 2"),
    ("echo bad >&2; exit 3", "exit code 3; it said 'bad'"),
    ("kill -9 $$", "exit code -9"),
    ("printf '%048d' 0", "maps to part 3472328296227680304"),
    ("exec sleep 60", "no mapping in 0.5 s"),
  ],
)
def test_failing_process_is_a_clear_error(monkeypatch, tmp_path, script, says):
  fake_python(tmp_path, monkeypatch, script)
  graph = weighted(3, [(0, 1, 1), (1, 2, 1)])
  with pytest.raises(TfplaceError, match=says):
    mapped(graph, apart(2), SEEDS, 0.5)


@pytest.mark.parametrize("strategy", ["scotch", "metis"])
def test_cut_of_two_halves_is_at_the_thin_edge(strategy):
  problem = problems.two_halves()
  result = place(problem, strategy, budget_s=5)
  devices = result.placement.devices.tolist()
  assert devices[:4] == [devices[0]] * 4 != devices[4:] == [devices[4]] * 4
  assert result.evaluation.step_time_us == 6.0 == exact.optimum(problem)


def test_neighbours_go_to_near_devices():
  # Four heavy ops in a ring of 1000 bytes, o0 - o1 and o2 - o3 ten times as
  # much: these pairs belong on the pairs of devices that are near, d0 - d2
  # and d1 - d3, whatever the order of the devices.
  devices = tuple(Device(f"d{i}", "GPU", np.inf, 0.0) for i in range(4))
  links = tuple(
    Link(f"d{a}", f"d{b}", 100.0 if (a - b) % 2 == 0 else 10.0, 0.0)
    for a in range(4)
    for b in range(4)
    if a != b
  )
  problem = Problem(
    problems.graph(
      [100.0] * 4,
      [(0, 1), (1, 2), (2, 3)],
      output_bytes=[(10000.0,), (1000.0,), (10000.0,), (0.0,)],
    ),
    Cluster("c", devices, links),
  )
  placed = place(problem, "scotch", budget_s=5).placement.devices
  assert sorted(placed) == [0, 1, 2, 3]
  assert (placed[0] - placed[1]) % 2 == 0 == (placed[2] - placed[3]) % 2
