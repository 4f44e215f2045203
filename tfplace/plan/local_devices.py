"""Names and cluster description of this process's logical devices.

A plan with a device that this process lacks fails here, before any change. The
cluster is described: GPUs by `measure.local.gpus`, other devices and links by
modest figures, until links are measured.
"""

import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from tfplace.errors import ApplyError, MeasurementError
from tfplace.graph.cluster import Cluster, Device, Link
from tfplace.graph.progress import Progress
from tfplace.hardware import presets
from tfplace.hardware.hardware import GPUS, HOSTS
from tfplace.measure.calibrate import links
from tfplace.measure.local import gpus, host
from tfplace.measure.session import session

_LOCAL = "/job:localhost/replica:0/task:0"


def logical_names(kind: str | None = None) -> list[str]:
  """Returns the full names of the logical devices, or of a kind ("GPU")."""
  return [_LOCAL + d.name for d in tf.config.list_logical_devices(kind)]


def canonical_device(name: str, what: str) -> str:
  """Returns the full name of a device such as "CPU:1" or "/device:GPU:0".

  Raises:
    ApplyError: the name is not a device name, or this process lacks the device.
  """
  full, known = _full_name(name), logical_names()
  if full is None or full not in known:
    raise ApplyError(
      f"{what} is placed on {name!r}, which this process does not have; its"
      f" logical devices are {', '.join(known)}",
      device=str(name),
    )
  return full


def is_default(name: str) -> bool:
  """Returns whether a name is that of TensorFlow's default device."""
  return _full_name(name) == default_device()


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
  """Expands device names of this process; an error names the op or layer."""
  full: dict[str, str] = {}
  for op, name in assignments.items():
    if name not in full:
      full[name] = canonical_device(name, repr(op))
  return {op: full[name] for op, name in assignments.items()}


def check_cluster(cluster: Cluster) -> None:
  """Raises ApplyError for a device that this process lacks."""
  for device in cluster.devices:
    canonical_device(device.name, f"a part of cluster {cluster.name!r}")


def shared_note(names: Iterable[str]) -> str:
  """Describes logical devices that share a physical device; "" for none."""
  owners: dict[str, str] = {name: "machine" for name in logical_names("CPU")}
  of_gpus = gpus.owners(logical_names("GPU"))
  owners |= {name: gpu.name for name, (gpu, _) in of_gpus.items()}
  used = [owners[n] for n in map(_full_name, names) if n in owners]
  if len(set(used)) == len(used):
    return ""
  what = "cores" if used.count("machine") > 1 else "GPU"
  return (
    f"These devices share this machine's {what}: the times are of devices of"
    " their own, and here the placed step may be slower than an unplaced one."
  )


def default_device() -> str:
  """Returns TensorFlow's default device: the first GPU, or else CPU:0."""
  kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
  return f"{_LOCAL}/device:{kind}:0"


def host_device() -> str:
  """Returns the CPU device whose memory is the host's."""
  return f"{_LOCAL}/device:CPU:0"


# Logical devices of one GPU copy within its memory, and logical CPU devices
# pass a pointer. Our choice, small compared with the latency.
_SHARED_BYTES_PER_US = 200_000.0
_SHARED_LATENCY_US = 5.0
_DESCRIBED = "described"  # `Cluster.extra["links"]` before they are measured
_CPU_MHZ = 2500
_CPU_KB_PER_S = 20_000_000  # About one channel of DDR4.


def local_cluster() -> Cluster:
  """Describes this process's GPUs and CPU:0, or its CPU devices if no GPU.

  CPU:0 runs ops without a GPU kernel. Logical devices of one physical device
  are described as equal parts of it.
  """
  local_gpus = _gpus()
  devices = [gpu.device for gpu in local_gpus]
  gpus.log_measured(devices)
  cpus = logical_names("CPU")[: 1 if local_gpus else None]
  devices += [_cpu(name, len(cpus)) for name in cpus]
  owners = [*(gpu.physical for gpu in local_gpus), *("host" for _ in cpus)]
  rates = [_pcie(gpu.card) for gpu in local_gpus] + [math.inf for _ in cpus]
  described = []
  for i, j in itertools.permutations(range(len(devices)), 2):
    rate, latency_us = min(rates[i], rates[j]), presets.TRANSFER_LATENCY_US
    if owners[i] == owners[j]:
      rate, latency_us = _SHARED_BYTES_PER_US, _SHARED_LATENCY_US
    described.append(Link(devices[i].name, devices[j].name, rate, latency_us))
  extra = {"links": _DESCRIBED}
  return Cluster("local", tuple(devices), tuple(described), extra)


_measured_links: dict[tuple[str, ...], tuple[Link, ...]] = {}


def lacks_links(cluster: Cluster) -> bool:
  """Returns whether the links of `local_cluster` can be measured."""
  is_described = cluster.extra.get("links") == _DESCRIBED
  return is_described and not cluster.is_cpu.all()


def with_measured_links(cluster: Cluster, on_stage: Progress) -> Cluster:
  """Measures the links between this process's devices, once per process."""
  names = tuple(device.name for device in cluster.devices)
  if names not in _measured_links:
    proto = context.context().config
    proto.isolate_session_state = True
    timer = links.timer_on(
      names, lambda request: session.time_each(request, "", proto, on_stage)
    )
    try:
      _measured_links[names] = links.gpu_links(names, timer)
    except tf.errors.OpError as error:
      raise MeasurementError(f"links were not measured: {error}") from error
  extra = {**cluster.extra, "links": "measured"}
  return dataclasses.replace(cluster, links=_measured_links[names], extra=extra)


def _gpus() -> list[gpus.LocalGpu]:
  if not tf.config.list_logical_devices("GPU"):
    return []
  return gpus.describe(session.devices("", context.context().config))


def _pcie(card: str | None) -> float:
  """Returns the bandwidth of a card's PCIe slot, 3.0 for an unknown card."""
  return HOSTS[GPUS[card].host if card else "dgx-1"].pcie_bytes_per_us


def _cpu(name: str, parts: int) -> Device:
  memory = host.memory_bytes()
  hardware = {
    "type": "CPU",
    "frequency": _CPU_MHZ,
    "num_cores": max(1, (os.cpu_count() or 1) // parts),
    "bandwidth": _CPU_KB_PER_S // parts,
    "memory_size": int(memory) // parts,
  }
  overhead = presets.PLACETO_OP_OVERHEAD_US
  return Device(name, "CPU", memory / parts, overhead, {"hardware": hardware})
