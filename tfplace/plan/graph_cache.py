"""Keeps op graphs in a directory, by a hash of all that decides them.

The hash covers the model (a zoo model's name and sizes, or every byte of its
files), batch size, training or inference, microbatches, the hardware of each
kind of device, the cost model, this package's sources, TensorFlow and Keras
with the settings that change layers, and whether this host has a GPU, for which
some layers have other ops. What is imported already is asked; nothing is
imported for it.

An entry that is missing, cut off, damaged or of another version is no entry,
and a directory that cannot be written is left alone after one warning. Entries
appear whole (a rename), so any number of processes may share a directory.
Nothing that is read is executed.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import pathlib
import platform
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from tfplace.core.cluster import Cluster
from tfplace.core.microbatches import WHOLE, MicrobatchConfig
from tfplace.core.op_graph import OpGraph
from tfplace.cost import registry
from tfplace.errors import FormatError
from tfplace.formats import files
from tfplace.formats.packed_graph import pack_graph, unpack_graph

MAX_BYTES = 2 << 30  # of all entries; some hundred graphs of 50,000 ops
_SUFFIX = ".opgraph"
_KEY = re.compile(r"[0-9a-f]{16,128}\Z")
_ENTRY = re.compile(rf"[0-9a-f]{{16,128}}{re.escape(_SUFFIX)}\Z")
_logger = logging.getLogger("tfplace")


def default_directory() -> str | None:
  """`tfplace` in the user's cache directory; None where there is no such.

  That is `XDG_CACHE_HOME`, if absolute as the XDG base directory specification
  demands, else `~/.cache`.
  """
  home = os.environ.get("XDG_CACHE_HOME", "")
  if not os.path.isabs(home):
    home = os.path.join(os.path.expanduser("~"), ".cache")
  return os.path.join(home, "tfplace") if os.path.isabs(home) else None


class GraphCache:
  """Op graphs in one directory, by key.

  Args:
    directory: made when the first graph is stored, for this user alone.
    max_bytes: of all entries; the least recently used go first.
  """

  def __init__(
    self, directory: str | os.PathLike[str], max_bytes: int = MAX_BYTES
  ) -> None:
    self.directory = os.fspath(directory)
    self.max_bytes = max_bytes
    self._has_warned = False

  def load(self, key: str) -> OpGraph | None:
    """The graph stored under the key, if there is a whole one."""
    try:
      return unpack_graph(self._read(self._path(key)))
    except OSError:
      return None
    except FormatError as error:
      _logger.info("cached graph %s is made anew: %s", key, error)
      return None

  def store(self, key: str, graph: OpGraph) -> None:
    """Keeps a graph; warns once where it cannot."""
    path = self._path(key)
    try:
      content = pack_graph(graph)
      if len(content) > self.max_bytes:
        return
      os.makedirs(self.directory, mode=0o700, exist_ok=True)
      if os.path.islink(path) or not os.path.isfile(path):
        with contextlib.suppress(FileNotFoundError):
          os.unlink(path)  # or a write would follow it, or wait for a reader
      files.write_bytes(path, content)
      self._evict(keep=path)
    except (OSError, FormatError) as error:
      self._warn(error)

  def _path(self, key: str) -> str:
    if not _KEY.match(key):
      raise ValueError(f"key {key!r} is no hexadecimal digest")
    return os.path.join(self.directory, key + _SUFFIX)

  def _read(self, path: str) -> bytes:
    """The bytes of an entry, which then counts as used.

    Raises:
      OSError: there is none, or it is a link, a pipe or the like.
    """
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
      flags |= getattr(os, name, 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
      status = os.fstat(file.fileno())
      if not stat.S_ISREG(status.st_mode) or status.st_size > self.max_bytes:
        raise OSError(f"{path} is no entry")
      content = file.read(self.max_bytes)
    with contextlib.suppress(OSError):
      os.utime(path)
    return content

  def _evict(self, keep: str) -> None:
    """Drops the least recently used entries beyond `max_bytes`."""
    entries = self._entries()
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
      if total <= self.max_bytes:
        break
      if path != keep:
        with contextlib.suppress(FileNotFoundError):
          os.unlink(path)
        total -= size

  def _entries(self) -> list[tuple[float, int, str]]:
    """Last use, bytes and path of each."""
    result = []
    with os.scandir(self.directory) as found:
      for item in found:
        with contextlib.suppress(FileNotFoundError):
          status = item.stat(follow_symlinks=False)
          if stat.S_ISREG(status.st_mode) and _ENTRY.match(item.name):
            result.append((status.st_mtime, status.st_size, item.path))
    return result

  def _warn(self, error: Exception) -> None:
    if not self._has_warned:
      self._has_warned = True
      _logger.warning("extracted graphs are not kept: %s", error)


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


class _UnknownError(Exception):
  """Something that decides a graph and that no digest can cover."""


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
      raise _UnknownError  # chosen by a call in this process alone
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


def _has_custom_objects() -> bool:
  """Returns whether a Keras file may load user-defined classes."""
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
) -> str | None:
  """A hexadecimal digest; None where not everything can be known.

  Args:
    kind: "model", or the kind of file that `source` is.
    source: a name of the zoo, a file or a directory.
    cluster: whose kinds are costed.
    batch_size: as asked for.
    training: as asked for.
    sizes: as asked for; the defaults are part of the code.
    costs: name of the cost model.
    microbatches: as asked for.
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
    )
  except (OSError, TypeError, ValueError, _UnknownError):
    return None


def measured_key(step: bytes, devices: Mapping[str, Any]) -> str | None:
  """The digest of a step that was measured on this process's devices.

  Args:
    step: its graph, with the shapes of what it is fed.
    devices: plain data that differs where the step may take another time.
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
  """Returns whether TensorFlow multiplies float32 in TF32, its default.

  A process that has not loaded TensorFlow has not turned it off.
  """
  tensorflow = sys.modules.get("tensorflow")
  config = getattr(tensorflow, "config", None)
  if config is None:
    return True
  return config.experimental.tensor_float_32_execution_enabled()


def _hardware(cluster: Cluster) -> list[Any]:
  """Kind and description of the devices, each once, in order."""
  pairs = ([d.kind, d.extra.get("hardware")] for d in cluster.devices)
  return list({json.dumps(p, sort_keys=True): p for p in pairs}.values())


def _source(kind: str, source: str) -> Any:
  if kind == "model":
    return source
  if kind == "keras_model" and _has_custom_objects():
    raise _UnknownError
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
      raise _UnknownError  # the walk does not follow it, TensorFlow does
    for name in names:
      path = os.path.join(folder, name)
      yield os.path.relpath(path, source), path


def _file_digest(path: str) -> str:
  if not os.path.isfile(path):  # a pipe would never end
    raise _UnknownError
  digest = hashlib.sha256()
  with open(path, "rb") as file:
    while chunk := file.read(_CHUNK_BYTES):
      digest.update(chunk)
  return digest.hexdigest()


def _code_digest() -> str:
  """Digest of the sources that determine a graph; `OSError` inside a zip."""
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
  """The same, where no source was edited since the process began."""
  digest = _code_digest()
  if digest != _first_code():
    raise _UnknownError
  return digest
