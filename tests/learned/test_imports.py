"""Modules import in a user's process, or say that they need Keras 2."""

import ast
import pathlib

import tfplace

PACKAGE = pathlib.Path(tfplace.__file__).parent
NEEDS_KERAS_2 = {"tensorflow_gnn", "tensorflow_probability", "tf_agents"}


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
