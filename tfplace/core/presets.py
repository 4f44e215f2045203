"""Presets of known hardware, such as `k80x2`, `v100x8-pcie` or `2*v100x8`.

A preset is N GPUs and one CPU device in one host, or several such hosts in a
network. All figures are published; `GPUS`, `HOSTS`, `hosts.NETWORKS` and the
functions below name their sources. Measured clusters come from
`tfplace.measure`, all others from files.
"""

import dataclasses
import re
from typing import Any

from tfplace.core import hosts
from tfplace.core.cluster import Cluster, Device, Link
from tfplace.core.gpus import GPUS, GpuModel, gpu_description
from tfplace.errors import FormatError, shown

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class HostModel:
  """Published figures of a host.

  Attributes:
    model: its processors.
    cores: total cores of all sockets.
    frequency_mhz: base clock.
    memory_bytes: host memory.
    bandwidth_bytes_per_us: memory bandwidth of all sockets.
    pcie_bytes_per_us: one-way bandwidth of one x16 slot.
    source: source of the figures.
  """

  model: str
  cores: int
  frequency_mhz: int
  memory_bytes: int
  bandwidth_bytes_per_us: float
  pcie_bytes_per_us: float
  source: str


# A PCIe 3.0 x16 slot moves 12,000 B/us after packet headers (15,750 on the
# wire). Generations 4 and 5 each double that.
HOSTS = {
  "dgx-1": HostModel(
    "2 x Intel Xeon E5-2698 v4", 40, 2200, 512 * _GIB, 136500.0, 12000.0,
    "NVIDIA DGX-1 white paper WP-08437: 2 x 20 cores of 2.2 GHz, 512 GB of "
    "DDR4-2133 in 2 x 4 channels of 17.07 GB/s, PCIe 3.0",
  ),
  "dgx-a100": HostModel(
    "2 x AMD EPYC 7742", 128, 2250, 1024 * _GIB, 409600.0, 24000.0,
    "NVIDIA DGX A100 data sheet: 128 cores of 2.25 GHz, 1 TB; AMD: 204.8 GB/s "
    "per socket; PCIe 4.0",
  ),
  "dgx-h100": HostModel(
    "2 x Intel Xeon Platinum 8480C", 112, 2000, 2048 * _GIB, 614400.0, 48000.0,
    "NVIDIA DGX H100 data sheet: 112 cores of 2.0 GHz, 2 TB; Intel: 8 channels "
    "of DDR5-4800 per socket; PCIe 5.0",
  ),
}  # fmt: skip

# Number of NVLinks between each pair of GPUs of a DGX-1 with V100, a hybrid
# cube mesh with 6 links per GPU, as printed by `nvidia-smi topo -m`.
DGX1_NVLINKS = (
  (0, 1, 1, 2, 2, 0, 0, 0),
  (1, 0, 2, 1, 0, 2, 0, 0),
  (1, 2, 0, 2, 0, 0, 1, 0),
  (2, 1, 2, 0, 0, 0, 0, 1),
  (2, 0, 0, 0, 0, 1, 1, 2),
  (0, 2, 0, 0, 1, 0, 2, 1),
  (0, 0, 1, 0, 1, 2, 0, 2),
  (0, 0, 0, 1, 2, 1, 2, 0),
)


def cpu_hardware(host: HostModel) -> dict[str, Any]:
  """Describes a host as Grappler's `DeviceProperties`: MHz, KB/s, bytes."""
  return {
    "type": "CPU",
    "vendor": host.model.split()[2],
    "model": host.model,
    "frequency": host.frequency_mhz,
    "num_cores": host.cores,
    "bandwidth": int(host.bandwidth_bytes_per_us * 1e3),
    "memory_size": host.memory_bytes,
    "environment": {},
  }


_TASK = "/job:localhost/replica:0/task:0/device:"

# Placeto (arXiv 1906.08879), public simulator: K80s on one host with 7600 B/us,
# 25 us between messages, and 5.7 us to launch an op. TensorFlow's executor on
# the host does the launch. No value is published for the other devices, so all
# presets use this one.
PLACETO_BYTES_PER_US = 7600.0
PLACETO_GAP_US = 25.0
PLACETO_OP_OVERHEAD_US = 5.7

