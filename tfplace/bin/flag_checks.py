"""Checks of flags that all commands share: addresses and numbers."""

import math
import re

from absl import flags

from tfplace.errors import TfplaceError

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


def check_numbers(values: flags.FlagValues) -> None:
  """Rejects "nan", which passes the bounds of every flag."""
  for flag in values:
    value = values[flag].value
    if isinstance(value, float) and math.isnan(value):
      raise UsageError(f"--{flag}={value} is not a number")
