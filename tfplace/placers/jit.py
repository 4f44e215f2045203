"""How the compiled loops of the placers are made: like the simulator's
kernels (no GIL, cached on disk), but allowed to allocate arrays.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
  """Compiles on first call; machine code is kept on disk where possible."""
  return _compile(function, forceinline=False)


def inlined(function: F) -> F:
  """Like `kernel`, for a helper: its tuples of arrays never cross a call."""
  return _compile(function, forceinline=True)


def _compile(function: F, forceinline: bool) -> F:
  njit: Any = numba.njit
  try:
    return njit(nogil=True, cache=True, forceinline=forceinline)(function)
  except RuntimeError:  # "cannot cache function: no locator available"
    return njit(nogil=True, forceinline=forceinline)(function)
