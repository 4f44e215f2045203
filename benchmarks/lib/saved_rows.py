"""Rows of a benchmark in a JSON file, saved as soon as they are measured.

A run that was cut off goes on where it was: a row that the file holds is not
measured again.
"""

import json
import os
import pathlib
from collections.abc import Callable, Mapping

from tfplace.bin import cli
from tfplace.formats.json_file import write_json


class SavedRows:
  """The rows of one file, by key.

  Args:
    path: JSON file; made where there is none.
    settings: what all rows have in common; those of another run must not
      stand in the same file.

  Raises:
    UsageError: the file holds rows of other settings.
  """

  def __init__(self, path: str, settings: Mapping[str, object]) -> None:
    self._path = pathlib.Path(path)
    self._settings = dict(settings)
    self._rows: dict[str, dict] = {}
    if self._path.exists():
      found = json.loads(self._path.read_text(encoding="utf-8"))
      self._rows = found.pop("rows")
      if found != self._settings:
        raise cli.UsageError(
          f"{path} holds rows of {found}, not of {self._settings}: choose"
          " another --out"
        )

  def __contains__(self, key: str) -> bool:
    return key in self._rows

  def row(self, key: str, measure: Callable[[], dict]) -> dict:
    """The row of that key; measured, saved and printed if it is not there."""
    if key not in self._rows:
      self._rows[key] = measure()
      self._path.parent.mkdir(parents=True, exist_ok=True)
      write_json(self._path, {**self._settings, "rows": self._rows})
      print(key, self._rows[key], flush=True)
    return self._rows[key]


def pin_to_cores(count: int) -> None:
  """Keeps this process and its children on `count` cores, where that works."""
  if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
