"""The check that training runs in a process of its own, with Keras 2.

TF-GNN and tf-agents need `tf.keras` to be Keras 2, which an environment
variable decides for a whole process before TensorFlow is imported
(`tfplace.bin.train` does so). A user's process never needs this module.
"""

import importlib.util
import os
import sys

from tfplace.errors import TrainingError

SWITCH = "TF_USE_LEGACY_KERAS"
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
