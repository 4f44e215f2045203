"""The benchmark of fidelity: its placements, figures, and a tiny run."""

import json
import subprocess
import sys

import fidelity
import numpy as np
import pytest

from tfplace.graph import Cluster, Device, Link, Problem
from tfplace.graph.op_graph import OpSpec, build_graph

_RUN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import fidelity
tiny = dict(layers=1, units=4, vocabulary=9, length=2)
fidelity.MODELS.clear()
fidelity.MODELS["nmt"] = 2, tiny
sys.exit(fidelity.start(sys.argv[1:]))
"""


@pytest.fixture
def problem():
  """A chain of 40 ops on two devices."""
  ops = [OpSpec(str(i), "Relu", {"CPU": 5.0}, [100.0]) for i in range(40)]
  edges = [(i, 0, i + 1) for i in range(39)]
  devices = (Device("d0", "CPU"), Device("d1", "CPU"))
  links = (Link("d0", "d1", 10.0), Link("d1", "d0", 10.0))
  return Problem(build_graph("g", ops, edges), Cluster("two", devices, links))


def test_placements_go_from_good_to_random(problem):
  rows = fidelity.placements(problem, 12, budget_s=0.1, seed=0)
  assert len(rows) == 12
  start = next(iter(rows.values()))
  moved = [
    int((row != start).sum())
    for label, row in rows.items()
    if label.endswith("random")
  ]
  # A chain does not gain by a second device: all on one, then up to half of
  # the ops elsewhere, for a random device may be the same one.
  assert len(set(start.tolist())) == 1
  assert min(moved) <= 2 < 10 <= max(moved)
  again = fidelity.placements(problem, 12, budget_s=0.1, seed=0)
  for label, row in rows.items():
    np.testing.assert_array_equal(again[label], row)


def test_figures_are_relative_to_what_was_measured():
  pairs = [(90.0, 100.0), (220.0, 200.0), (450.0, 300.0)]
  found = fidelity.figures(
    {
      str(i): {"predicted_us": p, "measured_us": m}
      for i, (p, m) in enumerate(pairs)
    }
  )
  # Ratios 0.9, 1.1 and 1.5: 10%, 10% and 50% off, in the right order.
  assert found["median_error"] == pytest.approx(0.1)
  assert found["bias"] == pytest.approx(0.1)
  assert found["rank_correlation"] == pytest.approx(1.0)


def test_a_tiny_run_says_what_it_lacks_and_writes_its_figures(tmp_path):
  out = tmp_path / "fidelity.json"
  done = subprocess.run(
    [
      *(sys.executable, "-c", _RUN, str(fidelity.HERE)),
      *("--models=nmt", "--cluster=workers:3", "--placements=4"),
      *("--rounds=1", "--steps=2", "--budget_s=0.5", f"--out={out}"),
    ],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  found = json.loads(out.read_text())
  model = found["models"]["nmt"]
  assert len(model["placements"]) == 4
  assert all(
    row["measured_us"] > 0 < row["predicted_us"]
    for row in model["placements"].values()
  )
  assert model["median_error"] >= 0
  assert "latency" in model["links"][0]["slowdown"]
  if found["host"]["cores"] < 3:
    assert "give a core to each" in done.stdout
  assert out.with_suffix(".png").stat().st_size > 0


def test_unknown_model_is_one_sentence(capsys):
  assert fidelity.start(["--models=nosuch"]) == 1
  said = capsys.readouterr().err
  assert "unknown 'nosuch'; choose from inception_v3" in said
  assert len(said.strip().splitlines()) == 1
