"""This process's logical devices as a cluster: what `cluster=None` stands for.

Described, not measured: GPUs that the presets know by their figures, anything
else by modest ones. `tfplace.measure` knows real transfers.
"""

import os
import re
from typing import Any

import tensorflow as tf

from tfplace.apply import devices as devices_lib
from tfplace.graph import presets
from tfplace.graph.cluster import Cluster, Device, Link

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
  cpus = devices_lib.logical_names("CPU")
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
  names = devices_lib.logical_names("GPU")
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
  model = next((w for w in words if w in presets.GPUS), _UNKNOWN_GPU)
  hardware = presets.gpu_hardware(presets.GPUS[model])
  hardware["num_cores"] = max(1, hardware["num_cores"] // parts)
  limit_mb = getattr(part, "memory_limit", None)
  known = presets.GPUS[model].memory_bytes / parts
  memory = limit_mb * 2**20 if limit_mb else known
  overhead = presets.PLACETO_OP_OVERHEAD_US
  return Device(name, "GPU", float(memory), overhead, {"hardware": hardware})


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
