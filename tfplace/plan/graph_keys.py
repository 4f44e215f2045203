"""Hashes of everything that determines an op graph that a command extracts.

A hash covers the model (name and sizes of a zoo model, or every byte of its
files), the request, the hardware of each device kind, this package's sources,
TensorFlow and Keras with their settings outside this process, and whether this
host has GPUs, for which some layers have other ops.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

from tfplace.cost import registry
from tfplace.graph.cluster import Cluster
from tfplace.graph.given_batch import GivenBatch
from tfplace.graph.microbatches import WHOLE, VariantConfig

_PACKAGE = pathlib.Path(__file__).parent.parent
# Folders and modules of this package that determine a graph.
_CODE = (
  *("models", "graph", "hardware", "formats", "extraction", "variants", "cost"),
  "__init__.py",
  *("plan/local_step.py", "plan/source.py", "plan/steps.py"),
  *("measure/calibrate", "measure/session"),
)
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "keras")
_GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # CUDA, ROCm, WSL.
_GPU_CHOICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


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
  variant: VariantConfig = WHOLE,
  sample: GivenBatch | None = None,
) -> str | None:
  """Returns the hexadecimal digest of a graph, or None if it is unknown.

  The arguments are those of a `ModelSource` and of the costs of its step.
  """
  hardware = ([d.kind, d.extra.get("hardware")] for d in cluster.devices)
  try:
    return _digest(
      kind=kind,
      source=source if kind == "model" else _files(source),
      batch_size=batch_size,
      training=training,
      sizes=dict(sizes or {}),
      costs=[costs, compile_units],
      variant=dataclasses.astuple(variant),
      hardware=list({json.dumps(p, sort_keys=True): 0 for p in hardware}),
      sample=sample
      and [dict(sample.input_shapes), sample.path and _files(sample.path)],
    )
  except (OSError, TypeError, ValueError):
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
  except (OSError, TypeError, ValueError):
    return None


def keras_settings() -> dict[str, Any]:
  """Reads Keras' file of settings from where Keras looks for it."""
  home = os.path.expanduser("~")
  if not os.access(home, os.W_OK):
    home = "/tmp"
  folder = os.environ.get("KERAS_HOME", os.path.join(home, ".keras"))
  path = pathlib.Path(os.path.expanduser(os.path.join(folder, "keras.json")))
  try:
    content = json.loads(path.read_text())
  except (OSError, ValueError):
    return {}
  return content if isinstance(content, dict) else {}


def _digest(**parts: Any) -> str:
  gpus = [path for path in _GPU_FILES if os.path.exists(path)]
  chosen = [os.environ.get(name) for name in _GPU_CHOICES]
  host = [_software(), gpus, chosen, keras_settings()]
  text = json.dumps({**parts, "host": host}, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _software() -> list[Any]:
  """Returns digests of the sources, and versions of what this process runs.

  In a zip file, the sources raise OSError.
  """
  files = {
    path.relative_to(_PACKAGE).as_posix(): _file_digest(path)
    for part in _CODE
    for path in _below(_PACKAGE / part)
    if path.suffix in (".py", ".json")
  }
  host = platform.system(), platform.machine()
  return [files, versions(_DISTRIBUTIONS), *host]


def versions(packages: Iterable[str]) -> dict[str, str]:
  """Returns the version of each package that is installed."""
  installed = {}
  for name in packages:
    with contextlib.suppress(metadata.PackageNotFoundError):
      installed[name] = metadata.version(name)
  return installed


def _files(source: str) -> list[Any]:
  """Returns the base name of a file or folder, and the digests of all files."""
  top = pathlib.Path(source)
  digests = {
    path.relative_to(top).as_posix(): _file_digest(path) for path in _below(top)
  }
  return [os.path.basename(os.path.normpath(source)), digests]


def _below(top: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files in a folder, or the path itself if it is none."""
  if not top.is_dir():
    return [top]
  # TensorFlow follows links to folders, and this walk does not.
  paths = sorted(top.rglob("*"))
  return [path for path in paths if path.is_symlink() or not path.is_dir()]


def _file_digest(path: pathlib.Path) -> str:
  if not path.is_file():  # Reading a pipe would never end.
    raise OSError(f"{path} is no file")
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
