"""Names that are imported when first used.

A package whose modules import TensorFlow exports its names this way, so that
importing the package does not import TensorFlow.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def exporter(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
  """Returns the `__getattr__` of a package.

  Args:
    package: its dotted name.
    homes: public name -> dotted name of the module that defines it.
  """

  def get(name: str) -> Any:
    if name not in homes:
      raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(homes[name]), name)

  return get
