"""Atomic writes and bounded reads of user files.

Regular files are replaced in one step. Terminals, pipes and /dev/null are
written in place. Temporary files and folders lie beside their target under a
short name, locked (flock) by the process that creates them. The kernel releases
the lock when that process ends, so an unlocked one is a leftover, and the next
writer in the same folder removes it.
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
import tempfile
import time
from collections.abc import Iterator

from tfplace.errors import FormatError

# Temporary names are short because the target's name may have any length.
_NAME = re.compile(r"\.tfplace-[0-9a-f]{16}\.part")
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # Constants of renameat2(2).
_mine: set[str] = set()

Path = str | os.PathLike[str]
# Wait for a process to open the write end of a named pipe.
_WRITER_WAIT_S = 5.0
_READER_WAIT_S = 60.0  # Longer, because a timeout loses computed results.
_POLL_S = 0.05
_CHUNK_BYTES = 1 << 16
_NEVER_WRITTEN = {
  stat.S_IFDIR: "a folder, not a file",
  stat.S_IFBLK: "a block device",
  stat.S_IFSOCK: "a socket",
}


@contextlib.contextmanager
def new_folder(folder: str) -> Iterator[str]:
  """Creates a temporary folder, removed on exit unless it was moved."""
  with new_file(folder, 0o777, is_folder=True) as (path, _):
    yield path


@contextlib.contextmanager
def new_file(
  folder: str, mode: int = 0o666, is_folder: bool = False
) -> Iterator[tuple[str, int]]:
  """Creates a temporary file, removed on exit unless it was moved.

  Args:
    folder: parent folder; leftovers of ended processes in it are removed.

  Yields:
    Path and locked file descriptor.

  Raises:
    OSError: the file cannot be created.
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
  """Returns a locked descriptor, or None if another process removed it."""
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
  except OSError:  # The file system has no locks, so no process can remove it.
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
  # NFS locks only files that are open for writing. Folders never are.
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
  """Removes all temporary files of this process, for its abrupt end."""
  for path in list(_mine):
    _remove(path)


def check_temporary_folder() -> None:
  """Raises FormatError where Python finds no folder for temporary files."""
  try:
    tempfile.gettempdir()
  except FileNotFoundError as error:
    raise FormatError(
      "no folder for temporary files can be written (TMPDIR is"
      f" {os.environ.get('TMPDIR')!r}): set TMPDIR to a folder of your own"
    ) from error


def put_folder(made: str, target: str) -> None:
  """Moves a folder of `new_folder` to its target, atomically where possible.

  An existing target is exchanged with `made` and later removed with it. On a
  file system without exchange, the target is missing for a moment.

  Raises:
    OSError: the folder cannot be moved.
  """
  if not os.path.lexists(target):
    os.rename(made, target)
  elif not _exchanged(made, target):
    old = f"{made}.old"  # No process removes this name as a leftover.
    os.rename(target, old)
    os.rename(made, target)
    shutil.rmtree(old)


def _exchanged(one: str, other: str) -> bool:
  names = os.fsencode(one), os.fsencode(other)
  rename = getattr(ctypes.CDLL(None), "renameat2", None)  # Linux only.
  if rename is None:
    return False
  return rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0


def read_bytes(path: Path, limit: int) -> bytes:
  """Reads at most `limit` + 1 bytes of a file or pipe.

  Raises:
    OSError: the file cannot be read, or no process writes to the pipe.
  """
  with open(path, "rb", opener=_open_at_once) as file:
    is_pipe = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
    first = _first_bytes(file.fileno()) if is_pipe else b""
    os.set_blocking(file.fileno(), True)
    return first + file.read(max(0, limit + 1 - len(first)))


def _open_at_once(path: str, flags: int) -> int:
  return os.open(path, flags | os.O_NONBLOCK)


def _first_bytes(handle: int) -> bytes:
  """Reads the first bytes of a pipe; empty if its writer has none yet."""
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
  """Raises FormatError, before work is done, if a file cannot be written."""
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


def is_regular(path: Path) -> bool:
  """Returns True for a regular file that is no standard stream."""
  with _refusing(path):
    status = _status(path)
    is_file = status is not None and stat.S_ISREG(status.st_mode)
    return is_file and _own_stream(status) is None


def is_standard_output(path: Path) -> bool:
  """Returns True if a path leads to this process's standard output."""
  with _refusing(path):
    return _own_stream(_status(path)) == 1


def write_bytes(path: Path, content: bytes) -> None:
  """Writes a file atomically: readers see the old content or the new one.

  Files that are not regular are written in place. Symbolic links stay links.

  Raises:
    FormatError: the file cannot be written. An existing file is left unchanged.
  """
  with _refusing(path):
    status = _status(path)
    stream = _own_stream(status)
    if stream is not None:
      print(end="", flush=True)  # Flush first to keep the order of outputs.
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
  except (OSError, ValueError) as error:  # A null character raises ValueError.
    reason = getattr(error, "strerror", None) or str(error)
    raise FormatError(f"{path}: cannot be written: {reason}") from error


def _status(path: Path) -> os.stat_result | None:
  try:
    return os.stat(path)
  except FileNotFoundError:
    return None


def _own_stream(status: os.stat_result | None) -> int | None:
  """Returns 1 or 2 if a file is this process's standard output or error.

  A path such as /dev/stdout must not be reopened, which would write from the
  start of the file, nor replaced, which would lose later output.
  """
  for stream in (1, 2):
    with contextlib.suppress(OSError):  # The stream is closed.
      if status is not None and os.path.samestat(status, os.fstat(stream)):
        return stream
  return None


def _opened_pipe(path: Path) -> int:
  """Opens a pipe for writing once another process reads from it."""
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
      # A mounted file, as in a container, cannot be replaced.
      with open(target, "wb") as file:
        file.write(content)
