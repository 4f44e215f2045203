"""How an extraction tells what it is at: large graphs take a minute."""

from collections.abc import Callable
from typing import Protocol


class OnStage(Protocol):
  """Is told each stage as it begins."""

  def __call__(self, what: str, count: Callable[[], int] | None = None) -> None:
    """Args:
    what: the stage, such as "shapes of 11,898 ops".
    count: ops so far, where they are made one by one; any thread may ask.
    """


def ignore(what: str, count: Callable[[], int] | None = None) -> None:
  """For callers that do not want to know."""
