import shutil
import tempfile

import numpy as np
import pytest

from tests.testing import problems
from tfplace.core import Cluster, Device, Link, Problem
from tfplace.errors import TfplaceError
from tfplace.placers import place
from tfplace.placers.groups import GroupGraph
from tfplace.placers.partition.metis import WeightedGraph
from tfplace.placers.partition.scotch import (
  PROGRAMS,
  distances,
  graph_text,
  leaves,
  parse_mapping,
  target_text,
)

needs_scotch = pytest.mark.skipif(
  not any(map(shutil.which, PROGRAMS)), reason="Scotch is not installed"
)


def fake_program(folder, monkeypatch, script):
  """Makes `scotch_gmap` a shell script, and the only program there is."""
  path = folder / "scotch_gmap"
  path.write_text(f"#!/bin/sh\n{script}\n")
  path.chmod(0o755)
  monkeypatch.setenv("PATH", str(folder))


def test_graph_file_by_hand():
  # A path a - b - c with edges of 5 and 6 and vertices of 2, 0 and 9.
  graph = WeightedGraph(
    np.array([0, 1, 3, 4]),
    np.array([1, 0, 2, 1]),
    np.array([5, 5, 6, 6]),
    np.array([2, 0, 9]),
  )
  assert graph_text(graph).splitlines() == [
    "0",
    "3 4",
    "0 011",
    "2 1 5 1",
    "0 2 5 0 6 2",
    "9 1 6 1",
  ]


def test_target_file_by_hand():
  # 0 and 2 are near, and so are 1 and 3: {0, 2} is half 2 of the root, with
  # leaves 4 and 5, {1, 3} is half 3, with leaves 6 and 7.
  far = np.array([[0, 9, 1, 9], [9, 0, 9, 1], [1, 9, 0, 9], [9, 1, 9, 0]])
  assert leaves(far) == [4, 6, 5, 7]
  assert target_text(far).splitlines() == [
    "deco",
    "0",
    "4 7",
    "0 1 4",
    "1 1 6",
    "2 1 5",
    "3 1 7",
    "9",
    "1 9",
    "9 1 9",
  ]


@pytest.mark.parametrize("count", range(1, 10))
def test_leaves_of_a_tree_differ(count):
  number = leaves(np.ones((count, count), int) - np.eye(count, dtype=int))
  assert len(set(number)) == count
  # No leaf is above another.
  for leaf in number:
    assert not {leaf >> up for up in range(1, 10)} & set(number)


def test_distances_are_as_links_are_slow():
  # d0 - d1 is twice as fast as d0 - d2; d1 - d2 has one direction only.
  devices = tuple(Device(f"d{i}", "GPU", np.inf, 0.0) for i in range(3))
  rates = {(0, 1): 8.0, (1, 0): 8.0, (0, 2): 8.0, (2, 0): 4.0, (1, 2): 8.0}
  links = tuple(Link(f"d{a}", f"d{b}", r, 0.0) for (a, b), r in rates.items())
  problem = Problem(problems.graph([1.0], []), Cluster("c", devices, links))
  got = distances(GroupGraph(problem), np.arange(3))
  assert got.tolist() == [[0, 4, 8], [4, 0, 64], [8, 64, 0]]


def test_mapping_file_by_hand():
  assert parse_mapping("3\n0\t1\n2\t0\n1\t1\n", 3, 2).tolist() == [1, 1, 0]
  assert parse_mapping("0\n", 0, 2).tolist() == []


@pytest.mark.parametrize(
  ("text", "says"),
  [
    ("", "0 numbers, not the 5"),
    ("2\n0 1\n", "3 numbers, not the 5"),
    ("3\n0 1\n1 1\n", "5 numbers"),
    ("2\n0 1\n1 x\n", "no list of numbers"),
    (f"2\n0 1\n1 {10**30}\n", "no list of numbers"),
    ("2\n0 1\n1 2\n", "vertex 1 on no part of 0 to 1"),
    ("2\n0 1\n1 -1\n", "vertex 1 on no part"),
    ("2\n0 1\n0 1\n", "vertex 1 on no part"),
    ("2\n0 1\n7 1\n", "vertex 0 on no part"),
  ],
)
def test_what_is_no_mapping_is_refused(text, says):
  with pytest.raises(TfplaceError, match=says):
    parse_mapping(text, 2, 2)


def test_missing_program_is_named_and_auto_goes_on(monkeypatch, tmp_path):
  monkeypatch.setenv("PATH", str(tmp_path))
  problem = problems.two_halves()
  with pytest.raises(TfplaceError, match="Debian package scotch"):
    place(problem, "scotch", budget_s=5)
  result = place(problem, "auto", budget_s=5, max_evaluations=100)
  assert "not installed" in result.skipped["scotch"]


@pytest.mark.parametrize(
  ("script", "says"),
  [
    ("exit 0", "0 numbers"),
    ("echo bad >&2; exit 3", "exit code 3: bad"),
    ("kill -9 $$", "exit code -9"),
    ("echo 8 > $3; echo no >> $3", "no list of numbers"),
    ("printf '\\377\\376' > $3", "no list of numbers"),
  ],
)
def test_failing_program_is_a_clear_error(monkeypatch, tmp_path, script, says):
  fake_program(tmp_path, monkeypatch, script)
  with pytest.raises(TfplaceError, match=says):
    place(problems.two_halves(), "scotch", budget_s=5)


def test_program_that_hangs_is_ended(monkeypatch, tmp_path):
  fake_program(tmp_path, monkeypatch, "while :; do :; done")
  with pytest.raises(TfplaceError, match="more than 1 s"):
    place(problems.two_halves(), "scotch", budget_s=0.5)


def test_file_that_is_no_program_is_a_clear_error(monkeypatch, tmp_path):
  fake_program(tmp_path, monkeypatch, "")
  (tmp_path / "scotch_gmap").write_bytes(b"\x00\x01")
  with pytest.raises(TfplaceError, match="does not run"):
    place(problems.two_halves(), "scotch", budget_s=5)


def test_no_room_for_files_is_a_clear_error(monkeypatch, tmp_path):
  fake_program(tmp_path, monkeypatch, "exit 0")
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
  with pytest.raises(TfplaceError, match="does not run"):
    place(problems.two_halves(), "scotch", budget_s=5)


def test_answer_of_the_program_is_the_placement(monkeypatch, tmp_path):
  lines = "\\n".join(f"{i} {i % 2}" for i in range(8))
  fake_program(tmp_path, monkeypatch, f"printf '8\\n{lines}\\n' > $3")
  result = place(problems.two_halves(), "scotch", budget_s=5)
  assert result.placement.devices.tolist() == [0, 1] * 4


@needs_scotch
def test_cut_of_two_halves_is_at_the_thin_edge():
  problem = problems.two_halves()
  result = place(problem, "scotch", budget_s=5)
  devices = result.placement.devices.tolist()
  assert devices[:4] == [devices[0]] * 4 != devices[4:] == [devices[4]] * 4
  assert result.evaluation.step_time_us == 6.0 == problems.optimum(problem)


@needs_scotch
@pytest.mark.parametrize("seed", range(10))
def test_never_below_the_optimum(seed):
  problem = problems.small_problem(seed)
  step = place(problem, "scotch", budget_s=5).evaluation.step_time_us
  assert step >= problems.optimum(problem) * (1 - 1e-12)


@needs_scotch
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
