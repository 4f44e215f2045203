"""tfplace-explain: tables, JSON, and one line for bad input."""

import json

import numpy as np
import pytest

from tfplace import formats
from tfplace.bin import explain
from tfplace.graph import (
  Cluster,
  Device,
  Link,
  OpSpec,
  Placement,
  Problem,
  build_graph,
)


@pytest.fixture
def files(tmp_path):
  """A chain of two ops on two devices, as files: 2 + 3 + 0.5 + 1 us."""
  ops = [
    OpSpec("m/x/a", "MatMul", {"GPU": 2.0}, [6.0], microbatch=0),
    OpSpec("m/y/b", "Relu", {"GPU": 1.0}, microbatch=1),
  ]
  graph = build_graph("chain", ops, [(0, 0, 1)])
  devices = (Device("g0", "GPU"), Device("g1", "GPU"))
  cluster = Cluster("two", devices, (Link("g0", "g1", 2.0, 0.5),))
  placement = Placement(Problem(graph, cluster), np.array([0, 1]))
  paths = {x: str(tmp_path / f"{x}.json") for x in ("graph", "cluster", "plan")}
  formats.save_graph(graph, paths["graph"])
  formats.save_cluster(cluster, paths["cluster"])
  formats.save_placement(placement, paths["plan"])
  return [
    f"--graph={paths['graph']}",
    f"--cluster={paths['cluster']}",
    f"--placement={paths['plan']}",
  ]


def test_tables_say_what_holds_the_step_back(files, capsys):
  assert explain.run(files) == 0
  out = capsys.readouterr().out
  for words in (
    "The bottleneck is link g0 -> g1",
    "Critical path by kind",
    "Critical path by device and link",
    "Layers on the critical path",
    "2 microbatches: data parallel for 100% of the work",
    "Limits of the microbatched step",
  ):
    assert words in out


def test_json_is_the_only_output_and_has_the_proven_bound(files, capsys):
  assert explain.run([*files, "--json"]) == 0
  data = json.loads(capsys.readouterr().out)
  assert data["step_time_us"] == 6.5
  assert data["lower_bound_us"] == pytest.approx(3)
  # They compute 2 and 1 of 6.5 us; free links would leave 3.
  assert data["microbatching"]["bubble"] == pytest.approx(1 - 3 / 13)
  assert data["microbatching"]["limits"][0] == {"name": "links", "gain_us": 3.5}


@pytest.mark.parametrize(
  "change, words",
  [
    (["--placement=none.json"], "none.json: cannot be read"),
    (["--cluster=k80x1"], "g0"),
    (["--graph="], "give exactly one of --model,"),
  ],
)
def test_bad_input_gets_one_line(files, capsys, change, words):
  assert explain.run([*files, *change]) == 1
  captured = capsys.readouterr()
  assert captured.out == ""
  assert len(captured.err.strip().splitlines()) == 1
  assert words in captured.err
