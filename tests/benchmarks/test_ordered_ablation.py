"""The ablation of `ordered`: its stages of training, and what arms change."""

import json
import pathlib

import numpy as np
import pytest

from benchmarks.learned import run_ordered, run_ordered_ablation
from benchmarks.lib import saved_rows
from benchmarks.models import graph_sets
from tfplace.learned import policies
from tfplace.learned.decisions import group_decisions
from tfplace.learned.ordered.tables import BaseTables
from tfplace.placers import registry


@pytest.fixture
def run(monkeypatch, tmp_path):
  monkeypatch.setattr(saved_rows, "pin_to_cores", lambda count: None)
  rows = [graph_sets.SyntheticRow(seed, "p100x2") for seed in (0, 1)]
  monkeypatch.setattr(graph_sets, "DEVELOPMENT", rows)
  given = [f"--out={tmp_path / 'rows.json'}", f"--work_dir={tmp_path / 'w'}"]
  return lambda *more: run_ordered_ablation.OPTIONS.call(
    run_ordered_ablation.main, [*given, "--rows=", "--seeds=0", *more]
  )


def test_random_changes_ask_no_policy(monkeypatch):
  loaded = []
  monkeypatch.setattr(
    policies, "load_placers_policy", lambda *given: loaded.append(given)
  )
  problem = graph_sets.SyntheticRow(0, "p100x2").problem(None)
  with run_ordered_ablation.random_changes():
    proposer = registry.open_proposer("ordered", None, problem)
  devices = np.zeros(problem.graph.num_ops, np.int32)
  rated = proposer.rate(0, devices)
  assert len(np.unique(rated[rated > 1e-6])) == 1
  assert not loaded


def test_arms_are_placed_beside_no_policy(run, tmp_path, capsys):
  assert run("--arms=random changes", "--budget_s=0.5") == 0
  rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
  assert len(rows) == 4
  assert all(row["step_time_us"] > 0 for row in rows.values())
  table = (tmp_path / "rows.md").read_text()
  assert "| *gain* | 1.000 |" in table
  assert run("--arms=both,mine") == 1
  assert "mine" in capsys.readouterr().err


def test_stages_share_the_minutes_and_go_on(run, monkeypatch):
  commands = []

  def trained(command, check):
    assert check
    commands.append(command[3:])
    (work,) = (c.split("=")[1] for c in command if c.startswith("--work_dir="))
    teachers = pathlib.Path(work) / "checkpoints" / "teachers"
    teachers.mkdir(parents=True, exist_ok=True)
    (teachers / f"{len(commands)}.npz").touch()

  monkeypatch.setattr(run_ordered_ablation.subprocess, "run", trained)
  arms = "--arms=imitation,both"
  assert run(arms, "--train_only", "--minutes=3") == 0
  alone, first, second = commands
  assert "--minutes=3.0" in alone
  assert "--minutes=1.5" in first
  assert "--minutes=1.5" in second
  assert not any("init_from" in option for option in (*alone, *first))
  (init,) = (o.split("=")[1] for o in second if "init_from" in o)
  (folder,) = (o.split("=")[1] for o in first if "work_dir" in o)
  assert init == f"{folder}/policy"
  (later,) = (o.split("=")[1] for o in second if "work_dir" in o)
  # All change the same placements.
  kept = pathlib.Path(later) / "checkpoints" / "teachers"
  assert {path.name for path in kept.iterdir()} == {"1.npz", "2.npz", "3.npz"}
  commands.clear()
  assert run(arms, "--train_only", "--minutes=3") == 0
  assert not commands  # All is there.


def test_a_hidden_schedule_is_seen_nowhere():
  problem = graph_sets.SyntheticRow(0, "p100x2").problem(None)
  decisions = group_decisions(problem, 16)
  allowed = problem.allowed
  base = np.where(allowed[:, 0], 0, allowed.argmax(axis=1)).astype(np.int32)
  known = BaseTables(decisions)
  with run_ordered.hidden_schedule():
    hidden = known.of(base)[1].scheduled
  seen = known.of(base)[1].scheduled
  assert hidden.shape == seen.shape
  assert not hidden.any()
  assert seen.any()
