"""Refuses requests that make no sense, each in a sentence."""

import math
import numbers

from tfplace.errors import TfplaceError


def check_budget(budget_s: float) -> None:
  """Seconds that a placer may take: finite and above 0.

  Raises:
    TfplaceError: they are not.
  """
  if not isinstance(budget_s, numbers.Real):
    raise TfplaceError(f"budget_s is {budget_s!r:.60}; it must be a number")
  if not 0 < budget_s < math.inf:
    raise TfplaceError(
      f"budget_s is {budget_s}; it must be above 0"
      f"{' and finite' if budget_s > 0 else ''}"
    )


def check_count(name: str, value: int, least: int) -> None:
  """A whole number of at least so much.

  Args:
    name: of the argument.
    value: to check.
    least: value that is allowed.

  Raises:
    TfplaceError: it is no such number.
  """
  if not isinstance(value, numbers.Integral):
    raise TfplaceError(f"{name} is {value!r:.60}; it must be a whole number")
  if value < least:
    raise TfplaceError(f"{name} is {value}; it must be {least} or more")
