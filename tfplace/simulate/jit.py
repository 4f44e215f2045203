"""How every kernel of the simulator is compiled. Not for other packages'
kernels to configure: one setting serves them all.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

Index = int | np.integer  # what NumPy's stubs make of an index
F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
  """Compiles on first call, without the GIL, and keeps the code on disk.

  Machine code goes next to the source, or to the user's cache directory where
  the package is read-only. Where that is read-only too, Numba refuses to
  cache, and the code is compiled anew in each process.

  The function must not allocate: without Numba's reference counts (`_nrt`),
  which it would touch at each access to an array, it runs 30 times faster.
  """
  return _compile(function, forceinline=False)


def inlined(function: F) -> F:
  """Like `kernel`, for a helper: its tuples of arrays never cross a call."""
  return _compile(function, forceinline=True)


def _compile(function: F, forceinline: bool) -> F:
  options: dict[str, Any] = {
    "nogil": True,
    "forceinline": forceinline,
    "_nrt": False,
  }
  try:
    return numba.njit(cache=True, **options)(function)
  except RuntimeError:  # "cannot cache function: no locator available"
    return numba.njit(**options)(function)
