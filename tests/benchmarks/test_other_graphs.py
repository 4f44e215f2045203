"""Samples of the policy on graphs of a folder."""

import json

import pytest

import tfplace
from benchmarks.learned import run_other_graphs
from benchmarks.lib import saved_rows
from benchmarks.models import synthetic, task_graphs
from tfplace.core import presets
from tfplace.simulate.links import mean_transfer


@pytest.fixture
def run(monkeypatch, tmp_path):
  monkeypatch.setattr(saved_rows, "pin_to_cores", lambda count: None)
  out = f"--out={tmp_path / 'rows.json'}"
  return lambda *more: run_other_graphs.OPTIONS.call(
    run_other_graphs.main, [out, "--clusters=p100x2", "--seconds=0.5", *more]
  )


def test_each_graph_is_placed_on_each_cluster(run, tmp_path):
  graph = synthetic.synthetic_graph(60, 0)
  tfplace.save_graph(graph, tmp_path / "mine.json.gz")
  assert run(f"--data_dir={tmp_path}") == 0
  rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
  (label,) = rows
  assert label == f"{graph.name} (p100x2)"
  row = rows[label]
  shots = [
    one["step_time_us"] for one in row["one_shot"].values() if len(one) > 1
  ]
  assert row["policy"]["step_time_us"] <= min(shots) * 1.1
  assert row["policy"]["evaluations"] == row["changes"]["evaluations"] > 10
  assert label in (tmp_path / "rows.md").read_text()


def test_task_graphs_are_those_of_the_literature():
  cluster = presets.cluster_preset("v100x4")
  # Numbers of ops: 2m - 1 + m log m, (m^2 + m - 2) / 2, m(m + 1)(m + 2) / 6.
  for family, size, count in (
    ("fft", 64, 511),
    ("gaussian_elimination", 40, 819),
    ("cholesky", 12, 364),
    ("random_layers", 100, 100),
  ):
    graph = task_graphs.task_graph(family, size, 1.0, cluster)
    assert graph.num_ops == count
    assert len(graph.topological_order) == count
    assert 80.0 < graph.time_us["GPU"].mean() < 125.0


def test_transfers_take_the_asked_share_of_an_op():
  cluster = presets.cluster_preset("v100x4")
  graph = task_graphs.task_graph("fft", 64, 2.0, cluster)
  us_per_byte, fixed_us = mean_transfer(cluster)
  transfer_us = fixed_us + us_per_byte * graph.edge_bytes
  assert 170.0 < transfer_us.mean() < 230.0


def test_task_graphs_are_placed_without_a_folder(run, tmp_path, monkeypatch):
  rows = {"test": (("cholesky", 5, 1.0, "p100x2", 0),)}
  monkeypatch.setattr(run_other_graphs, "TASK_GRAPHS", rows)
  assert run() == 0
  (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"].values()
  assert row["ops"] == 35
  best = row["policy"]["step_time_us"]
  assert 0 < row["bound_us"] <= best * (1 + 1e-9)
  assert row["annealing"]["step_time_us"] >= row["bound_us"] * (1 - 1e-9)


def test_an_empty_folder_is_named(run, tmp_path, capsys):
  assert run(f"--data_dir={tmp_path}") == 1
  assert f"--data_dir='{tmp_path}' has no *.json.gz" in capsys.readouterr().err
