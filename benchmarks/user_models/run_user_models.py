"""Models as users write them: what works, how long it takes, what is said.

Each of the 24 models of `registry.py` is tried in processes of its own (see
`try_model.py`): fitted, planned for `--cluster` without and with microbatches,
placed on the process's devices and compared with the unplaced model, saved, and
placed by `tfplace-place` from the shell. A model that fails has a row, too.
Writes JSON and, with `--before`, a table of both. Rows that the file holds are
not made again. keras-hub must be installed.

  python -m benchmarks.user_models.run_user_models --revision=$(git rev-parse --short HEAD)
  python -m benchmarks.user_models.run_user_models --only=bert,vae
"""  # noqa: E501

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from absl import flags

from benchmarks.lib import command, report, saved_rows
from benchmarks.lib.command import Options
from benchmarks.user_models import registry, user_models_report
from tfplace.bin import cli

OPTIONS = Options("run_user_models", __doc__)
_ONLY = OPTIONS.add("only", [], "Models to try; all by default.")
_MODULE = OPTIONS.add(
  "module", "benchmarks.user_models.registry", "Module that has `MODELS`."
)
_CLUSTER = OPTIONS.add("cluster", "v100x4", "Cluster to plan for.")
_BUDGET = OPTIONS.add("budget_s", 10.0, "Seconds of each search.", least=0.0)
_DEVICES = OPTIONS.add("devices", 2, "Logical CPU devices.", least=1)
_LIMIT = OPTIONS.add("limit_s", 400.0, "Seconds of a process.", least=1.0)
_SHELL = OPTIONS.add("shell", True, "Also try `tfplace-place`.")
_REVISION = OPTIONS.add("revision", "", "Revision of tfplace, for the rows.")
_BEFORE = OPTIONS.add("before", None, "JSON file of an earlier revision.")
_OUT = OPTIONS.out("user_models.json")

_ROOT = pathlib.Path(__file__).parents[2]
_INPUT_SHAPES = re.compile(r"--input_shapes=[^\s'\"`]*[^\s'\"`.,;:)]")


def tried(name: str, entry: registry.UserModel) -> dict[str, Any]:
  """Tries one model; returns its row."""
  load = os.getloadavg()[0]
  began = time.perf_counter()
  with tempfile.TemporaryDirectory() as folder:
    keras_file = pathlib.Path(folder, f"{name}.keras")
    row = _in_python(name, folder, keras_file)
    # A model that cannot be saved leaves a broken file.
    if _SHELL.value and row.get("save", {}).get("works"):
      row["shell"] = _in_shell(entry, folder, keras_file)
      typed = typed_shapes(row["shell"].get("error", ""))
      if typed:
        row["shell_with_shapes"] = {
          "typed": typed,
          **_in_shell(entry, folder, keras_file, typed),
        }
  row["total_s"] = round(time.perf_counter() - began, 1)
  if "keras_hub" in entry.imports:
    row["keras_hub"] = importlib.metadata.version("keras-hub")
  row["revision"] = _REVISION.value
  row["load"] = [round(load, 1), round(os.getloadavg()[0], 1)]
  return row


def _in_python(
  name: str, folder: str, keras_file: pathlib.Path
) -> dict[str, Any]:
  out = pathlib.Path(folder, "row.json")
  done = finished(
    [
      *("-m", "benchmarks.user_models.try_model"),
      f"--model={name}",
      f"--module={_MODULE.value}",
      f"--cluster={_CLUSTER.value}",
      f"--budget_s={_BUDGET.value}",
      f"--devices={_DEVICES.value}",
      f"--keras_file={keras_file}",
      f"--out={out}",
    ],
    _LIMIT.value,
  )
  row = json.loads(out.read_text("utf-8")) if out.exists() else {}
  if done["code"] != 0:
    row["process"] = {"works": False, **done}
  return row


def _in_shell(
  entry: registry.UserModel,
  folder: str,
  keras_file: pathlib.Path,
  *more: str,
) -> dict[str, Any]:
  imports = [f"--import={','.join(entry.imports)}"] if entry.imports else []
  done = finished(
    [
      *("-m", "tfplace.bin.place"),
      f"--keras_model={keras_file}",
      f"--cluster={_CLUSTER.value}",
      f"--budget_s={_BUDGET.value}",
      f"--graph_cache_dir={folder}/graphs",
      *imports,
      *more,
    ],
    _LIMIT.value,
  )
  if "error" in done:
    done["error"] = done["error"].replace(f"{folder}/", "")
  return {"works": done["code"] == 0, **done}


def finished(arguments: Sequence[str], limit_s: float) -> dict[str, Any]:
  """Runs Python; returns its exit code, seconds, output or last error.

  A process that was ended after `limit_s` seconds has no code (None).
  """
  env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
  began = time.perf_counter()
  try:
    done = subprocess.run(
      [sys.executable, *arguments],
      cwd=_ROOT,
      capture_output=True,
      text=True,
      env=env,
      timeout=limit_s,
      check=False,
    )
  except subprocess.TimeoutExpired:
    return {
      "code": None,
      "error": f"ended after {limit_s:g} s",
      "wall_s": round(limit_s, 1),
    }
  found = {
    "code": done.returncode,
    "wall_s": round(time.perf_counter() - began, 1),
  }
  if done.returncode:
    lines = done.stderr.strip().splitlines()
    return {**found, "error": lines[-1] if lines else "no message"}
  return {**found, "output": done.stdout.strip()[-4000:]}


def typed_shapes(error: str) -> str | None:
  """Returns the `--input_shapes=...` that an error tells the user to type."""
  found = _INPUT_SHAPES.search(error)
  return None if found is None else found.group()


def _settings() -> dict[str, Any]:
  """Returns what all rows of a file have in common."""
  packages = ("tensorflow", "keras")
  return {
    "cluster": _CLUSTER.value,
    "budget_s": _BUDGET.value,
    "devices": _DEVICES.value,
    "cores": os.cpu_count(),
    "versions": {name: importlib.metadata.version(name) for name in packages},
  }


def main(_: flags.FlagValues) -> None:
  """Tries the models.

  Raises:
    UsageError: a model is unknown, or keras-hub is not installed.
  """
  models = registry.models_of(_MODULE.value)
  names = _ONLY.value or [*models]
  command.check_names("only", names, models)
  needs_hub = [name for name in names if "keras_hub" in models[name].imports]
  if needs_hub and importlib.util.find_spec("keras_hub") is None:
    raise cli.UsageError(
      f"{', '.join(needs_hub)}: keras-hub is not installed; run pip install"
      " keras-hub, or name other models in --only"
    )
  saved = saved_rows.SavedRows(_OUT.value, _settings())
  for name in names:
    saved.row(name, lambda name=name: tried(name, models[name]))
  rows = json.loads(pathlib.Path(_OUT.value).read_text("utf-8"))["rows"]
  before = None
  if _BEFORE.value is not None:
    path = pathlib.Path(_BEFORE.value)
    before = json.loads(path.read_text("utf-8"))["rows"]
  report.write(_OUT.value, user_models_report.markdown(rows, before))


if __name__ == "__main__":
  OPTIONS.run(main)
