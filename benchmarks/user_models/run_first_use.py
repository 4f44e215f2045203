"""Seconds from an empty virtual environment to the first placed model.

Makes a virtual environment, installs a copy of this checkout with pip, and
runs `first_use.py`, which places a small Keras model on two logical CPU
devices: twice, because the first run compiles the search. Packages come from
pip's cache where they are there. Writes JSON.

  python -m benchmarks.user_models.run_first_use
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from benchmarks.lib.command import Options
from tfplace.bin import cli
from tfplace.formats.json_file import write_json

OPTIONS = Options("run_first_use", __doc__)
_PYTHON = OPTIONS.add("python", sys.executable, "Python that makes it.")
_OUT = OPTIONS.out("first_use.json")

_ROOT = pathlib.Path(__file__).parents[2]
_SOURCES = ("tfplace", "setup.py", "pyproject.toml", "README.md", "LICENSE")
_NO_CACHES = shutil.ignore_patterns("__pycache__")


def timed(
  arguments: Sequence[str | pathlib.Path], folder: str
) -> tuple[float, str]:
  """Runs a command in a folder; returns its seconds and what it prints.

  Raises:
    UsageError: the command failed; the message has its last line.
  """
  env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
  began = time.perf_counter()
  done = subprocess.run(
    list(map(str, arguments)),
    cwd=folder,
    env={**env, "TF_CPP_MIN_LOG_LEVEL": "3"},
    capture_output=True,
    text=True,
    check=False,
  )
  seconds = round(time.perf_counter() - began, 1)
  if done.returncode:
    lines = done.stderr.strip().splitlines() or ["no message"]
    name = " ".join(map(str, arguments[1:3]))
    raise cli.UsageError(f"{name} failed: {lines[-1]}")
  return seconds, done.stdout


def first_use(
  python: str, folder: str, show: Callable[[dict[str, Any]], None]
) -> None:
  """Goes the way and shows, after each part, the seconds of all so far."""
  copy = pathlib.Path(folder, "tfplace")
  copy.mkdir()
  for name in _SOURCES:
    if (_ROOT / name).is_dir():
      shutil.copytree(_ROOT / name, copy / name, ignore=_NO_CACHES)
    else:
      shutil.copy(_ROOT / name, copy / name)
  own = pathlib.Path(folder, "venv", "bin", "python")
  script = pathlib.Path(__file__).with_name("first_use.py")
  found: dict[str, Any] = {"load": round(os.getloadavg()[0], 1)}
  venv = own.parents[1]
  found["venv_s"], _ = timed([python, "-m", "venv", venv], folder)
  show(found)
  found["install_s"], _ = timed([own, "-m", "pip", "install", copy], folder)
  show(found)
  for key in ("first_run", "second_run"):
    seconds, printed = timed([own, script], folder)
    found[key] = {"wall_s": seconds, **json.loads(printed.splitlines()[-1])}
    show(found)
  parts = (found["venv_s"], found["install_s"], found["first_run"]["wall_s"])
  found["total_s"] = round(sum(parts), 1)
  show(found)


def main(_: flags.FlagValues) -> None:
  def show(found: dict[str, Any]) -> None:
    write_json(pathlib.Path(_OUT.value), found)
    print(found, flush=True)

  with tempfile.TemporaryDirectory() as folder:
    first_use(_PYTHON.value, folder, show)


if __name__ == "__main__":
  OPTIONS.run(main)
