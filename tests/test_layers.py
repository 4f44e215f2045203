"""The package as a whole: imports go one way, and the public names exist."""

import ast
import graphlib
import pathlib
import re
import subprocess
import sys

import pytest

import tfplace
from tests.testing.layers import ALLOWED, ANYWHERE

PACKAGE = pathlib.Path(tfplace.__file__).parent
# The registry names the methods of a higher layer, and a plan prints itself by
# one; they import them on use.
ON_USE = {
  "placers/registry.py": {"learned"},
  "plan/plan.py": {"report"},
  "graph/placement.py": {"formats"},
  "graph/evaluation.py": {"formats"},
}
# "tfplace.folder.module" or "tfplace.folder.module:Name", and not the name of a
# file format such as "tfplace.graph.v1".
DOTTED_NAME = re.compile(r"tfplace(?:\.(?!v\d+(?:\W|$))\w+)+(?::\w+)?")
WITHOUT_TENSORFLOW = (
  "graph",
  "hardware",
  "formats",
  "plan.planner",
  "plan.live_step",
  "plan.steps",
  "simulate",
  "bounds",
  "placers",
  "measure.session.worker",
  "measure.remote.serving",
  "bin.simulate",
  "bin.explain",
)


def tfplace_imports(code):
  """Folders of tfplace that a module imports or names in a string."""
  found = set()
  for node in ast.walk(ast.parse(code)):
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      module = node.module or ""
      names = (
        [f"tfplace.{alias.name}" for alias in node.names]
        if module == "tfplace"
        else [module]
      )
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
      names = [node.value] if DOTTED_NAME.fullmatch(node.value) else []
    else:
      continue
    parts = (name.split(".") for name in names)
    found |= {p[1] for p in parts if p[0] == "tfplace" and len(p) > 1}
  return found


@pytest.mark.parametrize("layer", ALLOWED)
def test_layer_imports_what_the_table_says_and_nothing_else(layer):
  used = set()
  for path in (PACKAGE / layer).rglob("*.py"):
    name = str(path.relative_to(PACKAGE))
    imported = tfplace_imports(path.read_text()) - {layer} - ANYWHERE
    imported -= ON_USE.get(name, set())
    upward = imported - ALLOWED[layer]
    assert not upward, f"{name} imports {sorted(upward)}"
    used |= imported
  assert used == ALLOWED[layer], "a permission that nobody uses"


def test_no_layer_imports_one_that_imports_it():
  graphlib.TopologicalSorter(ALLOWED).prepare()  # Or a CycleError.


def modules_by_import():
  """Module -> modules of tfplace that it imports, anywhere in its code."""
  paths = {
    ".".join(("tfplace", *p.relative_to(PACKAGE).with_suffix("").parts)): p
    for p in PACKAGE.rglob("*.py")
  }
  paths = {name.removesuffix(".__init__"): p for name, p in paths.items()}
  imports = {}
  for name, path in paths.items():
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Import):
        names |= {alias.name for alias in node.names}
      elif isinstance(node, ast.ImportFrom):
        inner = {f"{node.module}.{alias.name}" for alias in node.names}
        names |= inner & set(paths) or {node.module}
    imports[name] = names & set(paths) - {name}
  return imports


def test_no_module_imports_one_that_imports_it():
  imports = modules_by_import()
  # Plans print and results save themselves, by modules that import them.
  imports["tfplace.plan.plan"].remove("tfplace.report.plans")
  for name in ("placement", "evaluation"):
    imports[f"tfplace.graph.{name}"].remove("tfplace.formats.results")
  graphlib.TopologicalSorter(imports).prepare()  # Or a CycleError.


def test_libraries_that_need_keras_2_are_in_one_module():
  libraries = {"tensorflow_gnn", "tensorflow_probability", "tf_agents"}
  found = set()
  for path in PACKAGE.rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
      else:
        continue
      if libraries & {name.partition(".")[0] for name in names}:
        found.add(path.relative_to(PACKAGE).as_posix())
  assert found == {"training/libraries.py"}


def test_every_folder_is_a_layer_or_the_commands():
  folders = {p.parent.name for p in PACKAGE.glob("*/__init__.py")}
  assert folders == {*ALLOWED, "bin"}


def test_modules_import_without_tensorflow():
  code = (
    "import importlib, sys\n"
    "for name in sys.argv[1:]:\n"
    "  importlib.import_module(f'tfplace.{name}')\n"
    "  if {'tensorflow', 'keras'} & set(sys.modules): print(name)"
  )
  command = [sys.executable, "-c", code, *WITHOUT_TENSORFLOW]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  assert done.stdout == ""  # or the modules from the first that loads them on


@pytest.mark.parametrize("name", tfplace.__all__)
def test_public_name_exists_and_is_documented(name):
  assert getattr(tfplace, name).__doc__


def test_the_names_that_type_checkers_see_are_the_public_ones():
  tree = ast.parse((PACKAGE / "__init__.py").read_text())
  block = next(node for node in tree.body if isinstance(node, ast.If))
  seen = [alias.name for node in block.body for alias in node.names]
  assert sorted(seen) == sorted(tfplace.__all__)


def test_no_two_files_of_tests_share_a_name():
  # pytest imports them as modules by that name, and collects only the first.
  tests = pathlib.Path(__file__).parent
  names = [path.name for path in tests.rglob("test_*.py")]
  assert sorted(names) == sorted(set(names))
