"""How the compiled loops of the placers are made: like the simulator's
kernels (no GIL, cached on disk), but allowed to allocate arrays.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from tfplace.simulate.jit import Index, allocating, allocating_helper

__all__ = ["Index", "helper", "inlined", "kernel"]

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
  """Compiles on first call; machine code is kept on disk where possible."""
  return allocating(function)


def helper(function: F) -> F:
  """Like `kernel`, for what kernels alone call, never Python."""
  return allocating_helper(function)


def inlined(function: F) -> F:
  """Like `helper`, and its tuples of arrays never cross a call."""
  return allocating(function, is_entry=False, forceinline=True)
