"""This process's logical devices: their names, and a cluster made of them.

Device names are resolved here, so that a plan that names a device which this
process lacks fails before anything is changed. Not for other hosts.
"""

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfplace.errors import ApplyError
from tfplace.graph.cluster import Cluster, Device, Link

_LOCAL = "/job:localhost/replica:0/task:0"

# Chosen, not measured: PCIe 3.0 x16 reaches about 12 GB/s with about 10 us of
# launch latency; logical CPU devices hand over a pointer.
_PCIE_BYTES_PER_US = 12_000.0
_PCIE_LATENCY_US = 10.0
_HOST_BYTES_PER_US = 100_000.0
_HOST_LATENCY_US = 5.0
_GPU_OP_OVERHEAD_US = 5.0
_CPU_OP_OVERHEAD_US = 2.0


def local_cluster() -> Cluster:
  """The cluster that `cluster=None` stands for.

  The process's logical GPUs with CPU:0 beside them, for the ops that have no
  GPU kernel; or without any GPU, all its logical CPU devices.
  """
  logical = tf.config.list_logical_devices()
  gpus = [d.name for d in logical if d.device_type == "GPU"]
  cpus = [d.name for d in logical if d.device_type == "CPU"]
  names = [*gpus, cpus[0]] if gpus else cpus
  devices = tuple(
    _device(name, cpus=1 if gpus else len(cpus)) for name in names
  )
  links = tuple(
    _link(src, dst) for src in devices for dst in devices if src is not dst
  )
  return Cluster("local", devices, links)


def _device(name: str, cpus: int) -> Device:
  spec = tf.DeviceSpec.from_string(name)
  if spec.device_type == "GPU":
    memory = _gpu_memory_bytes(spec.device_index)
    overhead, extra = _GPU_OP_OVERHEAD_US, {}
  else:
    # Logical CPU devices share the host: each is described as its part of it.
    memory = _host_memory_bytes() / cpus
    cores = max(1, (os.cpu_count() or 1) // cpus)
    overhead, extra = _CPU_OP_OVERHEAD_US, {"hardware": {"num_cores": cores}}
  return Device(_LOCAL + name, spec.device_type, memory, overhead, extra)


def _link(src: Device, dst: Device) -> Link:
  on_host = src.kind == dst.kind == "CPU"
  return Link(
    src.name,
    dst.name,
    _HOST_BYTES_PER_US if on_host else _PCIE_BYTES_PER_US,
    latency_us=_HOST_LATENCY_US if on_host else _PCIE_LATENCY_US,
  )


def _host_memory_bytes() -> float:
  return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _gpu_memory_bytes(index: int) -> float:
  """The limit of logical GPU `index`; unlimited where TensorFlow tells none."""
  limits: list[float] = []
  for physical in tf.config.list_physical_devices("GPU"):
    configured = tf.config.get_logical_device_configuration(physical)
    for logical in configured or [None]:
      limit_mb = getattr(logical, "memory_limit", None)
      limits.append(limit_mb * 2**20 if limit_mb else float("inf"))
  return limits[index] if index < len(limits) else float("inf")


def canonical_device(name: str, what: str) -> str:
  """The full name of one of this process's logical devices.

  Args:
    name: such as "CPU:1", "/device:GPU:0" or a full name.
    what: who asks, for the message, such as "op 'dense/MatMul'".

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
  """`assignments` (op or layer -> device) with full device names.

  Raises:
    ApplyError: as `canonical_device`; names the op or layer.
  """
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


def default_device() -> str:
  """Where TensorFlow runs what nobody places: its first GPU, else CPU:0."""
  kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
  return f"{_LOCAL}/device:{kind}:0"
