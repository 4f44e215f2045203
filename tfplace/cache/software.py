"""The software and host that decide a graph, besides this package's code.

Versions of TensorFlow and Keras, the settings of Keras that change what a
layer does, and whether this host has a GPU, for which some layers have other
ops. What is imported already is asked; what is not is not imported for it.
"""

import functools
import json
import os
import pathlib
import platform
import sys
from importlib import metadata
from typing import Any

_TENSORFLOWS = (  # names that TensorFlow is distributed under
  "tensorflow",
  "tensorflow-cpu",
  "tensorflow-intel",
  "tensorflow-macos",
  "tf-nightly",
  "tf-nightly-cpu",
)
_GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # CUDA, ROCm, WSL
_GPU_CHOICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


class UnknownError(Exception):
  """Something that decides a graph and that no digest can cover."""


def software() -> dict[str, Any]:
  """Plain data that differs where graphs may.

  Raises:
    UnknownError: no version of TensorFlow is known, or this process sees
      other GPUs than the host has.
  """
  return {
    "tensorflow": _tensorflow_version(),
    "keras": _version("keras"),
    "platform": [platform.system(), platform.machine()],
    "gpus": _gpus(),
    "settings": _keras_settings(),
  }


@functools.cache
def _tensorflow_version() -> list[str]:
  found = [f"{name} {v}" for name in _TENSORFLOWS if (v := _version(name))]
  if not found:
    raise UnknownError
  return found


@functools.cache
def _version(name: str) -> str | None:
  try:
    return metadata.version(name)
  except metadata.PackageNotFoundError:
    return None


def _gpus() -> list[Any]:
  """What tells a host with GPUs from one without, TensorFlow aside."""
  found = [path for path in _GPU_FILES if os.path.exists(path)]
  tensorflow = sys.modules.get("tensorflow")
  if found and tensorflow is not None:
    config = tensorflow.config
    if config.get_visible_devices("GPU") != config.list_physical_devices("GPU"):
      raise UnknownError  # chosen by a call, which another process did not make
  return [found, [os.environ.get(name) for name in _GPU_CHOICES]]


def _keras_settings() -> list[Any]:
  """What layers take for granted: as set, or as Keras will read it."""
  keras = sys.modules.get("keras")
  if keras is not None:
    config = keras.config
    return [
      config.floatx(),
      config.epsilon(),
      config.image_data_format(),
      config.dtype_policy().name,
    ]
  given = _keras_file()
  floatx = given.get("floatx", "float32")
  return [
    floatx,
    given.get("epsilon", 1e-7),
    given.get("image_data_format", "channels_last"),
    floatx,
  ]


def _keras_file() -> dict[str, Any]:
  """Keras' own file of settings, where Keras looks for it."""
  home = os.path.expanduser("~")
  if not os.access(home, os.W_OK):
    home = "/tmp"
  folder = os.environ.get("KERAS_HOME", os.path.join(home, ".keras"))
  path = pathlib.Path(os.path.expanduser(os.path.join(folder, "keras.json")))
  if not path.exists():
    return {}
  try:
    content = json.loads(path.read_text())
  except ValueError:
    return {}
  return content if isinstance(content, dict) else {}


def has_custom_objects() -> bool:
  """Whether a Keras file may load classes that a user wrote."""
  keras = sys.modules.get("keras")
  if keras is None:
    return False
  names = keras.saving.get_custom_objects()
  return any(not name.startswith("tfplace>") for name in names)
