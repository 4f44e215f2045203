"""Progress of an extraction, and a pause of the cycle collector during it.

Large graphs take a minute. Tracing and importing make millions of objects that
stay, and Python's collector would walk over all of them again and again, for a
quarter of the time.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Protocol


class OnStage(Protocol):
  """Called as each stage of an extraction begins."""

  def __call__(self, what: str, count: Callable[[], int] | None = None) -> None:
    """Args:
    what: the stage, such as "shapes of 11,898 ops".
    count: ops so far, where they are made one by one; any thread may ask.
    """


def ignore(what: str, count: Callable[[], int] | None = None) -> None:
  """For callers that show no progress."""


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
  """Inside (or in a function so decorated), cycles are not looked for."""
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_enabled:
      gc.enable()
