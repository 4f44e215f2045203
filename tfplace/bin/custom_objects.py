"""Custom classes of a Keras file, from modules that the user names."""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from tfplace.bin import cli


@contextlib.contextmanager
def imported(modules: Sequence[str]) -> Iterator[None]:
  """Inside, Keras knows what the modules define, registered or not.

  Args:
    modules: their names; also of modules in the working directory.

  Raises:
    UsageError: a module is missing, or fails as it is imported.
  """
  if not modules:
    yield
    return
  cli.load_tensorflow()
  import keras

  objects: dict[str, Any] = {}
  for name in modules:
    objects |= _defined_in(_import(name))
  with keras.saving.custom_object_scope(objects):
    yield


def _import(name: str) -> ModuleType:
  directory = os.getcwd()
  sys.path.append(directory)
  try:
    return importlib.import_module(name)
  except Exception as error:
    raise cli.UsageError(
      f"--import: module {name!r} cannot be imported:"
      f" {type(error).__name__}: {error}"
    ) from error
  finally:
    sys.path.remove(directory)


def _defined_in(module: ModuleType) -> dict[str, Any]:
  """Its public classes and functions, those that it only imports aside."""
  return {
    name: value
    for name, value in vars(module).items()
    if not name.startswith("_")
    and callable(value)
    and getattr(value, "__module__", None) == module.__name__
  }
