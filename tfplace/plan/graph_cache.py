"""Directory of op graphs, by a hash of everything that determines them.

A missing, truncated, damaged or outdated entry counts as absent. A directory
that cannot be written causes one warning. Entries are written atomically, so
any number of processes may share a directory. Nothing that is read is executed.
"""

import contextlib
import logging
import os
import re
import stat

from tfplace.core.op_graph import OpGraph
from tfplace.errors import FormatError
from tfplace.formats import files
from tfplace.formats.packed_graph import pack_graph, unpack_graph

MAX_BYTES = 2 << 30  # Of all entries: several hundred graphs of 50,000 ops.
_MAX_ENTRY_BYTES = 512 << 20  # A graph of 4 million ops takes 400 MB.
_SUFFIX = ".opgraph"
_KEY = re.compile(r"[0-9a-f]{16,128}\Z")
_ENTRY = re.compile(rf"[0-9a-f]{{16,128}}{re.escape(_SUFFIX)}\Z")
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
    max_bytes: limit of all entries; the least recently used are deleted first.
  """

  def __init__(
    self, directory: str | os.PathLike[str], max_bytes: int = MAX_BYTES
  ) -> None:
    self.directory = os.fspath(directory)
    self.max_bytes = max_bytes
    self._most = min(max_bytes, _MAX_ENTRY_BYTES)
    self._has_warned = False

  def load(self, key: str) -> OpGraph | None:
    """Returns the graph of a key, or None if there is no valid entry."""
    try:
      return unpack_graph(self._read(self._path(key)))
    except OSError:
      return None
    except FormatError as error:
      _logger.info("cached graph %s is extracted again: %s", key, error)
      return None

  def store(self, key: str, graph: OpGraph) -> None:
    """Stores a graph, or warns once that this is impossible."""
    path = self._path(key)
    try:
      content = pack_graph(graph)
      if len(content) > self._most:
        return
      os.makedirs(self.directory, mode=0o700, exist_ok=True)
      if os.path.islink(path) or not os.path.isfile(path):
        with contextlib.suppress(FileNotFoundError):
          os.unlink(path)  # A write would follow a link or block on a pipe.
      files.write_bytes(path, content)
      self._evict(keep=path)
    except (OSError, FormatError) as error:
      self._warn(error)

  def usage(self) -> tuple[int, int]:
    """Returns the number of entries and their bytes."""
    try:
      entries = self._entries()
    except OSError:  # The directory is created with the first entry.
      return 0, 0
    return len(entries), sum(size for _, size, _ in entries)

  def _path(self, key: str) -> str:
    if not _KEY.match(key):
      raise ValueError(f"key {key!r} is not a hexadecimal digest")
    return os.path.join(self.directory, key + _SUFFIX)

  def _read(self, path: str) -> bytes:
    """Reads an entry and marks it as used.

    Raises:
      OSError: the entry is missing or not a regular file.
    """
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
      flags |= getattr(os, name, 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
      status = os.fstat(file.fileno())
      if not stat.S_ISREG(status.st_mode) or status.st_size > self._most:
        raise OSError(f"{path} is not an entry")
      content = file.read(self._most)
    with contextlib.suppress(OSError):
      os.utime(path)
    return content

  def _evict(self, keep: str) -> None:
    """Deletes the least recently used entries beyond `max_bytes`."""
    entries = self._entries()
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
      if total <= self.max_bytes:
        break
      if path != keep:
        with contextlib.suppress(FileNotFoundError):
          os.unlink(path)
        total -= size

  def _entries(self) -> list[tuple[float, int, str]]:
    """Returns last use, size and path of each entry."""
    result = []
    with os.scandir(self.directory) as found:
      for item in found:
        with contextlib.suppress(FileNotFoundError):
          status = item.stat(follow_symlinks=False)
          if stat.S_ISREG(status.st_mode) and _ENTRY.match(item.name):
            result.append((status.st_mtime, status.st_size, item.path))
    return result

  def _warn(self, error: Exception) -> None:
    if not self._has_warned:
      self._has_warned = True
      _logger.warning("extracted graphs are not cached: %s", error)
