"""Holds Python's cycle collector while a graph is built.

Tracing and importing make millions of objects that stay; the collector walks
over all of them again and again, for a quarter of the time.
"""

import contextlib
import gc
from collections.abc import Iterator


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
