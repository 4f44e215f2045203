"""Child of tfplace-doctor that imports the libraries and asks for devices."""

import contextlib
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tfplace.bin.checks import children

# TensorFlow comes last, since its import may end the process.
_WITHOUT_TENSORFLOW = ("numpy", "numba", "scipy", "pymetis")
_KERNELS = ("tfplace.simulate", "tfplace.bounds", "tfplace.placers")


def _import(name: str) -> ModuleType | None:
  """Imports a library; tells why it cannot be imported."""
  children.tell(children.STAGE, f"importing {name}")
  try:
    module = importlib.import_module(name)
  except Exception as error:
    text = " ".join(str(error).split())
    children.tell(f"import {name}", f"{type(error).__name__}: {text[:300]}")
    return None
  return module


def _tell_code_cache() -> None:
  """Tells where machine code is kept; imports all modules with kernels."""
  children.tell(children.STAGE, "looking for compiled code")
  for root in _KERNELS:
    package = importlib.import_module(root)
    for found in pkgutil.walk_packages(package.__path__, f"{root}."):
      with contextlib.suppress(ImportError):  # Another check says why.
        importlib.import_module(found.name)
  jit = importlib.import_module("tfplace.simulate.jit")
  children.tell("code_folders", jit.cache_folders())


def _tell_devices(tf: Any) -> None:
  """Tells what TensorFlow sees, and the cluster of `cluster=None`."""
  children.tell(children.STAGE, "looking for devices")
  children.tell("has_cuda", bool(tf.test.is_built_with_cuda()))
  children.tell("has_rocm", bool(tf.test.is_built_with_rocm()))
  details = tf.config.experimental.get_device_details
  gpus = []
  for gpu in tf.config.list_physical_devices("GPU"):
    about = details(gpu)
    capability = about.get("compute_capability")
    gpus.append(
      {
        "name": about.get("device_name", "unknown"),
        "compute_capability": None
        if capability is None
        else ".".join(map(str, capability)),
      }
    )
  children.tell("gpus", gpus)
  children.tell(children.STAGE, "starting TensorFlow on the devices")
  with tf.compat.v1.Session() as session:
    memory = {
      device.name.rpartition("/device:")[2]: device.memory_limit_bytes
      for device in session.list_devices()
    }
  logical = tf.config.list_logical_devices()
  children.tell(
    "logical_devices",
    [
      {"name": name, "memory_bytes": memory.get(name)}
      for name in (d.name.rpartition("/device:")[2] for d in logical)
    ],
  )


def _tell_cluster() -> None:
  """Tells the devices and links of `cluster=None` and who described them."""
  children.tell(children.STAGE, "describing the cluster of cluster=None")
  from tfplace.plan import local_devices

  cluster = local_devices.local_cluster()
  names = {d.name: d.name.rpartition("/device:")[2] for d in cluster.devices}
  children.tell(
    "cluster",
    [
      {"name": names[d.name], "kind": d.kind, "memory_bytes": d.memory_bytes}
      for d in cluster.devices
    ],
  )
  children.tell(
    "links",
    [
      {
        "src": names[link.src],
        "dst": names[link.dst],
        "bandwidth_bytes_per_us": link.bandwidth_bytes_per_us,
        "latency_us": link.latency_us,
      }
      for link in cluster.links
    ],
  )


def _main() -> None:
  loaded = {name: _import(name) for name in _WITHOUT_TENSORFLOW}
  if loaded["numba"] is not None:
    with _told("compiled placers"):
      _tell_code_cache()
  tensorflow = _import("tensorflow")
  if tensorflow is None:
    return  # Keras needs it.
  keras = _import("keras")
  if keras is not None:
    with _told("the backend of Keras"):
      children.tell("backend", keras.backend.backend())
  _tell_devices(tensorflow)
  _tell_cluster()


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
  """Tells an error, so that the checks after it still run."""
  try:
    yield
  except Exception as error:
    children.tell(f"error {what}", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
  children.run_in_child(_main)
