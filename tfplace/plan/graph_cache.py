"""Directory of op graphs, by a hash of everything that determines them.

A missing, truncated, damaged or outdated entry counts as absent. Entries are
written atomically, so any number of processes may share a directory, which must
be the user's own.
"""

import contextlib
import functools
import logging
import os
import stat

from tfplace.errors import FormatError
from tfplace.formats import files
from tfplace.formats.packed_graph import pack_graph, unpack_graph
from tfplace.graph.op_graph import OpGraph

_MAX_BYTES = 2 << 30  # Of several hundred graphs of 50,000 ops.
_SUFFIX = ".opgraph"
_logger = logging.getLogger("tfplace")


def default_directory() -> str | None:
  """Returns `tfplace` in the user's cache directory, or None.

  The cache directory is `XDG_CACHE_HOME` if it is absolute, as the XDG base
  directory specification requires, or `~/.cache`.
  """
  home = os.environ.get("XDG_CACHE_HOME", "")
  if not os.path.isabs(home):
    home = os.path.join(os.path.expanduser("~"), ".cache")
  return os.path.join(home, "tfplace") if os.path.isabs(home) else None


class GraphCache:
  """Op graphs in one directory, by key.

  Attributes:
    directory: created for this user only when the first graph is stored.
  """

  def __init__(self, directory: str | os.PathLike[str]) -> None:
    self.directory = os.fspath(directory)

  def load(self, key: str) -> OpGraph | None:
    """Returns the graph of a key, or None if there is no valid entry."""
    path = self._path(key)
    try:
      with open(path, "rb") as file:
        content = file.read()
      with contextlib.suppress(OSError):
        os.utime(path)  # The entry was used.
      return unpack_graph(content)
    except OSError:
      return None
    except FormatError as error:
      _logger.info("cached graph %s is extracted again: %s", key, error)
      return None

  def store(self, key: str, graph: OpGraph) -> None:
    """Stores a graph, or warns once that this is impossible.

    The least recently used entries are deleted first.
    """
    path = self._path(key)
    try:
      content = pack_graph(graph)
      os.makedirs(self.directory, mode=0o700, exist_ok=True)
      files.write_bytes(path, content)
      self._evict(keep=path)
    except (OSError, FormatError) as error:
      _warn_once(str(error))

  def _path(self, key: str) -> str:
    return os.path.join(self.directory, key + _SUFFIX)

  def _evict(self, keep: str) -> None:
    entries = []
    with os.scandir(self.directory) as items:
      for item in items:
        with contextlib.suppress(FileNotFoundError):
          status = item.stat(follow_symlinks=False)
          if stat.S_ISREG(status.st_mode) and item.name.endswith(_SUFFIX):
            entries.append((status.st_mtime, status.st_size, item.path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
      if total > _MAX_BYTES and path != keep:
        with contextlib.suppress(FileNotFoundError):
          os.unlink(path)
        total -= size


@functools.cache
def _warn_once(reason: str) -> None:
  _logger.warning("extracted graphs are not cached: %s", reason)
