"""Checks of names and numbers, as arguments and in files.

Kernels compile again for each type of number, which takes minutes. NumPy's
scalars therefore become Python's numbers before anything computes with them.
"""

import dataclasses
import math
import numbers
import operator
from typing import Annotated, Any

import numpy as np

from tfplace.errors import FormatError, TfplaceError, shown

AUTO = "auto"  # Chosen with the placement, or what Keras would do.
MAX_NAME_LENGTH = 4096
# Maximum of values that are summed or divided. Sums of 10**8 quotients of two
# such values, and the squares of these sums, stay finite.
MAX_SUMMAND = 1e60
# Types of fields that may be infinite (null in JSON) and empty.
Unlimited = Annotated[float, "may be infinite"]
Text = Annotated[str, "may be empty"]


def plain(value: Any) -> Any:
  """Converts a NumPy scalar to a Python number; returns all else unchanged."""
  return value.item() if isinstance(value, np.generic) else value


def make_fields_plain(config: Any) -> None:
  """Converts the NumPy scalars among the fields of a frozen dataclass."""
  for field in dataclasses.fields(config):
    value = plain(getattr(config, field.name))
    object.__setattr__(config, field.name, value)


def check_number(name: str, value: Any) -> None:
  """Raises TfplaceError unless an argument is a real number and not a bool."""
  if not isinstance(value, numbers.Real) or isinstance(value, bool):
    raise TfplaceError(f"{name} is {shown(value)}; it must be a number")
  try:
    float(value)
  except OverflowError as error:
    raise TfplaceError(
      f"{name} is {shown(value)}; it must be a number below 1e308"
    ) from error


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
    raise TfplaceError(f"{name} is {shown(value)}; it must be a whole number")
  if number < least:
    raise TfplaceError(f"{name} is {shown(number)}; it must be {least} or more")
  return number


def check_name(value: Any, where: str) -> None:
  """Raises FormatError unless a value is non-empty printable text."""
  if not isinstance(value, str) or not value:
    raise FormatError(f"{where}: expected a name, found {shown(value)}")
  if len(value) > MAX_NAME_LENGTH:
    raise FormatError(
      f"{where}: name of {len(value)} characters, at most {MAX_NAME_LENGTH}"
    )
  if not value.isprintable():
    raise FormatError(f"{where}: name {shown(value)} has a control character")


def check_summand(value: float, where: str) -> None:
  """Raises FormatError unless a number is from 0 to `MAX_SUMMAND`."""
  if not math.isfinite(value):
    raise FormatError(f"{where}: {value} is not finite")
  if value < 0:
    raise FormatError(f"{where}: {value:g} is negative")
  if value > MAX_SUMMAND:
    raise FormatError(f"{where}: {value:g} is more than {MAX_SUMMAND:g}")
