"""Notebooks as programs: tests run them without Jupyter."""

import ast
import json
import pathlib
import subprocess
import sys


def cells(path: pathlib.Path, kind: str) -> list[str]:
  """The texts of a notebook's cells, of kind "code" or "markdown"."""
  notebook = json.loads(path.read_text(encoding="utf-8"))
  assert notebook["nbformat"] == 4
  found = [c for c in notebook["cells"] if c["cell_type"] == kind]
  return ["".join(cell["source"]) for cell in found]


def program(path: pathlib.Path) -> str:
  """The code of a notebook, which shows the last value of each cell."""
  parts = []
  for text in cells(path, "code"):
    body = ast.parse(text).body
    if isinstance(body[-1], ast.Expr) and not text.rstrip().endswith(";"):
      shown = ast.unparse(body.pop())
      body += ast.parse(f"__import__('sys').displayhook({shown})").body
    parts += [ast.unparse(statement) for statement in body]
  return "\n".join(parts)


def run(path: pathlib.Path, folder: pathlib.Path) -> str:
  """Runs a notebook in a child process in `folder`; returns its output."""
  script = folder / f"{path.stem}.py"
  script.write_text(program(path), encoding="utf-8")
  done = subprocess.run(
    [sys.executable, script],
    cwd=folder,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout
