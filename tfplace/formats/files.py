"""Atomic writes and bounded reads of user files.

Regular files are replaced in one step; terminals, pipes and /dev/null are
written in place. Temporary files and folders lie beside their target.
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator

from tfplace.errors import FormatError

Path = str | os.PathLike[str]
_mine: set[str] = set()
_NEVER_WRITTEN = {
  stat.S_IFDIR: "a folder, not a file",
  stat.S_IFBLK: "a block device",
  stat.S_IFSOCK: "a socket",
}


@contextlib.contextmanager
def new_folder(folder: str) -> Iterator[str]:
  """Creates a temporary folder, removed on exit unless it was moved.

  Raises:
    OSError: the folder cannot be created.
  """
  with _new_name(folder) as path:
    os.mkdir(path)
    yield path


@contextlib.contextmanager
def new_file(folder: str, mode: int = 0o666) -> Iterator[tuple[str, int]]:
  """Creates a temporary file, removed on exit unless it was moved.

  Yields:
    Path and file descriptor.

  Raises:
    OSError: the file cannot be created.
  """
  with _new_name(folder) as path:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    handle = os.open(path, flags, mode)
    try:
      yield path, handle
    finally:
      os.close(handle)


@contextlib.contextmanager
def _new_name(folder: str) -> Iterator[str]:
  """Yields an unused name; what has it on exit is removed."""
  # Short, because the target's name may have any length.
  path = os.path.join(folder, f".tfplace-{secrets.token_hex(8)}.part")
  _mine.add(path)
  try:
    yield path
  finally:
    _remove(path)
    _mine.discard(path)


def _remove(path: str) -> None:
  if os.path.isdir(path):
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
  """Moves a folder of `new_folder` to its target, and removes an old target.

  Raises:
    OSError: the folder cannot be moved.
  """
  if not os.path.lexists(target):
    os.rename(made, target)
    return
  with _new_name(os.path.dirname(target)) as old:
    os.rename(target, old)
    try:
      os.rename(made, target)
    except OSError:
      os.rename(old, target)
      raise


def read_bytes(path: Path, limit: int) -> bytes:
  """Reads at most `limit` + 1 bytes; raises OSError."""
  with open(path, "rb") as file:
    return file.read(limit + 1)


def check_writable(path: Path) -> None:
  """Raises FormatError, before work is done, if a file cannot be written."""
  with _refusing(path):
    status = _status(path)
    if status is not None and not stat.S_ISREG(status.st_mode):
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


def write_bytes(path: Path, content: bytes) -> None:
  """Writes a file atomically: readers see the old content or the new one.

  Files that are not regular are written in place. Symbolic links stay links.

  Raises:
    FormatError: the file cannot be written. An existing file is left unchanged.
  """
  with _refusing(path):
    status = _status(path)
    if status is None or stat.S_ISREG(status.st_mode):
      _replace(os.path.realpath(path), status, content)
    else:
      with open(path, "wb") as file:
        file.write(content)


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
  try:
    yield
  except (OSError, ValueError) as error:  # A null character raises ValueError.
    reason = getattr(error, "strerror", None) or str(error)
    raise FormatError(f"{path}: cannot be written: {reason}") from error


def _status(path: Path) -> os.stat_result | None:
  """Returns the status of a file that may be written, None if it is new."""
  try:
    status = os.stat(path)
  except FileNotFoundError:
    return None
  why = _NEVER_WRITTEN.get(stat.S_IFMT(status.st_mode))
  if why is not None:
    raise FormatError(f"{os.fspath(path)!r} is {why}")
  return status


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
    os.replace(made, target)
