"""Clusters of known hardware: `k80x2`, `p100x4`, `v100x8-pcie` and the like.

A preset is N GPUs and one CPU device in one host. It holds published figures
only, as `GPUS`, `HOSTS` and the functions below name them; clusters that were
measured come from `tfplace.measure`, and others from a file. No TensorFlow.
"""

import os
import re
from typing import Any

from tfplace.errors import FormatError, shown
from tfplace.graph.cluster import Cluster, Device, Link
from tfplace.graph.cluster_format import load_cluster
from tfplace.graph.known_hardware import (
  DGX1_NVLINKS,
  GPUS,
  HOSTS,
  GpuModel,
  HostModel,
  cpu_hardware,
  gpu_hardware,
)

_TASK = "/job:localhost/replica:0/task:0/device:"

# Placeto (arXiv 1906.08879), its public simulator: K80s on one host moved
# 7600 B/us with 25 us between messages, and an op cost 5.7 us to launch. The
# launch is the work of TensorFlow's executor on the host, and nobody published
# it for the other devices, so they all get it.
PLACETO_BYTES_PER_US = 7600.0
PLACETO_GAP_US = 25.0
PLACETO_OP_OVERHEAD_US = 5.7

# The sources above give no value; chosen between the few microseconds of a raw
# peer read and the tens that a copy scheduled by TensorFlow takes.
TRANSFER_LATENCY_US = 10.0

MAX_GPUS = 8
_NAME = re.compile(r"([a-z0-9]+?)x([1-9][0-9]{0,5})(?:-(pcie|nvlink))?")


def cluster_preset(name: str) -> Cluster:
  """A cluster of known hardware: `<gpu>x<count>[-pcie|-nvlink]`.

  GPUs 0 .. count-1 come first, then the CPU. Without a suffix k80 and p100
  are joined by PCIe, the others by NVLink. Figures as in `GPUS` and `HOSTS`:

  - K80: Placeto's simulator, one outgoing channel per device.
  - PCIe: two GPUs share the switch that leads to the host, in each direction
    (DGX-1 white paper); they reach each other through it without the host.
  - NVLink, up to 4 GPUs: each pair has its own links (PowerEdge C4130: P100
    one link, V100 two); 8 V100 or P100: `DGX1_NVLINKS`, PCIe where that has
    none. A100 and H100: a switch, so one outgoing channel per GPU.

  Each device's `extra["hardware"]` describes it to Grappler's estimator.

  Raises:
    FormatError: unknown name; lists the choices.
  """
  match = _NAME.fullmatch(name)
  if match is None or match[1] not in GPUS or int(match[2]) > MAX_GPUS:
    raise FormatError(
      f"unknown cluster preset {shown(name)}: the form is <gpu>x<count>, with"
      f" -pcie or -nvlink after it where wanted, a gpu of"
      f" {', '.join(GPUS)}, and a count of 1 to {MAX_GPUS}"
    )
  gpu, count, wiring = GPUS[match[1]], int(match[2]), match[3]
  if wiring == "nvlink" and not gpu.nvlinks:
    raise FormatError(
      f"unknown cluster preset {name!r}: {match[1]} has no NVLink"
    )
  if wiring is None:
    wiring = "pcie" if match[1] in ("k80", "p100") else "nvlink"
  devices = [_gpu_device(gpu, i) for i in range(count)]
  devices.append(_cpu_device(HOSTS[gpu.host]))
  names = [device.name for device in devices]
  links = tuple(
    _link(gpu, wiring, names, src, dst)
    for src in range(count + 1)
    for dst in range(count + 1)
    if src != dst
  )
  sources = {"gpu": gpu.source, "host": HOSTS[gpu.host].source}
  return Cluster(name, tuple(devices), links, {"sources": sources})


def find_cluster(cluster: Any) -> Cluster:
  """The cluster that is meant, wherever an API takes one.

  Args:
    cluster: a `Cluster`, the name of a preset, or the path of a file (a text
      that ends in .json or .json.gz, or any `os.PathLike`).

  Raises:
    FormatError: no such preset, a broken file, or something else.
  """
  if isinstance(cluster, Cluster):
    return cluster
  if isinstance(cluster, os.PathLike):
    return load_cluster(cluster)
  if isinstance(cluster, str):
    is_file = cluster.endswith((".json", ".json.gz"))
    return load_cluster(cluster) if is_file else cluster_preset(cluster)
  raise FormatError(
    "a cluster is a Cluster, the name of a preset or a file, not"
    f" {cluster!r:.60}"
  )


def _gpu_device(gpu: GpuModel, index: int) -> Device:
  return Device(
    f"{_TASK}GPU:{index}",
    "GPU",
    float(gpu.memory_bytes),
    PLACETO_OP_OVERHEAD_US,
    {"hardware": gpu_hardware(gpu)},
  )


def _cpu_device(host: HostModel) -> Device:
  return Device(
    f"{_TASK}CPU:0",
    "CPU",
    float(host.memory_bytes),
    PLACETO_OP_OVERHEAD_US,
    {"hardware": cpu_hardware(host)},
  )


def _link(
  gpu: GpuModel, wiring: str, names: list[str], src: int, dst: int
) -> Link:
  cpu = len(names) - 1
  ends = names[src], names[dst]
  if gpu is GPUS["k80"]:
    return Link(
      *ends, PLACETO_BYTES_PER_US, 0.0, PLACETO_GAP_US, f"out:{names[src]}"
    )
  links = 0
  if wiring == "nvlink" and cpu not in (src, dst):
    links = _num_nvlinks(gpu, cpu, src, dst)
  if links:
    channel = f"nvlink:{src}" if gpu.nvswitch else f"nvlink:{src}-{dst}"
    bandwidth = links * gpu.nvlink_bytes_per_us
  else:
    channel = _pcie_channel(cpu, src, dst)
    bandwidth = HOSTS[gpu.host].pcie_bytes_per_us
  return Link(*ends, bandwidth, TRANSFER_LATENCY_US, 0.0, channel)


def _num_nvlinks(gpu: GpuModel, count: int, src: int, dst: int) -> int:
  if gpu.nvswitch:
    return gpu.nvlinks
  if count <= 4:
    return gpu.nvlinks // 3
  cube_mesh = DGX1_NVLINKS[src][dst]
  return min(cube_mesh, 1) if gpu.nvlinks == 4 else cube_mesh


def _pcie_channel(cpu: int, src: int, dst: int) -> str:
  """Two GPUs to a switch; out of it and into it one transfer at a time."""
  if src == cpu:
    return f"pcie:switch-{dst // 2}:in"
  if dst != cpu and src // 2 == dst // 2:
    return f"pcie:{src}-{dst}"
  return f"pcie:switch-{src // 2}:out"
