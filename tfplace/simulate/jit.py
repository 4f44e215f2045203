"""How every kernel is compiled: one setting serves the simulator's, and one
those of other packages, which make arrays of their own.
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


def allocating(function: F, forceinline: bool = False) -> F:
  """Like `kernel`, but the function may make arrays of its own."""
  return _compile(function, forceinline, _nrt=True)


def _compile(function: F, forceinline: bool, _nrt: bool = False) -> F:
  njit: Any = numba.njit
  options = {"nogil": True, "forceinline": forceinline, "_nrt": _nrt}
  try:
    return njit(cache=True, **options)(function)
  except RuntimeError:  # "cannot cache function: no locator available"
    return njit(**options)(function)
