"""Human-readable sizes, times and shares, and sizes as users write them."""

import contextlib
import math
import numbers
import re
from collections.abc import Sequence

from tfplace.errors import FormatError, shown

_UNITS = {
  "": 1,
  "B": 1,
  **{f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")},
  **{f"{p}iB": 1024 ** (i + 1) for i, p in enumerate("KMGT")},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
# Units of formatted values, largest first; the last size is 1.
_SIZES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "us"))


def num_bytes(size: str | float) -> float:
  """Parses a number of bytes, such as 4096, "10GiB" or "1.5 GB".

  Raises:
    FormatError: the size or its unit is invalid. Lower-case units are rejected
      because they may mean bits.
  """
  if isinstance(size, str):
    match = _SIZE.fullmatch(size.strip())
    if match and match[2] in _UNITS:
      return float(match[1]) * _UNITS[match[2]]
  elif isinstance(size, numbers.Real) and not isinstance(size, bool):
    with contextlib.suppress(OverflowError):
      if size >= 0:
        return float(size)
  raise FormatError(
    f"{shown(size)} is no memory size; write bytes, or a number and one of"
    f" {', '.join(u for u in _UNITS if u)}"
  )


def format_bytes(num_bytes: float) -> str:
  """Formats bytes with three significant digits: 3 * 2**30 -> "3 GiB"."""
  return _in_units(num_bytes, _SIZES)


def exact_bytes(num_bytes: float) -> str:
  """Formats bytes twice: 3 * 2**30 -> "3 GiB (3221225472 bytes)"."""
  count = math.ceil(num_bytes)
  exact = f"{count} byte{'s' * (count != 1)}"
  return exact if num_bytes < 1024 else f"{format_bytes(num_bytes)} ({exact})"


def format_us(time_us: float) -> str:
  """Formats 12345.6 as "12.3 ms"; infinite times are "failed"."""
  if math.isinf(time_us):
    return "failed"
  return _in_units(time_us, _TIMES)


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
  return _unit_of(step_us, _TIMES)


def size_scale(num_bytes: float) -> tuple[float, str]:
  """Returns the suitable unit for a size, in bytes, and its name."""
  return _unit_of(num_bytes, _SIZES)


def _in_units(value: float, units: Sequence[tuple[float, str]]) -> str:
  """Formats a finite value with three digits in the largest fitting unit."""
  scale, unit = _unit_of(value, units)
  return f"{_rounded(value / scale):g} {unit}"


def _unit_of(
  value: float, units: Sequence[tuple[float, str]]
) -> tuple[float, str]:
  """Returns the largest unit of which a rounded value has 1, or the last one.

  Rounding comes first: 999.9 us is "1 ms", not "1e+03 us".
  """
  fitting = (unit for unit in units if _rounded(value / unit[0]) >= 1)
  return next(fitting, units[-1])


def _rounded(value: float) -> float:
  return float(f"{value:.3g}")
