"""A training process: with Keras 2, and alone in its checkpoint directory.

TF-GNN and tf-agents need `tf.keras` to be Keras 2, which an environment
variable decides for a whole process before TensorFlow is imported.
"""

import contextlib
import fcntl
import importlib.util
import os
import sys
from collections.abc import Iterator

from tfplace.errors import TrainingError

SWITCH = "TF_USE_LEGACY_KERAS"
_LOCK = "lock"  # holds the process id of the run
PACKAGES = ("tf_agents", "tensorflow_gnn", "tf_keras", "tensorboard")


def check_packages() -> None:
  """Checks that the extra `train` is installed; imports nothing.

  Raises:
    TrainingError: names what is missing and how to get it.
  """
  missing = [p for p in PACKAGES if importlib.util.find_spec(p) is None]
  if missing:
    raise TrainingError(
      f"training needs the extra 'train', and {', '.join(missing)} is not"
      " installed: pip install 'tfplace[train]' on Python 3.10 or 3.11"
    )


def enter_training_process() -> None:
  """Makes this a training process. Call before TensorFlow is imported.

  Raises:
    TrainingError: the extra `train` is missing, or TensorFlow has been
      imported with Keras 3.
  """
  check_packages()
  if "tensorflow" in sys.modules and os.environ.get(SWITCH) != "1":
    raise TrainingError(
      "training needs a process of its own: TensorFlow is already imported"
      f" here without {SWITCH}=1"
    )
  os.environ[SWITCH] = "1"


def check_training_process() -> None:
  """Checks that `enter_training_process` came first.

  Raises:
    TrainingError: it did not, or the extra `train` is missing.
  """
  check_packages()
  if os.environ.get(SWITCH) != "1":
    raise TrainingError(
      "policies are trained in a process of their own: run tfplace-train, or"
      f" set {SWITCH}=1 before TensorFlow is imported"
    )


@contextlib.contextmanager
def only_run_in(directory: str | os.PathLike[str]) -> Iterator[None]:
  """Makes a checkpoint directory, and keeps other runs out of it.

  Two would overwrite each other's checkpoints. The lock (flock) is the
  kernel's, which takes it back when the process ends, however it does.

  Raises:
    TrainingError: a run is going on in it, or it cannot be made or written.
  """
  path = os.path.join(directory, _LOCK)
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
