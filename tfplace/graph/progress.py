"""Progress of long calls."""

from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
  """Callback at the start of each stage of a long call."""

  def __call__(self, what: str, count: Callable[[], int] | None = None) -> None:
    """Reports a stage.

    Args:
      what: the stage, such as "shapes of 11,898 ops".
      count: number of ops so far, where ops are created one by one; may be
        called from any thread.
    """


def encodable(text: str, encoding: str) -> str:
  """Escapes the characters that an encoding, such as ASCII, lacks."""
  return text.encode(encoding, "backslashreplace").decode(encoding)


def silent(what: str, count: Callable[[], int] | None = None) -> None:
  """Ignores progress."""
