"""BUILD files say of the package what its imports say."""

import ast
import pathlib

import pytest

from tests.testing.layers import ALLOWED

ROOT = pathlib.Path(__file__).parents[1]


def targets(build_file):
  """Keyword arguments of each top-level call; what is no literal is dropped."""
  calls = [
    node.value
    for node in ast.parse(build_file.read_text()).body
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
  ]
  return [
    {k.arg: literal(k.value) for k in call.keywords} | {"rule": call.func.id}
    for call in calls
  ]


def literal(node):
  try:
    return ast.literal_eval(node)
  except ValueError:
    return ast.unparse(node)


def library(build_file, name):
  found = [t for t in targets(build_file) if t.get("name") == name]
  assert len(found) == 1, f"{build_file} has no target '{name}'"
  return found[0]


@pytest.mark.parametrize("layer", ALLOWED)
def test_library_depends_on_what_the_layer_may_import(layer):
  target = library(ROOT / "tfplace" / layer / "BUILD", layer)
  assert target["rule"] == "py_library"
  assert target["srcs"] == "glob(['**/*.py'])"
  expected = [f"//tfplace/{name}" for name in sorted(ALLOWED[layer])]
  assert target["deps"] == ["//tfplace:base", *expected]


def test_the_package_is_all_layers():
  target = library(ROOT / "tfplace" / "BUILD", "tfplace")
  layers = [f"//tfplace/{name}" for name in sorted(ALLOWED)]
  assert target["deps"] == [":base", *layers]


def test_every_folder_of_tests_has_its_target():
  for folder in (ROOT / "tests").iterdir():
    if folder.name == "testing":
      assert library(folder / "BUILD", "testing")["rule"] == "py_library"
    elif any(folder.glob("*.py")):
      target = library(folder / "BUILD", folder.name)
      assert target["rule"] == "pytest_folder"


def test_bazel_runs_every_file_that_does_not_import_tensorflow():
  for build_file in (ROOT / "tests").glob("*/BUILD"):
    folder = build_file.parent
    if folder.name == "testing":
      continue
    target = library(build_file, folder.name)
    if "manual" in target.get("tags", ()):
      assert any(map(imports_tensorflow, folder.rglob("*.py")))
      continue
    left_out = set(target.get("tensorflow", ()))
    loading = {p.name for p in folder.rglob("*.py") if imports_tensorflow(p)}
    assert loading == left_out


def imports_tensorflow(path):
  """True if a file imports TensorFlow or Keras."""
  names = []
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      names += [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      names.append(node.module or "")
  return any(n.split(".")[0] in ("tensorflow", "keras") for n in names)


def test_build_files_are_short():
  lines = [
    len(path.read_text().splitlines())
    for folder in ("tfplace", "tests")
    for path in (ROOT / folder).rglob("BUILD")
  ]
  assert sum(lines) < 800


def test_no_two_files_of_tests_share_a_name():
  # pytest imports them as modules by that name, and collects only the first.
  names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
  assert sorted(names) == sorted(set(names))
