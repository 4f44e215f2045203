"""Human-readable times, sizes, shares and device names."""

import math
from collections.abc import Sequence

from tfplace.core.constraints import format_bytes, in_units

__all__ = ["format_bytes", "format_us", "short_names"]

_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "us"))
_SIZES = {"GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10}


def format_us(time_us: float) -> str:
  """Formats 12345.6 as "12.3 ms"; infinite times are "failed"."""
  if math.isinf(time_us):
    return "failed"
  return in_units(time_us, _TIMES)


def format_change_us(change_us: float) -> str:
  """Formats -1500 as "-1.5 ms", 20 as "+20 us" and 0 as "none"."""
  sign = "-" if change_us < 0 else "+"
  return f"{sign}{format_us(abs(change_us))}" if change_us else "none"


def format_share(part: float, whole: float) -> str:
  """Formats (1, 3) as "33%" and (1, 30) as "3.3%"; "-" if `whole` is 0."""
  if whole <= 0:
    return "-"
  percent = 100 * part / whole
  if 0 < percent < 0.1:
    return "under 0.1%"
  return f"{percent:.1f}%" if 0 < percent < 10 else f"{percent:.0f}%"


def time_scale(step_us: float) -> tuple[float, str]:
  """Returns the suitable unit for a step, in microseconds, and its name."""
  unit = format_us(step_us).split()[-1]
  return {name: us for us, name in _TIMES}.get(unit, 1.0), unit


def size_scale(num_bytes: float) -> tuple[float, str]:
  """Returns the suitable unit for a size, in bytes, and its name."""
  unit = format_bytes(num_bytes).split()[-1]
  return _SIZES.get(unit, 1.0), unit


def short_names(names: Sequence[str]) -> list[str]:
  """Strips common prefixes of device names, unless they become ambiguous."""
  parts = [name.strip("/").split("/") for name in names]
  shortest = min(map(len, parts), default=1)
  shared = 0
  while shared < shortest - 1 and len({p[shared] for p in parts}) == 1:
    shared += 1
  short = ["/".join(p[shared:]).replace("device:", "") for p in parts]
  return short if len(set(short)) == len(names) else list(names)


def listed(parts: Sequence[str]) -> str:
  """Joins ["a", "b", "c"] to "a, b and c"."""
  if len(parts) < 2:
    return "".join(parts)
  return f"{', '.join(parts[:-1])} and {parts[-1]}"


def shorten(name: str, limit: int = 64) -> str:
  """Shortens a long name by cutting out its middle."""
  if len(name) <= limit:
    return name
  keep = (limit - 1) // 2
  return f"{name[: limit - 1 - keep]}\N{HORIZONTAL ELLIPSIS}{name[-keep:]}"
