"""Modules import in a user's process, or say that they need Keras 2."""

import ast
import os
import pathlib
import subprocess
import sys

import tfplace

PACKAGE = pathlib.Path(tfplace.__file__).parent
NEEDS_KERAS_2 = {"tensorflow_gnn", "tensorflow_probability", "tf_agents"}
EVERY_MODULE = """
import importlib, pkgutil
import tfplace.learned
import tfplace.training
from tfplace.errors import TrainingError
for module in (
  *pkgutil.walk_packages(tfplace.learned.__path__, "tfplace.learned."),
  *pkgutil.walk_packages(tfplace.training.__path__, "tfplace.training."),
):
  try:
    importlib.import_module(module.name)
    print(module.name, "works")
  except TrainingError as error:
    print(module.name, error)
"""


def imported(path):
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield (node.module or "").split(".")[0]


def test_libraries_that_need_keras_2_are_behind_the_check():
  found = {
    path.relative_to(PACKAGE).as_posix()
    for path in PACKAGE.rglob("*.py")
    if NEEDS_KERAS_2 & set(imported(path))
  }
  assert found == {"training/libraries.py"}


def test_a_module_works_or_says_that_it_needs_its_own_process():
  environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
  environment.pop("TF_USE_LEGACY_KERAS", None)
  done = subprocess.run(
    [sys.executable, "-c", EVERY_MODULE],
    env=environment,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
  for name in ("policies", "gdp", "sequence.placers"):
    assert found.pop(f"tfplace.learned.{name}") == "works"
  for name in ("libraries", "encoder.gdp", "encoder.ordered"):
    said = found.pop(f"tfplace.training.{name}")
    assert "TF_USE_LEGACY_KERAS=1" in said or "extra 'train'" in said
