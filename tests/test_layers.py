"""The package as a whole: imports go one way, and the public names exist."""

import ast
import pathlib
import subprocess
import sys

import pytest

import tfplace

PACKAGE = pathlib.Path(tfplace.__file__).parent
# What each folder may import of tfplace, besides itself and `errors`.
ALLOWED = {
  "graph": set(),
  "cost": {"graph"},
  "cache": {"graph"},
  "simulate": {"graph"},
  "bounds": {"graph", "simulate"},
  "placers": {"graph", "simulate", "bounds"},
  "policies": {"graph", "simulate", "placers"},
  "rl": {"graph", "simulate", "placers", "policies", "report"},
  "measure": {"graph", "cost", "simulate"},
  "models": {"graph"},
  "extraction": {"graph", "cost", "cache", "models"},
  "apply": {"graph", "cost", "bounds", "placers", "extraction"},
  "report": {"graph", "simulate", "placers", "bounds"},
}
WITHOUT_TENSORFLOW = (
  "graph",
  "cache",
  "extraction",
  "simulate",
  "placers",
  "bin.simulate",
  "bin.explain",
)


def tfplace_imports(path):
  """Folders of tfplace that a module imports, anywhere in it."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      module = node.module or ""
      names = (
        [f"tfplace.{alias.name}" for alias in node.names]
        if module == "tfplace"
        else [module]
      )
    else:
      continue
    parts = (name.split(".") for name in names)
    found |= {p[1] for p in parts if p[0] == "tfplace" and len(p) > 1}
  return found


@pytest.mark.parametrize("layer", ALLOWED)
def test_layer_imports_only_what_lies_below_it(layer):
  home = PACKAGE / layer
  files = home.rglob("*.py") if home.is_dir() else [home.with_suffix(".py")]
  for path in files:
    upward = tfplace_imports(path) - ALLOWED[layer] - {layer, "errors", "lazy"}
    assert not upward, f"{path.relative_to(PACKAGE)} imports {sorted(upward)}"


def test_every_folder_is_a_layer_or_the_commands():
  folders = {p.parent.name for p in PACKAGE.glob("*/__init__.py")}
  assert folders == {*ALLOWED, "bin"} - {"extraction"}


@pytest.mark.parametrize("module", WITHOUT_TENSORFLOW)
def test_module_imports_without_tensorflow(module):
  code = (
    f"import sys, tfplace.{module};"
    "print([m for m in ('tensorflow', 'keras') if m in sys.modules])"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", tfplace.__all__)
def test_public_name_exists_and_is_documented(name):
  assert getattr(tfplace, name).__doc__


def test_the_names_that_type_checkers_see_are_the_public_ones():
  tree = ast.parse((PACKAGE / "__init__.py").read_text())
  block = next(node for node in tree.body if isinstance(node, ast.If))
  seen = [alias.name for node in block.body for alias in node.names]
  assert sorted(seen) == sorted(tfplace.__all__)


def test_unknown_name_is_an_attribute_error():
  with pytest.raises(AttributeError, match="no attribute 'plaec'"):
    _ = tfplace.plaec
