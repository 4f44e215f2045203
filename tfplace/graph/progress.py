"""Progress of long calls."""

from collections.abc import Callable
from typing import TypeAlias

# Called at the start of each stage of a long call, such as "shapes of 898 ops".
Progress: TypeAlias = Callable[[str], None]


def silent(unused_stage: str) -> None:
  """Ignores progress."""
