"""One training run at a time in a checkpoint directory.

Two would overwrite each other's checkpoints. The lock (flock) is the kernel's,
which takes it back when the process ends, however it does.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from tfplace.errors import TrainingError

_FILE = "lock"  # holds the process id of the run


@contextlib.contextmanager
def only_run_in(directory: str | os.PathLike[str]) -> Iterator[None]:
  """Makes a checkpoint directory, and keeps other runs out of it.

  Raises:
    TrainingError: a run is going on in it, or it cannot be made or written.
  """
  path = os.path.join(directory, _FILE)
  try:
    os.makedirs(directory, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
  except OSError as error:
    raise TrainingError(
      f"checkpoint directory {os.fspath(directory)!r} cannot be written:"
      f" {error.strerror}: {error.filename!r}"
    ) from error
  with os.fdopen(handle, "r+", encoding="ascii", errors="replace") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      pid = file.read(20).strip()
      who = f"process {pid}" if pid.isdecimal() else "another process"
      raise TrainingError(
        f"checkpoint directory {os.fspath(directory)!r} is in use: {who} is"
        " training in it"
      ) from error
    except OSError:  # a file system without locks
      pass
    with contextlib.suppress(OSError):  # a full disk: the first save tells
      os.ftruncate(handle, 0)
      os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    yield
