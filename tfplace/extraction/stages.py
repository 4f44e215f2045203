"""Progress of an extraction, and a pause of the garbage collector during it.

Extraction of large graphs takes a minute. Tracing and importing create millions
of objects that stay alive. Python's cyclic garbage collector would traverse all
of them repeatedly, which takes a quarter of the time.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Protocol


class OnStage(Protocol):
  """Callback at the start of each stage of an extraction."""

  def __call__(self, what: str, count: Callable[[], int] | None = None) -> None:
    """Reports a stage.

    Args:
      what: the stage, such as "shapes of 11,898 ops".
      count: number of ops so far, where ops are created one by one; may be
        called from any thread.
    """


def ignore(what: str, count: Callable[[], int] | None = None) -> None:
  """Ignores progress."""


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
  """Disables the cyclic garbage collector; can also be used as a decorator."""
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_enabled:
      gc.enable()
