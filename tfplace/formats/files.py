"""Files that users name: read without waiting for ever, written whole.

A regular file is replaced in one step. What is no regular file (a terminal,
/dev/null, a pipe) is written through; nothing ever takes its place. A file or
folder in the making lies beside its target, under a short name of its own, and
is locked (flock) by the process that makes it. The kernel releases the lock
when that process ends, however it does; so what is not locked was left behind,
and whoever next makes something in the same folder removes it.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator

from tfplace.errors import FormatError

# Short, whatever the target's name: that may be as long as names can be.
_NAME = re.compile(r"\.tfplace-[0-9a-f]{16}\.part")
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of renameat2(2)
_mine: set[str] = set()

Path = str | os.PathLike[str]
_WRITER_WAIT_S = 5.0  # until somebody opens the other end of a named pipe
_READER_WAIT_S = 60.0  # longer: what was computed would be lost
_POLL_S = 0.05
_CHUNK_BYTES = 1 << 16
_NEVER_WRITTEN = {
  stat.S_IFDIR: "a folder, not a file",
  stat.S_IFBLK: "a block device",
  stat.S_IFSOCK: "a socket",
}


@contextlib.contextmanager
def new_folder(folder: str) -> Iterator[str]:
  """Path of an empty folder, removed at the end if still there.

  Raises:
    OSError: it cannot be made.
  """
  with new_file(folder, 0o777, is_folder=True) as (path, _):
    yield path


@contextlib.contextmanager
def new_file(
  folder: str, mode: int = 0o666, is_folder: bool = False
) -> Iterator[tuple[str, int]]:
  """Path and descriptor of an empty file, removed at the end if still there.

  Args:
    folder: where to make it; what others left there is removed.
    mode: its permissions, less the process's umask.
    is_folder: whether it is a folder.

  Raises:
    OSError: it cannot be made.
  """
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


def read_bytes(path: Path, limit: int) -> bytes:
  """The bytes of a file or pipe, at most `limit` + 1 of them.

  Raises:
    OSError: it cannot be read, or is a pipe to which nobody writes.
  """
  with open(path, "rb", opener=_open_at_once) as file:
    is_pipe = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
    first = _first_bytes(file.fileno()) if is_pipe else b""
    os.set_blocking(file.fileno(), True)
    return first + file.read(max(0, limit + 1 - len(first)))


def _open_at_once(path: str, flags: int) -> int:
  return os.open(path, flags | os.O_NONBLOCK)


def _first_bytes(handle: int) -> bytes:
  """What a pipe has; nothing where its writer has not written yet."""
  deadline = time.monotonic() + _WRITER_WAIT_S
  while time.monotonic() < deadline:
    try:
      chunk = os.read(handle, _CHUNK_BYTES)
    except BlockingIOError:
      return b""
    if chunk:
      return chunk
    time.sleep(_POLL_S)
  raise OSError(errno.EPIPE, "it is a pipe to which no process writes")


def check_writable(path: Path) -> None:
  """Fails before the work is done rather than after it.

  Raises:
    FormatError: `path` cannot be written; says why.
  """
  with _refusing(path):
    status = _status(path)
    if _own_stream(status) is not None:
      return
    if status is not None and not stat.S_ISREG(status.st_mode):
      why = _NEVER_WRITTEN.get(stat.S_IFMT(status.st_mode))
      if why is not None:
        raise FormatError(f"{os.fspath(path)!r} is {why}")
      if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
      return
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
      raise FormatError(
        f"folder {folder!r} of {os.fspath(path)!r} does not exist"
      )
    with new_file(folder):
      pass


def is_standard_output(path: Path) -> bool:
  """Whether a path leads to where this process prints."""
  with _refusing(path):
    return _own_stream(_status(path)) == 1


def write_bytes(path: Path, content: bytes) -> None:
  """Writes a file: a reader sees the old one or the new one, whole.

  What is no regular file gets the bytes as they are, and a symbolic link
  stays one.

  Raises:
    FormatError: the file cannot be written; an old one is untouched.
  """
  with _refusing(path):
    status = _status(path)
    stream = _own_stream(status)
    if stream is not None:
      print(end="", flush=True)  # what was printed before comes before
      _write(os.dup(stream), content)
    elif status is None or stat.S_ISREG(status.st_mode):
      _replace(os.path.realpath(path), status, content)
    elif stat.S_ISFIFO(status.st_mode):
      _write(_opened_pipe(path), content)
    elif stat.S_IFMT(status.st_mode) in _NEVER_WRITTEN:
      check_writable(path)
    else:
      _write(os.open(path, os.O_WRONLY | os.O_NOCTTY), content)


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
  try:
    yield
  except (OSError, ValueError) as error:  # the latter of a null character
    reason = getattr(error, "strerror", None) or str(error)
    raise FormatError(f"{path}: cannot be written: {reason}") from error


def _status(path: Path) -> os.stat_result | None:
  """Of what a path leads to; None where nothing is there."""
  try:
    return os.stat(path)
  except FileNotFoundError:
    return None


def _own_stream(status: os.stat_result | None) -> int | None:
  """The descriptor, where a file is what this process prints to.

  As /dev/stdout is: opened anew it would begin at the start of the file, and
  if it were replaced, what is printed later would be lost.
  """
  for stream in (1, 2):
    with contextlib.suppress(OSError):  # closed
      if status is not None and os.path.samestat(status, os.fstat(stream)):
        return stream
  return None


def _opened_pipe(path: Path) -> int:
  """The end to write to, once a process reads from the other."""
  deadline = time.monotonic() + _READER_WAIT_S
  while True:
    try:
      handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
      os.set_blocking(handle, True)
      return handle
    except OSError as error:
      if error.errno != errno.ENXIO:
        raise
      if time.monotonic() > deadline:
        raise OSError(errno.ENXIO, "no process reads from the pipe") from error
    time.sleep(_POLL_S)


def _write(handle: int, content: bytes) -> None:
  with os.fdopen(handle, "wb") as file:
    file.write(content)


def _replace(
  target: str, status: os.stat_result | None, content: bytes
) -> None:
  mode = 0o666 if status is None else stat.S_IMODE(status.st_mode)
  with new_file(os.path.dirname(target), mode) as (made, handle):
    with os.fdopen(os.dup(handle), "wb") as file:
      file.write(content)
      file.flush()
      os.fsync(handle)
    if status is not None:
      os.fchmod(handle, mode)
    try:
      os.replace(made, target)
    except OSError as error:
      if error.errno != errno.EBUSY:
        raise
      # A file that is mounted, as into a container, keeps its place.
      with open(target, "wb") as file:
        file.write(content)
