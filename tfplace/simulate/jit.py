"""How every kernel is compiled: `kernel`, `helper` and `inlined` of the
simulator, and their likes of bounds and placers, which may make arrays.
"""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

from tfplace.simulate import code_cache

Index = int | np.integer  # what NumPy's stubs make of an index
F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
  """Compiles on first call, without the GIL, and keeps the code on disk.

  Machine code goes next to the source, or to the user's cache directory where
  the package is read-only, or to a directory of the user's under the system's
  temporary one where that is read-only too (`code_cache`).

  The function must not allocate: without Numba's reference counts (`_nrt`),
  which it would touch at each access to an array, it runs 30 times faster.
  """
  return _compile(function)


def helper(function: F) -> F:
  """Like `kernel`, for what kernels alone call, never Python.

  Without the code that unpacks Python's arguments, here up to a hundred arrays,
  it takes half the time to compile.
  """
  return _compile(function, is_entry=False)


def inlined(function: F) -> F:
  """Like `helper`, and its tuples of arrays never cross a call."""
  return _compile(function, is_entry=False, forceinline=True)


def allocating(function: F) -> F:
  """Like `kernel`, but the function may make arrays."""
  return _compile(function, _nrt=True)


def allocating_helper(function: F) -> F:
  """Like `helper`, but the function may make arrays."""
  return _compile(function, is_entry=False, _nrt=True)


def allocating_inlined(function: F) -> F:
  """Like `inlined`, but the function may make arrays."""
  return _compile(function, is_entry=False, forceinline=True, _nrt=True)


def _compile(
  function: F,
  is_entry: bool = True,
  forceinline: bool = False,
  _nrt: bool = False,
) -> F:
  njit: Any = numba.njit
  options = {
    "nogil": True,
    "forceinline": forceinline,
    "_nrt": _nrt,
    "no_cpython_wrapper": not is_entry,
    "no_cfunc_wrapper": True,  # nobody passes a kernel as an argument
  }
  # Numba says "cannot cache function: no locator available".
  with contextlib.suppress(RuntimeError):
    return njit(cache=True, **options)(function)
  with contextlib.suppress(RuntimeError), code_cache.fallback() as is_kept:
    return njit(cache=is_kept, **options)(function)
  return njit(**options)(function)
