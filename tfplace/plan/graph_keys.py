"""Hashes of everything that determines an op graph.

A hash covers the model (name and sizes of a zoo model, or every byte of its
files), batch size, training or inference, microbatches, the hardware of each
device kind, the cost model, this package's sources, TensorFlow and Keras with
the settings that change layers, and the GPUs of this host, for which some
layers have other ops. Settings are read from modules that are already imported;
nothing is imported for them.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from tfplace.core.cluster import Cluster
from tfplace.core.given_batch import GivenBatch
from tfplace.core.microbatches import WHOLE, VariantConfig
from tfplace.cost import registry

_TENSORFLOWS = (  # Names of TensorFlow distributions.
  *("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos"),
  *("tf-nightly", "tf-nightly-cpu"),
)
_GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # CUDA, ROCm, WSL.
_GPU_CHOICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_PACKAGE = pathlib.Path(__file__).parent.parent
# Folders and modules of this package that determine a graph.
_CODE = (
  *("models", "core", "formats", "extraction", "cost", "__init__.py"),
  *("plan/local_step.py", "plan/model_source.py", "plan/sources.py"),
  *("measure/calibrate", "measure/session"),
)


class _UnknownError(Exception):
  """Something determines the graph that no digest can cover."""


def content_key(
  kind: str,
  source: str,
  cluster: Cluster,
  *,
  batch_size: int | None = None,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  costs: str = registry.DEFAULT,
  compile_units: bool = False,
  microbatches: VariantConfig = WHOLE,
  sample: GivenBatch | None = None,
) -> str | None:
  """Returns the hexadecimal digest of a graph, or None if it is unknown.

  The arguments are those of `sources.load_or_extract` and its source.
  """
  try:
    return _digest(
      kind=kind,
      source=source if kind == "model" else _content(kind, source),
      batch_size=batch_size,
      training=training,
      sizes=dict(sizes or {}),
      costs=[costs, _tensor_float_32(), compile_units],
      microbatches=dataclasses.astuple(microbatches),
      hardware=_hardware(cluster),
      sample=None if sample is None else _sample(sample),
    )
  except (OSError, TypeError, ValueError, _UnknownError):
    return None


def measured_key(step: bytes, devices: Mapping[str, Any]) -> str | None:
  """Returns the digest of a step that was measured on this process's devices.

  Args:
    step: graph of the step and shapes of its inputs.
    devices: plain data that determines the speed of the devices.
  """
  try:
    content = hashlib.sha256(step).hexdigest()
    return _digest(measured=content, devices=dict(devices))
  except (OSError, TypeError, ValueError, _UnknownError):
    return None


def _digest(**parts: Any) -> str:
  software = [*_software(), _gpus(), _keras_settings()]
  text = json.dumps({**parts, "software": software}, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _software() -> list[Any]:
  """Returns digests and versions of what this process runs.

  Raises:
    OSError: the package is inside a zip file.
  """
  versions = {name: _version(name) for name in (*_TENSORFLOWS, "keras")}
  if not any(versions[name] for name in _TENSORFLOWS):
    raise _UnknownError
  files = {}
  for name in _CODE:
    top = _PACKAGE / name
    for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
      if path.suffix in (".py", ".json"):
        files[path.relative_to(_PACKAGE).as_posix()] = _file_digest(path)
  return [versions, files, platform.system(), platform.machine()]


def _version(name: str) -> str | None:
  try:
    return metadata.version(name)
  except metadata.PackageNotFoundError:
    return None


def _gpus() -> list[Any]:
  """Fingerprint of the GPUs of this host, found without TensorFlow."""
  found = [path for path in _GPU_FILES if os.path.exists(path)]
  tensorflow = sys.modules.get("tensorflow")
  if found and tensorflow is not None:
    config = tensorflow.config
    if config.get_visible_devices("GPU") != config.list_physical_devices("GPU"):
      raise _UnknownError  # A call in this process chose the GPUs.
  return [found, [os.environ.get(name) for name in _GPU_CHOICES]]


def _keras_settings() -> list[Any]:
  """Returns the settings that layers depend on, from Keras or its file."""
  keras = sys.modules.get("keras")
  if keras is not None:
    config = keras.config
    return [
      config.floatx(),
      config.epsilon(),
      config.image_data_format(),
      config.dtype_policy().name,
    ]
  given = keras_file()
  floatx = given.get("floatx", "float32")
  epsilon = given.get("epsilon", 1e-7)
  data_format = given.get("image_data_format", "channels_last")
  return [floatx, epsilon, data_format, floatx]


def keras_file() -> dict[str, Any]:
  """Reads Keras' file of settings from where Keras looks for it."""
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


def _tensor_float_32() -> bool:
  """Returns whether TensorFlow multiplies float32 in TF32, its default."""
  config = getattr(sys.modules.get("tensorflow"), "config", None)
  if config is None:
    return True
  return config.experimental.tensor_float_32_execution_enabled()


def _hardware(cluster: Cluster) -> list[Any]:
  """Returns the distinct kinds and descriptions of devices, in order."""
  pairs = ([d.kind, d.extra.get("hardware")] for d in cluster.devices)
  return list({json.dumps(p, sort_keys=True): p for p in pairs}.values())


def _sample(sample: GivenBatch) -> list[Any]:
  content = _file_digest(sample.path) if sample.path else ""
  return [dict(sample.input_shapes), content]


def _content(kind: str, source: str) -> list[Any]:
  """Returns the base name of a source and the digests of all its files.

  Raises:
    OSError: a file or directory cannot be read.
  """
  keras = sys.modules.get("keras")
  if kind == "keras_model" and keras is not None:
    names = keras.saving.get_custom_objects()
    if any(not name.startswith("tfplace>") for name in names):
      raise _UnknownError  # A Keras file may load user-defined classes.
  top = pathlib.Path(source)
  files = {}
  for path in top.rglob("*") if top.is_dir() else [top]:
    if path.is_dir() and not path.is_symlink():
      os.listdir(path)  # The walk would leave out what cannot be read.
    elif path.is_dir():
      raise _UnknownError  # TensorFlow follows links, and the walk does not.
    else:
      files[path.relative_to(top).as_posix()] = _file_digest(path)
  return [os.path.basename(os.path.normpath(source)), files]


def _file_digest(path: str | os.PathLike[str]) -> str:
  if not os.path.isfile(path):  # Reading a pipe would never end.
    raise _UnknownError
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
