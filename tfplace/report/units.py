"""Numbers for people: times, sizes and short device names."""

import math
from collections.abc import Sequence

from tfplace.graph.limits import format_bytes, in_units

__all__ = ["format_bytes", "format_us", "short_names"]

_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "us"))


def format_us(time_us: float) -> str:
  """12345.6 -> "12.3 ms": three digits. Infinite: the placement failed."""
  if math.isinf(time_us):
    return "failed"
  return in_units(time_us, _TIMES)


def short_names(names: Sequence[str]) -> list[str]:
  """Device names without what they share: "/job:a/task:0/device:GPU:1" among
  its like is "GPU:1". Full names where that would confuse two.
  """
  parts = [name.strip("/").split("/") for name in names]
  shortest = min(map(len, parts), default=1)
  shared = 0
  while shared < shortest - 1 and len({p[shared] for p in parts}) == 1:
    shared += 1
  short = ["/".join(p[shared:]).replace("device:", "") for p in parts]
  return short if len(set(short)) == len(names) else list(names)
