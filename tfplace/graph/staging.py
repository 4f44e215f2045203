"""Files and folders in the making, beside the place that they are made for.

Each has a short name of its own and is locked (flock) by the process that
makes it. The kernel takes the lock back when that process ends, however it
does; so what is not locked was left behind, and whoever next makes something
in the same folder removes it.
"""

import contextlib
import ctypes
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator

# Short, whatever the target's name: that may be as long as names can be.
_NAME = re.compile(r"\.tfplace-[0-9a-f]{16}\.part")
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of renameat2(2)
_mine: set[str] = set()


@contextlib.contextmanager
def new_file(folder: str, mode: int = 0o666) -> Iterator[tuple[str, int]]:
  """Path and descriptor of an empty file, removed at the end if still there.

  Args:
    folder: where to make it; what others left there is removed.
    mode: its permissions, less the process's umask.

  Raises:
    OSError: it cannot be made.
  """
  with _made(folder, mode, is_folder=False) as made:
    yield made


@contextlib.contextmanager
def new_folder(folder: str) -> Iterator[str]:
  """Path of an empty folder, removed at the end if still there.

  Raises:
    OSError: it cannot be made.
  """
  with _made(folder, 0o777, is_folder=True) as (path, _):
    yield path


@contextlib.contextmanager
def _made(folder: str, mode: int, is_folder: bool) -> Iterator[tuple[str, int]]:
  folder = os.path.abspath(folder)
  _remove_left_behind(folder)
  made = None
  while made is None:
    path = os.path.join(folder, f".tfplace-{secrets.token_hex(8)}.part")
    _mine.add(path)
    try:
      made = _try_make(path, mode, is_folder)
      if made is not None:
        yield path, made
    finally:
      _remove(path)
      _mine.discard(path)
      if made is not None:
        os.close(made)


def _try_make(path: str, mode: int, is_folder: bool) -> int | None:
  """A locked descriptor; None where somebody took it for left behind."""
  if is_folder:
    os.mkdir(path, mode)
    flags = os.O_RDONLY | os.O_DIRECTORY
  else:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
  try:
    handle = os.open(path, flags | os.O_CLOEXEC, mode)
  except FileNotFoundError:
    if is_folder and os.path.isdir(os.path.dirname(path)):
      return None
    raise
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    is_there = os.path.samestat(os.stat(path), os.fstat(handle))
  except (BlockingIOError, FileNotFoundError):
    is_there = False
  except OSError:  # a file system without locks, where nobody can remove it
    is_there = True
  if is_there:
    return handle
  os.close(handle)
  return None


def _remove_left_behind(folder: str) -> None:
  with contextlib.suppress(OSError), os.scandir(folder) as found:
    for entry in found:
      if _NAME.fullmatch(entry.name) and entry.path not in _mine:
        with contextlib.suppress(OSError):
          _remove_unless_locked(entry)


def _remove_unless_locked(entry: os.DirEntry[str]) -> None:
  is_folder = entry.is_dir(follow_symlinks=False)
  # NFS locks only what is open for writing, which no folder can be.
  flags = os.O_RDONLY if is_folder else os.O_RDWR
  flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
  handle = os.open(entry.path, flags)
  try:
    status = os.fstat(handle)
    is_ours = status.st_uid == os.geteuid()
    if is_ours and (is_folder or stat.S_ISREG(status.st_mode)):
      fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
      _remove(entry.path)
  finally:
    os.close(handle)


def _remove(path: str) -> None:
  if os.path.isdir(path) and not os.path.islink(path):
    shutil.rmtree(path, ignore_errors=True)
  else:
    with contextlib.suppress(OSError):
      os.unlink(path)


def remove_all() -> None:
  """Removes what this process has in the making; for its sudden end."""
  for path in list(_mine):
    _remove(path)


def put_folder(made: str, target: str) -> None:
  """Puts a folder of `new_folder` in its place, at every moment a whole one.

  What was there takes the name of `made`, and goes with it. A file system
  that cannot exchange two names has none under the target's for a moment.

  Raises:
    OSError: it cannot be done.
  """
  if not os.path.lexists(target):
    os.rename(made, target)
  elif not _exchanged(made, target):
    old = f"{made}.old"  # not a name that anybody removes
    os.rename(target, old)
    os.rename(made, target)
    shutil.rmtree(old)


def _exchanged(one: str, other: str) -> bool:
  names = os.fsencode(one), os.fsencode(other)
  rename = getattr(ctypes.CDLL(None), "renameat2", None)  # of Linux
  if rename is None:
    return False
  return rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0
