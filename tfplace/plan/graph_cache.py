"""A directory of op graphs by key, bounded in size; its failures never raise.

An entry that is missing, cut off, damaged or of another version is no entry;
a directory that cannot be written is left alone after one warning. Entries
appear whole (a rename), so any number of processes may share a directory.
What is read is data, in regular files of the directory itself, and nothing of
it is executed.
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

MAX_BYTES = 2 << 30  # of all entries; some hundred graphs of 50,000 ops
_SUFFIX = ".opgraph"
_KEY = re.compile(r"[0-9a-f]{16,128}\Z")
_ENTRY = re.compile(rf"[0-9a-f]{{16,128}}{re.escape(_SUFFIX)}\Z")
_logger = logging.getLogger("tfplace")


def default_directory() -> str | None:
  """`tfplace` in the user's cache directory; None where there is no such.

  That is `XDG_CACHE_HOME`, if absolute as the XDG base directory specification
  demands, else `~/.cache`.
  """
  home = os.environ.get("XDG_CACHE_HOME", "")
  if not os.path.isabs(home):
    home = os.path.join(os.path.expanduser("~"), ".cache")
  return os.path.join(home, "tfplace") if os.path.isabs(home) else None


class GraphCache:
  """Op graphs in one directory, by key.

  Args:
    directory: made when the first graph is stored, for this user alone.
    max_bytes: of all entries; the least recently used go first.
  """

  def __init__(
    self, directory: str | os.PathLike[str], max_bytes: int = MAX_BYTES
  ) -> None:
    self.directory = os.fspath(directory)
    self.max_bytes = max_bytes
    self._has_warned = False

  def load(self, key: str) -> OpGraph | None:
    """The graph stored under the key, if there is a whole one."""
    try:
      return unpack_graph(self._read(self._path(key)))
    except OSError:
      return None
    except FormatError as error:
      _logger.info("cached graph %s is made anew: %s", key, error)
      return None

  def store(self, key: str, graph: OpGraph) -> None:
    """Keeps a graph; warns once where it cannot."""
    path = self._path(key)
    try:
      content = pack_graph(graph)
      if len(content) > self.max_bytes:
        return
      os.makedirs(self.directory, mode=0o700, exist_ok=True)
      if os.path.islink(path) or not os.path.isfile(path):
        with contextlib.suppress(FileNotFoundError):
          os.unlink(path)  # or a write would follow it, or wait for a reader
      files.write_bytes(path, content)
      self._evict(keep=path)
    except (OSError, FormatError) as error:
      self._warn(error)

  def _path(self, key: str) -> str:
    if not _KEY.match(key):
      raise ValueError(f"key {key!r} is no hexadecimal digest")
    return os.path.join(self.directory, key + _SUFFIX)

  def _read(self, path: str) -> bytes:
    """The bytes of an entry, which then counts as used.

    Raises:
      OSError: there is none, or it is a link, a pipe or the like.
    """
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
      flags |= getattr(os, name, 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
      status = os.fstat(file.fileno())
      if not stat.S_ISREG(status.st_mode) or status.st_size > self.max_bytes:
        raise OSError(f"{path} is no entry")
      content = file.read(self.max_bytes)
    with contextlib.suppress(OSError):
      os.utime(path)
    return content

  def _evict(self, keep: str) -> None:
    """Drops the least recently used entries beyond `max_bytes`."""
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
    """Last use, bytes and path of each."""
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
      _logger.warning("extracted graphs are not kept: %s", error)
