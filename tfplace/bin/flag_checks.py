"""Checks of flags that all commands share: files, addresses and numbers."""

import glob
import math
import os
import re

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


def check_outputs(values: flags.FlagValues) -> None:
  """Rejects outputs that would overwrite an input or another output.

  Links are followed. Pipes, devices and standard output may be shared.
  """
  used: dict[str, str] = {}  # Real path -> flag.
  for flag in (*_INPUTS, *_OUTPUTS):
    value = values[flag].value if flag in values else None
    paths = value if isinstance(value, list) else [value or ""]
    for path in [p for text in paths for p in glob.glob(text) or [text]]:
      if os.path.exists(path):
        is_stored = os.path.isdir(path) or files.is_regular(path)
      else:
        is_stored = bool(path) and flag in _OUTPUTS
      place = os.path.realpath(path)
      if is_stored and flag in _OUTPUTS and place in used:
        raise UsageError(
          f"--{flag}={shown(path)} names the same place as --{used[place]},"
          " which would be overwritten; give another path"
        )
      if is_stored:
        used[place] = flag


def check_numbers(values: flags.FlagValues) -> None:
  """Rejects "nan", which passes the bounds of every flag."""
  for flag in values:
    value = values[flag].value
    if isinstance(value, float) and math.isnan(value):
      raise UsageError(f"--{flag}={value} is not a number")
