"""Samples of the policy on graphs of a folder."""

import json

import pytest

import tfplace
from benchmarks.learned import run_other_graphs
from benchmarks.lib import saved_rows
from benchmarks.models import synthetic


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


def test_an_empty_folder_is_named(run, tmp_path, capsys):
  assert run(f"--data_dir={tmp_path}") == 1
  assert f"--data_dir='{tmp_path}' has no *.json.gz" in capsys.readouterr().err
  assert run() == 1
  assert "--data_dir is missing" in capsys.readouterr().err
