"""How the compiled loops of the placers are made: like the simulator's
kernels (no GIL, cached on disk), but allowed to allocate arrays.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from tfplace.simulate.jit import allocating

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
  """Compiles on first call; machine code is kept on disk where possible."""
  return allocating(function)


def inlined(function: F) -> F:
  """Like `kernel`, for a helper: its tuples of arrays never cross a call."""
  return allocating(function, forceinline=True)
