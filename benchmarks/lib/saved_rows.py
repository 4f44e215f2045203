"""The rows of a benchmark, kept in a JSON file as soon as they are there.

A run that was cut off goes on where it was: a row that the file holds is not
measured again. Also what such runs have in common: they pin themselves to
cores, so that their seconds are of so many.
"""

import json
import os
import pathlib
from collections.abc import Callable, Mapping

from absl import app

from tfplace.bin import cli
from tfplace.formats.json_file import write_json


class SavedRows:
  """The rows of one file, by key.

  Args:
    path: JSON file; made where there is none.
    settings: what all rows have in common; those of another run must not
      stand in the same file.
    flag: the flag that names the file, for the error.

  Raises:
    UsageError: the file holds rows of other settings.
  """

  def __init__(
    self, path: str, settings: Mapping[str, object], flag: str = "--result"
  ) -> None:
    self._path = pathlib.Path(path)
    self._settings = dict(settings)
    self._rows: dict[str, dict] = {}
    if self._path.exists():
      found = json.loads(self._path.read_text(encoding="utf-8"))
      self._rows = found.pop("rows")
      if found != self._settings:
        raise app.UsageError(
          f"{path} holds rows of {found}, not of {self._settings}: choose"
          f" another {flag}"
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


def of_command(path: str, settings: Mapping[str, object]) -> SavedRows:
  """The rows of `--out` of a program that `cli.run_command` runs.

  Raises:
    UsageError: of `cli`; as of `SavedRows`.
  """
  try:
    return SavedRows(path, settings, flag="--out")
  except app.UsageError as error:
    raise cli.UsageError(str(error)) from error


def pin_to_cores(count: int) -> None:
  """Keeps this process, and its children, on the first `count` of its cores.

  Where the system cannot do that, its seconds are not of so many cores.
  """
  if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
