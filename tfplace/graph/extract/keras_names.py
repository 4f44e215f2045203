"""Names as in a fresh process, whatever was built before.

Keras numbers what it names itself ("conv2d_94") through a whole process, so
that the second build of a model has other names than the first, and neither a
placement nor a cached graph of the one would fit the other.
"""

import collections
import contextlib
from collections.abc import Iterator

_COUNTERS = "object_name_uids"


def open_layers() -> list[str]:
  """Names of the layers whose call is being traced, innermost first."""
  from keras.src.backend.common import global_state

  stack = global_state.get_global_attribute("name_scope_stack") or []
  return [entry.name for entry in reversed(stack)]


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
  """Counts Keras' names from the start inside, and goes on outside."""
  try:
    from keras.src.backend.common import global_state
  except ImportError:  # a Keras that keeps them elsewhere
    yield
    return
  kept = global_state.get_global_attribute(_COUNTERS)
  counters: dict[str, int] = collections.defaultdict(int)
  global_state.set_global_attribute(_COUNTERS, counters)
  try:
    yield
  finally:
    global_state.set_global_attribute(_COUNTERS, kept)
