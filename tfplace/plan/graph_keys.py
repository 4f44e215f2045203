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
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from tfplace.core.cluster import Cluster
from tfplace.core.given_batch import GivenBatch
from tfplace.core.microbatches import WHOLE, MicrobatchConfig
from tfplace.cost import registry

_TENSORFLOWS = (  # Names of TensorFlow distributions.
  "tensorflow",
  "tensorflow-cpu",
  "tensorflow-intel",
  "tensorflow-macos",
  "tf-nightly",
  "tf-nightly-cpu",
)
_GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # CUDA, ROCm, WSL.
_GPU_CHOICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


class _UnknownError(Exception):
  """Something determines the graph that no digest can cover."""


def _software() -> dict[str, Any]:
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
    raise _UnknownError
  return found


@functools.cache
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
  return [
    floatx,
    given.get("epsilon", 1e-7),
    given.get("image_data_format", "channels_last"),
    floatx,
  ]


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


def _has_custom_objects() -> bool:
  """Returns whether a Keras file may load user-defined classes."""
  keras = sys.modules.get("keras")
  if keras is None:
    return False
  names = keras.saving.get_custom_objects()
  return any(not name.startswith("tfplace>") for name in names)


_PACKAGE = pathlib.Path(__file__).parent.parent
# Folders and modules of this package that determine a graph.
_CODE = (
  "models",
  "core",
  "formats",
  "extraction",
  "cost",
  "plan/local_step.py",
  "plan/sources.py",
  "__init__.py",
)
_SUFFIXES = (".py", ".json")
_CHUNK_BYTES = 1 << 20


def content_key(
  kind: str,
  source: str,
  cluster: Cluster,
  *,
  batch_size: int | None = None,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  costs: str = registry.DEFAULT,
  microbatches: MicrobatchConfig = WHOLE,
  sample: GivenBatch | None = None,
) -> str | None:
  """Returns the hexadecimal digest of a graph, or None if it is unknown.

  The arguments are those of `sources.load_or_extract`.
  """
  try:
    return _digest(
      kind=kind,
      source=_source(kind, source),
      batch_size=batch_size,
      training=training,
      sizes=dict(sizes or {}),
      costs=[costs, _tensor_float_32()],
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
  parts |= {"code": _code(), "software": _software()}
  text = json.dumps(parts, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def _tensor_float_32() -> bool:
  """Returns whether TensorFlow multiplies float32 in TF32, its default."""
  tensorflow = sys.modules.get("tensorflow")
  config = getattr(tensorflow, "config", None)
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


def _source(kind: str, source: str) -> Any:
  if kind == "model":
    return source
  if kind == "keras_model" and _has_custom_objects():
    raise _UnknownError
  files = {name: _file_digest(path) for name, path in _files(source)}
  return [os.path.basename(os.path.normpath(source)), files]


def _files(source: str) -> Iterator[tuple[str, str]]:
  """Yields relative name and path of every file.

  Raises:
    OSError: a file or directory cannot be read.
  """
  if not os.path.isdir(source):
    yield "", source
    return

  def fail(error: OSError) -> None:
    raise error

  for folder, folders, names in os.walk(source, onerror=fail):
    if any(os.path.islink(os.path.join(folder, name)) for name in folders):
      raise _UnknownError  # TensorFlow follows links, and the walk does not.
    for name in names:
      path = os.path.join(folder, name)
      yield os.path.relpath(path, source), path


def _file_digest(path: str) -> str:
  if not os.path.isfile(path):  # Reading a pipe would never end.
    raise _UnknownError
  digest = hashlib.sha256()
  with open(path, "rb") as file:
    while chunk := file.read(_CHUNK_BYTES):
      digest.update(chunk)
  return digest.hexdigest()


def _code_digest() -> str:
  """Returns the digest of the sources that determine a graph.

  Raises:
    OSError: the package is inside a zip file.
  """
  digest = hashlib.sha256()
  for name in _CODE:
    top = _PACKAGE / name
    paths = sorted(top.rglob("*")) if top.is_dir() else [top]
    for path in paths:
      if path.suffix in _SUFFIXES:
        content = path.read_bytes()
        where = path.relative_to(_PACKAGE).as_posix()
        digest.update(f"{where} {len(content)} ".encode())
        digest.update(content)
  return digest.hexdigest()


@functools.cache
def _first_code() -> str:
  return _code_digest()


def _code() -> str:
  """Returns the digest of the sources if none changed since the start."""
  digest = _code_digest()
  if digest != _first_code():
    raise _UnknownError
  return digest
