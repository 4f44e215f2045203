"""Writes the BUILD files: one py_library per module, one py_test per test.

Targets and their dependencies follow from the imports at the top of each
module, so the files never drift. `--check` fails if they would change.
"""

import argparse
import ast
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Quick and without TensorFlow: what `bazel test //...` runs. The others are
# targets too, tagged manual; the README's test command runs all of them.
FAST_TESTS = (
  "graph/test_formats.py",
  "graph/test_problem.py",
  "graph/test_presets.py",
  "simulate/test_rules_by_hand.py",
)
HEAD = '''"""Made by .ci/build_files.py from the imports; do not edit."""

package(default_visibility = ["//visibility:public"])
'''


def imported_modules(path: pathlib.Path) -> set[str]:
  """Dotted tfplace modules that a file imports at its top level."""
  found: set[str] = set()
  for node in ast.parse(path.read_text(encoding="utf-8")).body:
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom) and node.module:
      found.add(node.module)
      found |= {f"{node.module}.{alias.name}" for alias in node.names}
  return {name for name in found if name.split(".")[0] == "tfplace"}


def label_of(module: str) -> str | None:
  """The target of a dotted module or package; None if it is neither."""
  path = ROOT / module.replace(".", "/")
  if path.with_suffix(".py").exists():
    return f"//{path.parent.relative_to(ROOT)}:{path.name}"
  if module != "tfplace" and (path / "__init__.py").exists():
    return f"//{path.relative_to(ROOT)}"
  return None


def init_labels(folder: pathlib.Path) -> set[str]:
  """The `__init__` targets of a folder and of those above it."""
  parts = folder.relative_to(ROOT).parts
  return {f"//{'/'.join(parts[: i + 1])}:__init__" for i in range(len(parts))}


def dependencies(path: pathlib.Path) -> list[str]:
  """Labels of what a module imports, its own package's `__init__` too."""
  names = imported_modules(path)
  # `from a.b import c` names the module a.b, and a.b.c only if that is one.
  modules = {n for n in names if label_of(n)}
  packages = {n for n in modules if (ROOT / n.replace(".", "/")).is_dir()}
  parents = {p for p in packages if any(m.startswith(f"{p}.") for m in modules)}
  labels = {label_of(module) for module in modules - parents}
  return sorted({label for label in labels if label} | init_labels(path.parent))


def rule(kind: str, name: str, **fields: object) -> str:
  """One BUILD rule; empty fields are left out."""
  lines = [f"{kind}(", f'    name = "{name}",']
  for key, value in fields.items():
    if value in ([], "", None):
      continue
    lines.append(f"    {key} = {render(value)},")
  return "\n".join([*lines, ")"]) + "\n"


def render(value: object) -> str:
  """A Starlark string or list of strings."""
  if isinstance(value, str):
    return f'"{value}"' if not value.startswith("glob(") else value
  if isinstance(value, list) and len(value) > 1:
    return "[\n" + "".join(f'        "{v}",\n' for v in value) + "    ]"
  return "[" + ", ".join(f'"{v}"' for v in value) + "]"  # type: ignore[attr-defined]


def is_data(path: pathlib.Path) -> bool:
  """Whether a file travels with its package without being code."""
  return path.name == "py.typed" or path.suffix in (".json", ".html")


def package_build(folder: pathlib.Path) -> str:
  """The BUILD file of one folder of the package."""
  modules = sorted(p for p in folder.glob("*.py") if p.stem != "__init__")
  folders = sorted(
    p.parent for p in folder.glob("*/__init__.py") if p.parent != folder
  )
  rules = [rule("py_library", "__init__", srcs=["__init__.py"])]
  for path in modules:
    own = f"//{folder.relative_to(ROOT)}:{path.stem}"
    deps = [d for d in dependencies(path) if d != own]
    rules.append(rule("py_library", path.stem, srcs=[path.name], deps=deps))
  data = sorted(p.name for p in folder.iterdir() if is_data(p))
  if (folder / "pretrained").is_dir():
    data = 'glob(["pretrained/**"])'  # type: ignore[assignment]
  deps = [":__init__", *(f":{p.stem}" for p in modules)]
  deps += [f"//{p.relative_to(ROOT)}" for p in folders]
  rules.append(rule("py_library", folder.name, data=data, deps=deps))
  return HEAD + "\n" + "\n".join(rules)


def tests_build(folder: pathlib.Path) -> str:
  """The one BUILD file of the tests."""
  rules = []
  support = [
    str(p.relative_to(folder))
    for p in sorted(folder.rglob("*.py"))
    if not p.name.startswith("test_")
  ]
  for path in sorted(folder.rglob("test_*.py")):
    name = str(path.relative_to(folder))
    rules.append(
      rule(
        "py_test",
        name.removesuffix(".py").replace("/", "_"),
        srcs=sorted([name, *support]),
        main="run_pytest.py",
        args=[f"tests/{name}"],
        size="small" if name in FAST_TESTS else "large",
        tags=[] if name in FAST_TESTS else ["manual"],
        deps=["//tfplace"],
      )
    )
  return HEAD + "\n" + "\n".join(rules)


def main() -> int:
  """Writes or checks every BUILD file; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--check", action="store_true")
  check = parser.parse_args().check
  inits = (ROOT / "tfplace").rglob("__init__.py")
  wanted = {p.parent / "BUILD": package_build(p.parent) for p in inits}
  wanted[ROOT / "tests" / "BUILD"] = tests_build(ROOT / "tests")
  stale = [
    path
    for path, text in wanted.items()
    if not path.exists() or path.read_text(encoding="utf-8") != text
  ]
  for path in stale:
    print(f"{'stale' if check else 'wrote'}: {path.relative_to(ROOT)}")
    if not check:
      path.write_text(wanted[path], encoding="utf-8")
  return 1 if check and stale else 0


if __name__ == "__main__":
  sys.exit(main())
