"""Numba decorators of all kernels, none of which allocates memory."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import caching, event
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

Index = int | np.integer  # Type of an index in NumPy's stubs.
F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
  """Compiles a function on first call, without the GIL, and caches it.

  Numba stores machine code next to the source, or in the user's cache directory
  if the package is read-only. The function must not allocate. Without Numba's
  reference counts (`_nrt`), which every access to an array updates, it runs 30
  times faster.
  """
  return _compile(function)


def helper(function: F) -> F:
  """Compiles a function that only kernels call, never Python.

  It has no code that unpacks Python arguments, which takes long to compile, and
  is optimized only as part of each kernel.
  """
  return _compile(function, is_entry=False)


def inlined(function: F) -> F:
  """Compiles an inlined `helper`, so that arrays are not passed by a call."""
  return _compile(function, is_entry=False, forceinline=True)


class _Part(JITCodeLibrary):
  """Code of a helper, which kernels link, optimize and compile.

  Numba also does so for each function by itself, with all that it calls.
  """

  @property
  def codegen(self) -> "_Part":
    return self

  def set_env(self, *unused: Any) -> None:
    """Skips a variable of the machine code, of which there is none."""

  def get_pointer_to_function(self, unused_name: str) -> int:
    self._ensure_finalized()
    return 0

  def _optimize_final_module(self) -> None:
    pass

  def _finalize_final_module(self) -> None:
    self._finalized = True


class _PartCompiler(Compiler):
  def define_pipelines(self) -> list[Any]:
    state = self.state
    state.library = _Part(state.targetctx.codegen(), state.func_id.func_name)
    pipelines: list[Any] = super().define_pipelines()
    return pipelines


def _compile(
  function: F,
  is_entry: bool = True,
  forceinline: bool = False,
) -> F:
  options: dict[str, Any] = {
    "nogil": True,
    "forceinline": forceinline,
    "_nrt": False,
    "no_cpython_wrapper": not is_entry,
    "no_cfunc_wrapper": True,  # No kernel is passed as an argument.
  }
  if is_entry:
    dispatcher = _cached(function, options)
  else:
    options["pipeline_class"] = _PartCompiler
    dispatcher = numba.njit(**options)(function)
  return dispatcher


class _Index(caching.IndexDataCacheFile):
  """Index of machine code, empty if an earlier tfplace wrote it.

  Numba reads the types in it, which may be gone, before it compares sources.
  """

  def _load_index(self) -> Any:
    try:
      return super()._load_index()
    except (AttributeError, ImportError):
      return {}


def _cached(function: F, options: Mapping[str, Any]) -> Any:
  njit: Any = numba.njit
  # Numba raises "cannot cache function: no locator available".
  with contextlib.suppress(RuntimeError):
    dispatcher = njit(cache=True, **options)(function)
    dispatcher._cache._cache_file.__class__ = _Index
    return dispatcher
  _warn_of_no_cache()
  return njit(**options)(function)


@functools.cache
def _warn_of_no_cache() -> None:
  logging.getLogger(__name__).warning(
    "neither the package's folder nor the home directory can be written: the"
    " placers are compiled anew in every process, which takes about a minute;"
    " set NUMBA_CACHE_DIR to a directory of your own"
  )


@contextlib.contextmanager
def on_compilation(call: Callable[[], object]) -> Iterator[None]:
  """Calls `call` once if a kernel is compiled inside, and not just loaded."""

  class _First(event.Listener):
    def __init__(self) -> None:
      self.is_told = False

    def on_start(self, unused_event: event.Event) -> None:
      if not self.is_told:
        self.is_told = True
        call()

    def on_end(self, unused_event: event.Event) -> None:
      pass

  with event.install_listener("numba:compile", _First()):
    yield
