"""The sets of graphs, and the command that measures the policy on one."""

import json
import re

import pytest

from benchmarks.learned import run_holdout
from benchmarks.lib import saved_rows
from benchmarks.models import (
  development,
  graph_sets,
  holdout,
  reference,
  second_holdout,
  synthetic,
)
from tfplace.bounds import lower_bound
from tfplace.core import Problem
from tfplace.core.presets import cluster_preset
from tfplace.learned import policies


class Tiny:
  label = "tiny"

  def problem(self, cache_dir):
    del cache_dir
    return Problem(synthetic.synthetic_graph(60, 0), cluster_preset("p100x2"))


@pytest.fixture
def run(monkeypatch, tmp_path):
  monkeypatch.setattr(saved_rows, "pin_to_cores", lambda count: None)
  monkeypatch.setitem(graph_sets.SETS, "development", [Tiny()])
  out = tmp_path / "rows.json"
  policy = policies.SHIPPED / "ordered"  # given: asked whatever the seconds
  common = [f"--out={out}", "--budgets_s=2", "--seeds=0", f"--policy={policy}"]
  return lambda *more: run_holdout.OPTIONS.call(
    run_holdout.main, [*common, *more]
  )


def test_a_row_has_both_arms_and_what_the_policy_does_alone(run, tmp_path):
  assert run() == 0
  rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
  alone, autos = rows["tiny/alone"], rows["tiny/2/0"]
  least_us = lower_bound(Tiny().problem(None)).us * (1 - 1e-9)
  # Baechi's and Scotch's placers among them, not the simple rules alone.
  assert {"metis", "m_sct", "heft", "expert"} <= set(alone["one_shot"])
  assert alone["random"]["evaluations"] == alone["policy"]["evaluations"]
  for found in (alone["policy"], alone["random"], *autos.values()):
    assert found["step_time_us"] >= least_us
  # The step is whole.
  assert "inside the search" in autos["with"]["skipped"]["ordered"]
  assert "ordered" not in autos["without"]["skipped"]
  text = (tmp_path / "rows.md").read_text()
  gain = autos["without"]["step_time_us"] / autos["with"]["step_time_us"]
  assert f"| {gain:.3f}, {gain:.3f} |" in text
  over = alone["policy"]["step_time_us"] / alone["random"]["step_time_us"]
  assert f"| {over:.3f} |" in text


def test_counting_places_nothing(run, tmp_path, capsys):
  assert run("--count") == 0
  assert capsys.readouterr().out == "tiny: 60 ops\n"
  assert not (tmp_path / "rows.json").exists()


@pytest.mark.parametrize(
  "flag, text",
  [
    ("--set=other", "set"),
    ("--rows=foo", "names no row of --set=development: its rows are tiny"),
    ("--seeds=a", "--seeds: 'a' is no whole number"),
    ("--budgets_s=-3", "--budgets_s: '-3' is no whole number"),
  ],
)
def test_wrong_flags_are_one_line(run, capsys, flag, text):
  assert run(flag) == 1
  error = capsys.readouterr().err
  assert text in error
  assert "Traceback" not in error


def test_no_model_is_in_both_sets():
  def models(rows):
    rows = [getattr(row, "row", row) for row in rows]
    return {row.model for row in rows if hasattr(row, "model")}

  test_rows = graph_sets.TEST
  assert not models(test_rows) & models(graph_sets.DEVELOPMENT)
  assert not models(test_rows) & set(reference.MODELS)
  assert models(test_rows) <= set(holdout.MODELS)
  known = {*development.MODELS, *second_holdout.MODELS}
  assert models(graph_sets.LOOKED_AT) == known
  assert not models(test_rows) & models(graph_sets.TRAINING)


def test_the_test_set_has_gpus_that_training_has_not():
  def gpus(rows):
    names = " ".join(row.cluster for row in rows)
    return set(re.findall(r"[a-z]+\d+(?=x\d)", names))

  assert not gpus(graph_sets.TEST) & gpus(graph_sets.TRAINING)
  whole = sum(row.microbatches == 1 for row in graph_sets.TEST)
  assert whole == len(graph_sets.TEST) / 2
  for row in graph_sets.TEST:
    assert len(cluster_preset(row.cluster).devices) >= 4
