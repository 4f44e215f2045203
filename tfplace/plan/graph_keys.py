"""Hashes of everything that determines an op graph that a command extracts.

A hash covers the model (name and sizes of a zoo model, or every byte of its
files), the request, the hardware of each device kind, this package's sources,
TensorFlow and Keras with their settings outside this process, whether this host
has GPUs, for which some layers have other ops, and whether they multiply
float32 in TF32.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import platform
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

from tfplace.cost import registry
from tfplace.graph.cluster import Cluster
from tfplace.graph.microbatches import WHOLE, VariantConfig
from tfplace.measure.local import host

if TYPE_CHECKING:
  from tfplace.plan.source import ModelSource

_PACKAGE = pathlib.Path(__file__).parent.parent
# Folders and modules of this package that determine a graph.
_CODE = (
  *("models", "graph", "hardware", "formats", "extraction", "variants", "cost"),
  "__init__.py",
  *("plan/local_step.py", "plan/source.py", "plan/steps.py"),
  *("measure/calibrate", "measure/session"),
)
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "keras")
_GPU_CHOICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def content_key(
  source: "ModelSource",
  cluster: Cluster,
  variant: VariantConfig = WHOLE,
  *,
  costs: str = registry.DEFAULT,
  compile_units: bool = False,
) -> str | None:
  """Returns the hexadecimal digest of a graph, or None if it is unknown.

  That of a model that is built already is unknown. The other arguments are
  those of the costs of its step.
  """
  if source.model is not None:
    return None
  name, sample = source.name, source.sample
  hardware = ([d.kind, d.extra.get("hardware")] for d in cluster.devices)
  try:
    return _digest(
      kind=source.kind,
      source=name if source.kind == "model" else _files(name),
      batch_size=source.batch_size,
      training=source.training,
      sizes=dict(source.sizes),
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
  chosen = [os.environ.get(name) for name in _GPU_CHOICES]
  here = [_software(), host.gpu_driver(), chosen, keras_settings(), _tf32()]
  text = json.dumps({**parts, "host": here}, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def _tf32() -> bool:
  """Returns TensorFlow's setting, or its default if it is not loaded."""
  tf = sys.modules.get("tensorflow")
  return (
    tf is None or tf.config.experimental.tensor_float_32_execution_enabled()
  )


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
  machine = platform.system(), platform.machine()
  return [files, versions(_DISTRIBUTIONS), *machine]


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
