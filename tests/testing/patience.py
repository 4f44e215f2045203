"""Measurements on a host that may be busy with something else."""

from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")
TIMES = 4


def patiently(
  measure: Callable[[], Found], holds: Callable[[Found], bool]
) -> Found:
  """Returns the measured value, or the last one if the condition never holds.

  A busy moment hides a transfer once or twice, and not every time; what is
  wrong is wrong every time.
  """
  for _ in range(TIMES - 1):
    found = measure()
    if holds(found):
      return found
  return measure()
