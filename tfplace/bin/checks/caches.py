"""The caches of graphs and of compiled code: where, how much, writable."""

import contextlib
import dataclasses
import os
from collections.abc import Sequence

from tfplace.bin.checks.findings import Finding
from tfplace.plan import graph_cache

_CODE_SUFFIXES = (".nbi", ".nbc")  # Numba's index and machine code.


@dataclasses.dataclass(frozen=True)
class Cache:
  """One cache.

  Attributes:
    name: what it keeps.
    folder: where; None if nothing is kept.
    num_files: files in it.
    num_bytes: their size.
    is_writable: whether this user can add to it.
  """

  name: str
  folder: str | None
  num_files: int = 0
  num_bytes: int = 0
  is_writable: bool = False


def graphs() -> Cache:
  """Returns the state of the cache of op graphs."""
  folder = graph_cache.default_directory()
  if folder is None:
    return Cache("graphs", None)
  count, size = graph_cache.GraphCache(folder).usage()
  return Cache("graphs", folder, count, size, _is_writable(folder))


def code(folders: Sequence[str]) -> Cache:
  """Returns the state of Numba's cache of compiled placers.

  Args:
    folders: folders of the kernels, from `simulate.jit.cache_folders`.
  """
  if not folders:
    return Cache("compiled placers", None)
  sizes = [size for folder in folders for size in _code_sizes(folder)]
  return Cache(
    "compiled placers",
    os.path.commonpath(folders),
    len(sizes),
    sum(sizes),
    all(map(_is_writable, folders)),
  )


def findings_of(caches: Sequence[Cache]) -> list[Finding]:
  """Returns the caches that keep nothing."""
  found = []
  for cache in caches:
    variable, cost = "XDG_CACHE_HOME", "every run extracts its graph anew"
    if cache.name != "graphs":
      variable, cost = "NUMBA_CACHE_DIR", "every process compiles for a minute"
    way_out = f"set {variable} to a folder that this user can write"
    if cache.folder is None:
      problem = f"there is no folder for {cache.name}, so {cost}"
    elif not cache.is_writable:
      problem = f"{cache.folder} cannot be written, so {cost}"
    else:
      continue
    found.append(Finding(problem, way_out, is_broken=False))
  return found + _unused_folder(caches)


def _unused_folder(caches: Sequence[Cache]) -> list[Finding]:
  """Returns a finding if Numba passes over the folder that the user named."""
  named = os.environ.get("NUMBA_CACHE_DIR")
  folders = [c.folder for c in caches if c.name != "graphs" and c.folder]
  if not named or not folders:
    return []
  root = os.path.realpath(named)
  if os.path.commonpath([root, os.path.realpath(folders[0])]) == root:
    return []
  return [
    Finding(
      f"NUMBA_CACHE_DIR={named} cannot be written, so compiled placers are kept"
      f" in {folders[0]}",
      "name a folder that this user can write",
      is_broken=False,
    )
  ]


def _is_writable(folder: str) -> bool:
  """Returns whether a folder, or the one it would be made in, is writable."""
  while not os.path.lexists(folder):
    parent = os.path.dirname(folder)
    if parent == folder:
      return False
    folder = parent
  return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def _code_sizes(folder: str) -> list[int]:
  sizes = []
  with contextlib.suppress(OSError), os.scandir(folder) as found:
    for entry in found:
      if entry.name.endswith(_CODE_SUFFIXES):
        with contextlib.suppress(FileNotFoundError):
          sizes.append(entry.stat().st_size)
  return sizes
