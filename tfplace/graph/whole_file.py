"""Files that users name: read without waiting for ever, written whole.

A regular file is replaced in one step. What is no regular file (a terminal,
/dev/null, a pipe) is written through; nothing ever takes its place.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator

from tfplace.errors import FormatError
from tfplace.graph import staging

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
    with staging.new_file(folder):
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
  mode = None if status is None else stat.S_IMODE(status.st_mode)
  with staging.new_file(
    os.path.dirname(target), 0o666 if mode is None else mode
  ) as (made, handle):
    with os.fdopen(os.dup(handle), "wb") as file:
      file.write(content)
      file.flush()
      os.fsync(handle)
    if mode is not None:
      os.fchmod(handle, mode)
    try:
      os.replace(made, target)
    except OSError as error:
      if error.errno != errno.EBUSY:
        raise
      # A file that is mounted, as into a container, keeps its place.
      with open(target, "wb") as file:
        file.write(content)