# The sources above give no latency. The value lies between the few microseconds
# of a raw peer read and the tens of microseconds of a copy scheduled by
# TensorFlow.
TRANSFER_LATENCY_US = 10.0

MAX_GPUS = 8  # GPUs per host.
_NAME = re.compile(
  r"(?:([1-9][0-9]{0,5})\*)?([a-z0-9]+(?:-[a-z0-9]+)?)x([1-9][0-9]{0,5})"
  r"(?:-(pcie|nvlink))?"
)


def cluster_preset(name: str) -> Cluster:
  """Builds a preset `[<hosts>*]<gpu>x<count>[-pcie|-nvlink]`.

  GPUs 0 .. count-1 come first, then the CPU. Without a suffix, p100 and
  the GPUs without NVLink are joined by PCIe, the others by NVLink. Figures as
  in `GPUS` and `HOSTS`:

  - K80: Placeto's simulator, with one outgoing channel per device.
  - PCIe: two GPUs share a switch that leads to the host, in each direction
    (DGX-1 white paper). They reach each other through the switch alone.
  - NVLink with up to 4 GPUs: each pair has its own links, one for P100 and two
    for V100 (PowerEdge C4130). With more, `DGX1_NVLINKS` gives the links, and
    pairs without NVLink use PCIe. A100 and H100 have a switch, so each GPU has
    one outgoing channel.
  - `2*v100x8`: two such hosts in a network of `hosts.NETWORKS`, with up to 64
    GPUs in total.

  `extra["hardware"]` of each device describes it to Grappler's estimator.

  Raises:
    FormatError: the name is unknown; lists the choices.
  """
  match = _NAME.fullmatch(name)
  if match is None or match[2] not in GPUS or not _is_in_limits(match):
    raise FormatError(
      f"unknown cluster preset {shown(name)}: the form is <gpu>x<count>, with"
      f" -pcie or -nvlink after it where wanted, and <hosts>* before it for"
      f" several hosts; a gpu of {', '.join(GPUS)}, a count of 1 to {MAX_GPUS},"
      f" and 1 to {hosts.MAX_GPUS} GPUs on all hosts"
    )
  gpu, wiring = GPUS[match[2]], match[4]
  if wiring == "nvlink" and not gpu.nvlinks:
    raise FormatError(
      f"unknown cluster preset {name!r}: {match[2]} has no NVLink"
    )
  if wiring is None:
    has_nvlink = gpu.nvlinks and match[2] != "p100"
    wiring = "nvlink" if has_nvlink else "pcie"
  one = _one_host(name, gpu, int(match[3]), wiring)
  if match[1] is None:
    return one
  return hosts.repeated(
    one,
    int(match[1]),
    hosts.NETWORKS[gpu.network],
    HOSTS[gpu.host].pcie_bytes_per_us,
    TRANSFER_LATENCY_US,
  )


def _is_in_limits(match: re.Match[str]) -> bool:
  num_hosts, count = int(match[1] or 1), int(match[3])
  return count <= MAX_GPUS and num_hosts * count <= hosts.MAX_GPUS


def _one_host(name: str, gpu: GpuModel, count: int, wiring: str) -> Cluster:
  """Builds the GPUs and the CPU of a host; `wiring` is "pcie" or "nvlink"."""
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


def _gpu_device(gpu: GpuModel, index: int) -> Device:
  return Device(
    f"{_TASK}GPU:{index}",
    "GPU",
    float(gpu.memory_bytes),
    PLACETO_OP_OVERHEAD_US,
    {"hardware": gpu_description(gpu)},
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
  """Names the channel of a PCIe link; two GPUs share a switch."""
  if src == cpu:
    return f"pcie:switch-{dst // 2}:in"
  if dst != cpu and src // 2 == dst // 2:
    return f"pcie:{src}-{dst}"
  return f"pcie:switch-{src // 2}:out"
