"""Setup of training processes and exclusive checkpoint directories.

TF-GNN and tf-agents require `tf.keras` to be Keras 2. An environment variable,
set before TensorFlow is imported, decides this for the whole process.
"""

import contextlib
import fcntl
import importlib.util
import os
import sys
from collections.abc import Iterator

from tfplace.errors import TrainingError

SWITCH = "TF_USE_LEGACY_KERAS"
_LOCK = "lock"  # contains the process id of the run
PACKAGES = ("tf_agents", "tensorflow_gnn", "tf_keras", "tensorboard")


def check_packages() -> None:
  """Checks that the extra `train` is installed, without importing it.

  Raises:
    TrainingError: A package is missing; the message says how to install it.
  """
  missing = [p for p in PACKAGES if importlib.util.find_spec(p) is None]
  if missing:
    raise TrainingError(
      f"training needs the extra 'train', and {', '.join(missing)} is not"
      " installed: pip install 'tfplace[train]' on Python 3.11"
    )


def enter_training_process() -> None:
  """Makes this a training process; call before importing TensorFlow.

  Raises:
    TrainingError: The extra `train` is missing, or TensorFlow has been imported
      with Keras 3.
  """
  check_packages()
  if "tensorflow" in sys.modules and os.environ.get(SWITCH) != "1":
    raise TrainingError(
      "training needs a process of its own: TensorFlow is already imported"
      f" here without {SWITCH}=1"
    )
  os.environ[SWITCH] = "1"


def check_training_process() -> None:
  """Checks that `enter_training_process` has been called.

  Raises:
    TrainingError: It has not been called, or the extra `train` is missing.
  """
  check_packages()
  if os.environ.get(SWITCH) != "1":
    raise TrainingError(
      "policies are trained in a process of their own: run tfplace-train, or"
      f" set {SWITCH}=1 before TensorFlow is imported"
    )


@contextlib.contextmanager
def only_run_in(directory: str | os.PathLike[str]) -> Iterator[None]:
  """Creates a checkpoint directory and locks out other runs.

  Two runs would overwrite each other's checkpoints. The kernel releases the
  lock (flock) when the process ends in any way.

  Raises:
    TrainingError: Another run uses the directory, or it cannot be created or
      written.
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
    except OSError:  # The file system has no locks.
      pass
    # A full disk is reported by the first save.
    with contextlib.suppress(OSError):
      os.ftruncate(handle, 0)
      os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    yield
