"""The content hash of an extraction: of what decides the op graph, and no more.

The model (a zoo model's name and sizes, or every byte of its files), batch
size, training or inference, the hardware of each kind of device, and the code
that builds, traces and costs: this package's sources, TensorFlow and Keras by
version, the settings of Keras that change what a layer does, and whether this
host has a GPU, for which some layers have other ops. What is imported already
is asked; nothing is imported for it.
"""

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
  """Settings that layers depend on: as set, or as Keras will read them."""
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


_PACKAGE = pathlib.Path(__file__).parent.parent
# The code that decides a graph: folders and modules of this package.
_CODE = (
  "models",
  "core",
  "formats",
  "extraction",
  "cost",
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
) -> str | None:
  """A hexadecimal digest; None where not everything can be known.

  Args:
    kind: "model", or the kind of file that `source` is.
    source: a name of the zoo, a file or a directory.
    cluster: whose kinds are costed.
    batch_size: as asked for.
    training: as asked for.
    sizes: as asked for; the defaults are part of the code.
  """
  try:
    parts = {
      "kind": kind,
      "source": _source(kind, source),
      "batch_size": batch_size,
      "training": training,
      "sizes": dict(sizes or {}),
      "hardware": _hardware(cluster),
      "code": _code(),
      "software": software(),
    }
    text = json.dumps(parts, sort_keys=True)
  except (OSError, TypeError, ValueError, UnknownError):
    return None
  return hashlib.sha256(text.encode()).hexdigest()


def _hardware(cluster: Cluster) -> list[Any]:
  """Kind and description of the devices, each once, in order."""
  pairs = ([d.kind, d.extra.get("hardware")] for d in cluster.devices)
  return list({json.dumps(p, sort_keys=True): p for p in pairs}.values())


def _source(kind: str, source: str) -> Any:
  if kind == "model":
    return source
  if kind == "keras_model" and has_custom_objects():
    raise UnknownError
  files = {name: _file_digest(path) for name, path in _files(source)}
  return [os.path.basename(os.path.normpath(source)), files]


def _files(source: str) -> Iterator[tuple[str, str]]:
  """Relative name and path of every file; an `OSError` where one is not."""
  if not os.path.isdir(source):
    yield "", source
    return

  def fail(error: OSError) -> None:
    raise error

  for folder, folders, names in os.walk(source, onerror=fail):
    if any(os.path.islink(os.path.join(folder, name)) for name in folders):
      raise UnknownError  # the walk does not follow it, TensorFlow does
    for name in names:
      path = os.path.join(folder, name)
      yield os.path.relpath(path, source), path


def _file_digest(path: str) -> str:
  if not os.path.isfile(path):  # a pipe would never end
    raise UnknownError
  digest = hashlib.sha256()
  with open(path, "rb") as file:
    while chunk := file.read(_CHUNK_BYTES):
      digest.update(chunk)
  return digest.hexdigest()


def code_digest() -> str:
  """Of the sources of this package that decide a graph.

  Raises:
    OSError: they cannot be read, as from a zip file.
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
  return code_digest()


def _code() -> str:
  """The digest of the code that this process runs.

  Raises:
    UnknownError: a source was edited since the process began.
  """
  digest = code_digest()
  if digest != _first_code():
    raise UnknownError
  return digest
