"""Numbers for people: times, sizes and short device names."""

import math
from collections.abc import Sequence

_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "us"))
_SIZES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


def format_us(time_us: float) -> str:
  """12345.6 -> "12.3 ms": three digits. Infinite: the placement failed."""
  if math.isinf(time_us):
    return "failed"
  return _format(time_us, _TIMES)


def format_bytes(num_bytes: float) -> str:
  """3 * 2**30 -> "3 GiB": three digits."""
  return _format(num_bytes, _SIZES)


def _format(value: float, units: Sequence[tuple[float, str]]) -> str:
  for scale, unit in units:
    # As rounded: 999.9 us is "1 ms", not "1e+03 us".
    if float(f"{value / scale:.3g}") >= 1 or scale == 1.0:
      digits = f"{value / scale:.3g}"
      return (
        f"{float(digits):g} {unit}" if "e" in digits else f"{digits} {unit}"
      )
  raise AssertionError("the last unit is 1")


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
