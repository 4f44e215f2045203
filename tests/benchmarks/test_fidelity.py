"""The benchmark of fidelity: its placements, figures, and a tiny run."""

import json

import numpy as np
import pytest

from benchmarks.measured import run_fidelity
from tests.testing.slow import SLOW_TESTS
from tfplace.core import Cluster, Device, Link, Problem
from tfplace.core.op_graph import OpSpec, build_graph
from tfplace.simulate import Simulator

TOLD = {
  "ops": 2,
  "median_error": 0.5,
  "p90_error": 0.5,
  "bias": -0.5,
  "rank_correlation": None,
}


@pytest.fixture
def problem():
  """A chain of 40 ops on two devices."""
  ops = [OpSpec(str(i), "Relu", {"CPU": 5.0}, [100.0]) for i in range(40)]
  edges = [(i, 0, i + 1) for i in range(39)]
  devices = (Device("d0", "CPU"), Device("d1", "CPU"))
  links = (Link("d0", "d1", 10.0), Link("d1", "d0", 10.0))
  return Problem(build_graph("g", ops, edges), Cluster("two", devices, links))


def test_placements_go_from_good_to_random(problem):
  evaluator = Simulator(problem)
  rows = run_fidelity.placements(evaluator, 12, budget_s=0.1, seed=0)
  assert len(rows) == 12
  steps = evaluator.evaluate(np.stack(list(rows.values())))
  start = rows[
    min(zip(rows, steps, strict=True), key=lambda r: r[1].step_time_us)[0]
  ]
  moved = [
    int((row != start).sum())
    for label, row in rows.items()
    if label.endswith("random")
  ]
  # A chain does not gain by a second device: all on one, then up to half of
  # the ops elsewhere, for a random device may be the same one.
  assert len(set(start.tolist())) == 1
  assert min(moved) <= 2 < 10 <= max(moved)
  again = run_fidelity.placements(evaluator, 12, budget_s=0.1, seed=0)
  for label, row in rows.items():
    np.testing.assert_array_equal(again[label], row)


def test_figures_are_relative_to_what_was_measured():
  pairs = [(90.0, 100.0), (220.0, 200.0), (450.0, 300.0)]
  found = run_fidelity.figures(
    {
      str(i): {"predicted_us": p, "measured_us": m}
      for i, (p, m) in enumerate(pairs)
    }
  )
  # Ratios 0.9, 1.1 and 1.5: 10%, 10% and 50% off, in the right order.
  assert found["median_error"] == pytest.approx(0.1)
  assert found["bias"] == pytest.approx(0.1)
  assert found["rank_correlation"] == pytest.approx(1.0)


def test_equal_steps_have_no_rank_correlation():
  same = {"predicted_us": 1.0, "measured_us": 2.0}
  assert (
    run_fidelity.figures({"a": same, "b": same})["rank_correlation"] is None
  )


def test_a_tiny_run_writes_its_figures(
  tmp_path, monkeypatch, capsys, quick_links
):
  sizes = {"layers": 1, "units": 4, "vocabulary": 9, "length": 2}
  monkeypatch.setattr(run_fidelity, "MODELS", {"nmt": (2, sizes)})
  out = tmp_path / "fidelity.json"
  other = {**TOLD, "placements": {"a": {"predicted_us": 1, "measured_us": 2}}}
  out.write_text(json.dumps({"models": {"other": other}}))
  monkeypatch.setattr(
    run_fidelity, "MODELS", {**run_fidelity.MODELS, "other": (1, {})}
  )
  with quick_links():
    code = run_fidelity.OPTIONS.call(
      run_fidelity.main,
      [
        *("--models=nmt", "--placements=4", "--rounds=1", "--steps=2"),
        *("--budget_s=0.5", f"--out={out}"),
      ],
    )
  assert code == 0, capsys.readouterr().err
  models = json.loads(out.read_text())["models"]
  assert models["other"] == other  # it was not asked for
  model = models["nmt"]
  assert len(model["placements"]) == 4
  assert all(
    row["measured_us"] > 0 < row["predicted_us"]
    for row in model["placements"].values()
  )
  assert model["median_error"] >= 0
  assert model["links"][0]["fitted"]["latency"] > 0
  assert out.with_suffix(".png").stat().st_size > 0


@pytest.mark.skipif(not SLOW_TESTS, reason="set TFPLACE_SLOW_TESTS")
def test_workers_may_be_some_delay_apart(
  tmp_path, monkeypatch, capsys, quick_links
):
  sizes = {"layers": 1, "units": 4, "vocabulary": 9, "length": 2}
  monkeypatch.setattr(run_fidelity, "MODELS", {"nmt": (2, sizes)})
  out = tmp_path / "apart.json"
  with quick_links():
    code = run_fidelity.OPTIONS.call(
      run_fidelity.main,
      [
        *("--models=nmt", "--placements=2", "--rounds=1", "--steps=2"),
        *("--budget_s=0.5", f"--out={out}", "--delay_s=0.002"),
      ],
    )
  said = capsys.readouterr().err
  if "--delay_s=" in said:
    pytest.skip(said.strip())
  assert code == 0, said
  (model,) = json.loads(out.read_text())["models"].values()
  assert all(link["latency_us"] > 1500 for link in model["links"])


def test_a_host_that_is_busy_or_has_too_few_cores_is_told(capsys):
  run_fidelity.print_needs({"cores": 2, "load_before": 0.1}, devices=2)
  assert capsys.readouterr().out == ""
  run_fidelity.print_needs({"cores": 2, "load_before": 7.25}, devices=3)
  said = capsys.readouterr().out
  assert "3 workers on 2 cores" in said
  assert "the load is 7.2" in said


def test_unknown_model_is_one_sentence(capsys):
  assert run_fidelity.OPTIONS.call(run_fidelity.main, ["--models=nosuch"]) == 1
  said = capsys.readouterr().err
  assert "unknown 'nosuch'; choose from inception_v3" in said
  assert len(said.strip().splitlines()) == 1
