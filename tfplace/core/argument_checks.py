"""Checks of numeric arguments."""

import numbers
import operator
from typing import Any

import numpy as np

from tfplace.errors import TfplaceError


def check_number(name: str, value: Any) -> None:
  """Raises TfplaceError unless an argument is a real number and not a bool."""
  if not isinstance(value, numbers.Real) or isinstance(value, bool):
    raise TfplaceError(f"{name} is {value!r:.60}; it must be a number")


def whole_number(value: Any) -> int | None:
  """Converts an integer, such as NumPy's, to int; None for all else or bool."""
  if isinstance(value, bool | np.bool_):
    return None
  try:
    return operator.index(value)
  except TypeError:
    return None


def check_count(name: str, value: Any, least: int) -> int:
  """Returns an integer argument of at least `least` as an int.

  Raises:
    TfplaceError: the value is not such an integer.
  """
  number = whole_number(value)
  if number is None:
    raise TfplaceError(f"{name} is {value!r:.60}; it must be a whole number")
  if number < least:
    raise TfplaceError(f"{name} is {number}; it must be {least} or more")
  return number
