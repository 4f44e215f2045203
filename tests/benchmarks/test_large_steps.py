"""Large steps: on a small one, each placer in a process, stopped in time."""

import json
import time

from benchmarks.speed import run_large_steps

SETTINGS = ("--model=", "--ops=300", "--synthetic_on=2*v100x2")


def run(tmp_path, *flags):
  out = tmp_path / "large.json"
  code = run_large_steps.OPTIONS.call(
    run_large_steps.main, [*SETTINGS, f"--out={out}", *flags]
  )
  return code, json.loads(out.read_text())["rows"] if out.exists() else None


def test_each_placer_has_a_row_with_its_memory(tmp_path):
  code, rows = run(
    tmp_path, "--placers=single,pipeline,annealing", "--budget_s=1"
  )
  assert code == 0
  start = "300 synthetic ops/2*v100x2/"
  assert list(rows) == [
    start + row
    for row in ("build", "simulate", "single", "pipeline", "annealing")
  ]
  assert rows[start + "build"]["ops"] == 300
  single, annealing = (rows[start + row] for row in ("single", "annealing"))
  assert annealing["step_time_us"] < single["step_time_us"]
  assert single["devices"] == 1
  assert 50 < annealing["peak_mib"] < 8000
  text = (tmp_path / "large.md").read_text()
  assert "300 ops" in text
  assert f"{annealing['step_time_us'] / 1e3:.1f}" in text


def test_a_placer_that_does_not_end_is_stopped():
  found = run_large_steps.in_a_process(3.0, time.sleep, 60)
  assert found == {"error": "did not end within 3 s"}


def test_a_process_that_dies_says_how():
  found = run_large_steps.in_a_process(60.0, die)
  assert found == {"error": "its process ended with code 3"}


def die():
  import os

  os._exit(3)


def test_a_graph_that_cannot_be_built_is_not_placed(tmp_path):
  code, rows = run(tmp_path, "--placers=single", "--limit_s=0.001")
  assert code == 0
  assert list(rows) == ["300 synthetic ops/2*v100x2/build"]
  assert "did not end within 0.001 s" in (tmp_path / "large.md").read_text()


def test_unknown_placers_are_refused(tmp_path, capsys):
  code, rows = run(tmp_path, "--placers=best")
  assert code == 1
  assert rows is None
  assert "unknown 'best'; choose from single" in capsys.readouterr().err
