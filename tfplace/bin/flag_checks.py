"""Checks of flags that all commands share: files, addresses and numbers."""

import glob
import math
import os
import re
from collections.abc import Sequence

from absl import flags

from tfplace.errors import TfplaceError, shown
from tfplace.formats import files

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class UsageError(TfplaceError):
  """Error of invalid flags or combinations of flags."""


_ADDRESSES = frozenset({"dask"})  # Flags whose value may be an address.


def check_local(values: flags.FlagValues) -> None:
  """Rejects addresses of files, which TensorFlow would open by itself."""
  for flag in sorted(set(values) - _ADDRESSES):
    value = values[flag].value
    for text in value if isinstance(value, list | tuple) else [value]:
      if isinstance(text, str) and _ADDRESS.match(text):
        raise UsageError(
          f"--{flag}={text[:200]!a} is an address; only files of this machine"
          " are read and written, so copy it here first"
        )


# Flags that name what a command reads or writes.
_INPUTS = (
  *("graph", "graph_def", "saved_model", "keras_model", "sample", "cluster"),
  *("placement", "init_placement", "policy", "init_from", "graphs"),
  "models",
)
_OUTPUTS = (
  *("output", "output_graph_def", "output_saved_model"),
  *("trace", "timeline", "report", "export_dir", "checkpoint_dir"),
)
_REPLACED = ("output_saved_model", "export_dir")  # Folders.


def check_outputs(values: flags.FlagValues) -> None:
  """Rejects outputs that would overwrite an input or another output.

  Links are followed. Pipes, devices and standard output may be shared.
  """
  inputs = [*_paths(values, _INPUTS), *_modules(values)]
  outputs = _paths(values, _OUTPUTS)
  for i, (flag, path) in enumerate(outputs):
    for other, used in [*inputs, *outputs[:i], *outputs[i + 1 :]]:
      if _is_same(path, used):
        what = "names the same place as"
      elif flag in _REPLACED and _is_inside(used, path):
        what = "contains"
      elif other in _INPUTS and _is_inside(path, used):
        what = "lies in"
      else:
        continue
      raise UsageError(
        f"--{flag}={shown(path)} {what} --{other}={shown(used)}, which would be"
        " overwritten; give another path"
      )


def _paths(
  values: flags.FlagValues, names: Sequence[str]
) -> list[tuple[str, str]]:
  """Returns flags with their files and folders, without streams."""
  result = []
  for flag in names:
    value = values[flag].value if flag in values else None
    for text in value if isinstance(value, list) else [value or ""]:
      found = glob.glob(text) if flag == "graphs" else [text]
      result += [(flag, path) for path in found if _is_file(flag, path)]
  return result


def _is_file(flag: str, path: str) -> bool:
  if flag in _OUTPUTS:
    return bool(path) and (
      not os.path.exists(path) or os.path.isdir(path) or files.is_regular(path)
    )
  # Zoo models, presets and the shipped policy have names like folders.
  is_name = flag in ("models", "cluster") or path == "shipped"
  return os.path.isfile(path) or (os.path.isdir(path) and not is_name)


def _modules(values: flags.FlagValues) -> list[tuple[str, str]]:
  names = (values["import"].value or ()) if "import" in values else ()
  paths = [f"{name.replace('.', os.sep)}.py" for name in names]
  return [("import", path) for path in paths if os.path.isfile(path)]


def _is_same(one: str, other: str) -> bool:
  if os.path.exists(one) and os.path.exists(other):
    return os.path.samefile(one, other)
  return os.path.realpath(one) == os.path.realpath(other)


def _is_inside(path: str, folder: str) -> bool:
  if os.path.exists(folder) and not os.path.isdir(folder):
    return False
  return f"{os.path.realpath(path)}{os.sep}".startswith(
    f"{os.path.realpath(folder)}{os.sep}"
  )


def check_numbers(values: flags.FlagValues) -> None:
  """Rejects "nan", which passes the bounds of every flag."""
  for flag in values:
    value = values[flag].value
    if isinstance(value, float) and math.isnan(value):
      raise UsageError(f"--{flag}={value} is not a number")
