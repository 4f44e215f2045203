"""This process's logical devices: their names, and their cluster.

A plan that names a device which this process lacks fails here, before anything
is changed. The cluster is described, not measured: GPUs that the presets know
by their figures, anything else by modest ones; `tfplace.measure` measures
transfers.
"""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfplace.core import gpus, presets
from tfplace.core.cluster import Cluster, Device, Link
from tfplace.errors import ApplyError

_LOCAL = "/job:localhost/replica:0/task:0"


def logical_names(kind: str) -> list[str]:
  """Full names of this process's logical devices of a kind ("GPU")."""
  return [_LOCAL + d.name for d in tf.config.list_logical_devices(kind)]


def short_name(name: str) -> str:
  """ "GPU:1" for a full device name, for messages."""
  return name.rpartition("/device:")[2]


def canonical_device(name: str, what: str) -> str:
  """The full name of a logical device such as "CPU:1" or "/device:GPU:0".

  Raises:
    ApplyError: the name is no device name, or this process has no such device.
  """
  full = _full_name(name)
  known = [_LOCAL + d.name for d in tf.config.list_logical_devices()]
  if full is None or full not in known:
    raise ApplyError(
      f"{what} is placed on {name!r}, which this process does not have; its"
      f" logical devices are {', '.join(known)}",
      device=str(name),
    )
  return full


def full_names(assignments: Mapping[str, str]) -> dict[str, str]:
  """`assignments` with full names of devices of this or another process."""
  return {op: _full_name(name) or name for op, name in assignments.items()}


def _full_name(name: Any) -> str | None:
  if not isinstance(name, str):
    return None
  text = name if name.startswith("/") else f"/device:{name}"
  try:
    spec = tf.DeviceSpec.from_string(text)
    default = tf.DeviceSpec.from_string(_LOCAL)
    return default.make_merged_spec(spec).to_string()
  except ValueError:
    return None


def canonical_devices(assignments: Mapping[str, str]) -> dict[str, str]:
  """The same of this process; else an `ApplyError` that names op or layer."""
  full: dict[str, str] = {}
  for op, name in assignments.items():
    if name not in full:
      full[name] = canonical_device(name, repr(op))
  return {op: full[name] for op, name in assignments.items()}


def check_cluster(cluster: Cluster) -> None:
  """Every device of `cluster` is a logical device of this process.

  Raises:
    ApplyError: one is not; names it.
  """
  for device in cluster.devices:
    canonical_device(device.name, f"a part of cluster {cluster.name!r}")


def shared_phrase(names: Iterable[str]) -> str:
  """What a message says where devices are parts of one; "" where none are."""
  owners: dict[str, str] = {name: "machine" for name in logical_names("CPU")}
  owners |= {device.name: owner for device, owner in _gpus()}
  used = [owners[name] for name in names if name in owners]
  if len(set(used)) == len(used):
    return ""
  what = "cores" if used.count("machine") > 1 else "GPU"
  return (
    f"; these devices share this machine's {what}, so that dividing the step"
    " shows the mechanism and gains no speed"
  )


def default_device() -> str:
  """Where TensorFlow runs what nobody places: its first GPU, else CPU:0."""
  kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
  return f"{_LOCAL}/device:{kind}:0"


# Logical devices of one GPU copy within its memory, logical CPU devices hand
# over a pointer; chosen to cost little beside the latency.
_SHARED_BYTES_PER_US = 200_000.0
_SHARED_LATENCY_US = 5.0
_UNKNOWN_GPU = "v100"  # as `tfplace.cost` takes it, too
_CPU_MHZ = 2500
_CPU_KB_PER_S = 20_000_000  # about one channel of DDR4


def local_cluster() -> Cluster:
  """The process's GPUs with CPU:0 beside them, or without any its CPUs.

  CPU:0 is there for ops without a GPU kernel. Logical devices of one physical
  one are described as equal parts of it.
  """
  gpus = _gpus()
  cpus = logical_names("CPU")
  if gpus:
    cpus = cpus[:1]
  owners = [*(owner for _, owner in gpus), *("host" for _ in cpus)]
  devices = [device for device, _ in gpus]
  devices += [_cpu(name, len(cpus)) for name in cpus]
  links = tuple(
    _link(devices[i], devices[j], owners[i] == owners[j])
    for i in range(len(devices))
    for j in range(len(devices))
    if i != j
  )
  return Cluster("local", tuple(devices), links)


def _gpus() -> list[tuple[Device, str]]:
  """Each logical GPU and the name of the physical one that it is part of."""
  names = logical_names("GPU")
  result: list[tuple[Device, str]] = []
  for physical in tf.config.list_physical_devices("GPU"):
    parts = tf.config.get_logical_device_configuration(physical) or [None]
    for part in parts:
      if len(result) < len(names):
        name = names[len(result)]
        result.append((_gpu(name, physical, part, len(parts)), physical.name))
  return result


def _gpu(name: str, physical: Any, part: Any, parts: int) -> Device:
  details = tf.config.experimental.get_device_details(physical)
  words = re.findall(r"[a-z]+\d+", details.get("device_name", "").lower())
  model = next((w for w in words if w in gpus.GPUS), _UNKNOWN_GPU)
  hardware = _part_of(gpus.gpu_description(gpus.GPUS[model]), parts)
  limit_mb = getattr(part, "memory_limit", None)
  known = gpus.GPUS[model].memory_bytes / parts
  memory = limit_mb * 2**20 if limit_mb else known
  overhead = presets.PLACETO_OP_OVERHEAD_US
  return Device(name, "GPU", float(memory), overhead, {"hardware": hardware})


def _part_of(hardware: dict[str, Any], parts: int) -> dict[str, Any]:
  """One of several logical GPUs, which share the cores of the physical one."""
  peaks = hardware["peak_gflops"].items()
  for field in ("num_cores", "multiprocessors"):
    hardware[field] = max(1, hardware[field] // parts)
  return {**hardware, "peak_gflops": {name: p / parts for name, p in peaks}}


def _cpu(name: str, parts: int) -> Device:
  pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  hardware = {
    "type": "CPU",
    "frequency": _CPU_MHZ,
    "num_cores": max(1, (os.cpu_count() or 1) // parts),
    "bandwidth": _CPU_KB_PER_S // parts,
    "memory_size": pages // parts,
  }
  overhead = presets.PLACETO_OP_OVERHEAD_US
  return Device(name, "CPU", pages / parts, overhead, {"hardware": hardware})


def _link(src: Device, dst: Device, shared: bool) -> Link:
  if shared:
    return Link(src.name, dst.name, _SHARED_BYTES_PER_US, _SHARED_LATENCY_US)
  pcie = presets.HOSTS["dgx-1"].pcie_bytes_per_us
  return Link(src.name, dst.name, pcie, presets.TRANSFER_LATENCY_US)
