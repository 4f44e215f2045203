"""Models of users: the registry, a row of a tiny model, of a broken one."""

import ast
import json
import math
import pathlib

import pytest

from benchmarks.user_models import (
  registry,
  run_user_models,
  try_model,
  user_models_report,
)

ROOT = pathlib.Path(__file__).parents[2]


def test_each_user_model_is_a_function_of_its_module():
  assert len(registry.FOURTEEN) == 14
  assert len(registry.MODELS) == 24
  for name, entry in registry.MODELS.items():
    path = ROOT.joinpath(*entry.module.split(".")).with_suffix(".py")
    body = ast.parse(path.read_text(encoding="utf-8")).body
    functions = [f.name for f in body if isinstance(f, ast.FunctionDef)]
    assert name in functions
    # Its Keras file needs the classes of the module, where it has some.
    models = [c for c in body if isinstance(c, ast.ClassDef)]
    assert entry.imports or not models or _uses_no_class(body, name, models)


def _uses_no_class(body, name, classes):
  (function,) = [
    f for f in body if isinstance(f, ast.FunctionDef) and f.name == name
  ]
  used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
  return not used & {c.name for c in classes}


def test_rows_of_a_tiny_and_of_a_broken_user_model(tmp_path, capsys):
  out = tmp_path / "rows.json"
  flags = (
    "--module=tests.testing.user_models",
    "--cluster=v100x2",
    "--budget_s=0.5",
    f"--out={out}",
  )
  assert run_user_models.OPTIONS.call(run_user_models.main, flags) == 0
  rows = json.loads(out.read_text())["rows"]
  assert list(rows) == ["chain", "broken"]
  chain = rows["chain"]
  assert chain["fit"]["steps"] == 2
  for part in ("fit", "plan", "plan_auto", "save", "place", "shell"):
    assert chain[part]["works"], chain[part]
  assert chain["plan"]["ops"] > 10
  assert chain["plan"]["seconds"]
  assert chain["place"]["difference"] < 1e-5
  assert chain["plan"]["wall_s"] <= chain["total_s"]
  broken = rows["broken"]
  assert broken["fit"]["error"] == "no such layer: its second line"
  assert not {"plan", "place", "shell"} & set(broken)
  table = out.with_suffix(".md").read_text()
  assert "- broken, fit: no such layer: its second line" in table
  # What is there is not tried again.
  before = out.read_text()
  assert run_user_models.OPTIONS.call(run_user_models.main, flags) == 0
  assert out.read_text() == before
  code = run_user_models.OPTIONS.call(
    run_user_models.main, [*flags, "--only=chian"]
  )
  assert code == 1
  assert "--only: unknown 'chian'; choose from chain" in capsys.readouterr().err


def test_differences_of_losses_are_relative_and_of_equal_names():
  one = [{"loss": 2.0, "d_loss": 0.0}, {"loss": 1.0, "d_loss": 4.0}]
  two = [{"loss": 2.0, "d_loss": 0.0}, {"loss": 1.0, "d_loss": 5.0}]
  assert try_model.largest_difference(one, one) == 0.0
  assert try_model.largest_difference(one, two) == pytest.approx(0.2)
  assert try_model.largest_difference(one, two[:1]) is None
  assert try_model.largest_difference([], []) is None
  bad = [{"loss": math.nan}]
  assert try_model.largest_difference(bad, bad) is None
  assert try_model.losses_of({"loss": 1, "accuracy": 0.5}) == {"loss": 1.0}


def test_flags_that_an_error_shows_are_found():
  find = run_user_models.typed_shapes
  assert find("model 'm' has open shapes: give a sample batch") is None
  assert find("add --input_shapes=a:16x128,b:16x4 or --sample=F.npz.") == (
    "--input_shapes=a:16x128,b:16x4"
  )
  assert find("type '--input_shapes=tokens:16x128'.") == (
    "--input_shapes=tokens:16x128"
  )


def test_a_process_that_takes_too_long_is_ended():
  sleeping = ["-c", "import time; time.sleep(60)"]
  found = run_user_models.finished(sleeping, 0.5)
  assert found["code"] is None
  assert found["error"] == "ended after 0.5 s"
  failing = ["-c", "import sys; sys.exit('first\\nlast')"]
  found = run_user_models.finished(failing, 30.0)
  assert (found["code"], found["error"]) == (1, "last")


def test_the_table_of_user_models_has_both_revisions():
  refused = {"works": False, "error": "give a sample batch", "wall_s": 0.2}
  planned = {"works": True, "wall_s": 12.4, "ops": 3410}
  placed = {"works": True, "wall_s": 30.0, "difference": 8e-8}
  typed = {"works": True, "wall_s": 20.4}
  shell = {"shell": refused, "shell_with_shapes": typed}
  rows = {
    "bert": {"plan": planned, "place": placed, **shell, "load": [1.0, 2.0]}
  }
  before = {"bert": {"plan": refused, "place": placed, "load": [1.0, 2.0]}}
  text = user_models_report.markdown(rows, before)
  assert "| bert | 3,410 | - → 12 |" in text
  assert "| 30 → 30 |" in text
  assert "|  → -, 20 | 8.0e-08 | 1 to 2 → 1 to 2 |" in text
  assert "Before: `plan_model` 0 of 1; " in text
  assert "After: `plan_model` 1 of 1, median 12 s; " in text
  alone = user_models_report.markdown(before)
  assert "- bert, plan: give a sample batch" in alone
