"""Presets of known hardware, such as `k80x2`, `v100x2+p100x2` or `2*v100x8`.

A preset is N GPUs and one CPU device in one host, or several hosts in a network
(`preset_names` defines the names). All figures are published; `GPUS`, `HOSTS`,
`hosts.NETWORKS` and the functions below name their sources. Measured clusters
come from `tfplace.measure`, all others from files.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfplace.core import hosts
from tfplace.core.cluster import CPU, Cluster, Device, Link
from tfplace.core.gpus import GPUS, GpuModel, gpu_description
from tfplace.core.preset_names import NamedGpus, NamedHosts, parse_preset

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


def cluster_preset(name: str) -> Cluster:
  """Builds a preset such as `v100x2+p100x2` or `2*v100x4+a100x8`.

  `preset_names` defines the names. In each host, GPUs 0 .. count-1 come first,
  then the CPU. Without a suffix, p100 and the GPUs without NVLink are joined by
  PCIe, the others by NVLink. Figures as in `GPUS` and `HOSTS`:

  - K80: Placeto's simulator, with one outgoing channel per device.
  - PCIe: two GPUs share a switch that leads to the host, in each direction
    (DGX-1 white paper). They reach each other through the switch alone.
  - NVLink with up to 4 GPUs: each pair has its own links, one for P100 and two
    for V100 (PowerEdge C4130). With more, `DGX1_NVLINKS` gives the links, and
    pairs without NVLink use PCIe. A100 and H100 have a switch, so each GPU has
    one outgoing channel.
  - GPUs of several kinds: the host is that of the newest one. Unequal GPUs are
    joined by PCIe at the rate of the slower; a link with a K80 at one end has
    the rate and gap of K80s.
  - `2*v100x8`: two such hosts in a network of `hosts.NETWORKS`, with up to 64
    GPUs in total. Unequal hosts are joined at the rate of the slower network; a
    host of unequal GPUs has the slowest of their networks.

  A cluster with GPUs of several kinds has device kinds `GPU-v100`, `GPU-p100`;
  one with several kinds of hosts, `CPU-dgx-1`, `CPU-dgx-a100`. Otherwise, kinds
  are `GPU` and `CPU`. `extra["hardware"]` of each device describes it to
  Grappler's estimator.

  Raises:
    FormatError: the name is unknown; lists the choices.
  """
  named, in_network = parse_preset(name)
  models = {_host_model(host) for host in named}
  gpus = {each.gpu for host in named for each in host.gpus}
  built = [
    _one_host(name, host.gpus, len(gpus) > 1, len(models) > 1) for host in named
  ]
  if not in_network:
    return built[0]
  return hosts.joined(
    name,
    [
      hosts.NetworkedHost(
        cluster, _network(host), HOSTS[_host_model(host)].pcie_bytes_per_us
      )
      for cluster, host in zip(built, named, strict=True)
      for _ in range(host.count)
    ],
    TRANSFER_LATENCY_US,
  )


def _host_model(host: NamedHosts) -> str:
  """Returns the key of the host with the newest PCIe of its GPUs' hosts."""
  keys = [GPUS[each.gpu].host for each in host.gpus]
  return max(keys, key=lambda key: HOSTS[key].pcie_bytes_per_us)


def _network(host: NamedHosts) -> hosts.NetworkModel:
  """Returns the slowest network of a host's GPUs."""
  networks = [hosts.NETWORKS[GPUS[each.gpu].network] for each in host.gpus]
  return min(networks, key=lambda network: network.bytes_per_us)


@dataclasses.dataclass(frozen=True)
class _Slot:
  """A GPU of a host.

  Attributes:
    key: key of `GPUS`.
    wiring: "pcie" or "nvlink", between GPUs of its kind.
    rank: number of the GPU among those of its kind.
    count: number of GPUs of its kind.
  """

  key: str
  wiring: str
  rank: int
  count: int

  @property
  def gpu(self) -> GpuModel:
    return GPUS[self.key]

  @property
  def is_k80(self) -> bool:
    return self.key == "k80"

  @property
  def pcie_bytes_per_us(self) -> float:
    """Bandwidth of the PCIe slots that the GPU was built for."""
    return HOSTS[self.gpu.host].pcie_bytes_per_us


def _one_host(
  name: str, named: Sequence[NamedGpus], says_gpu: bool, says_host: bool
) -> Cluster:
  """Builds the GPUs and the CPU of a host.

  `says_gpu` and `says_host` name the GPU and the host in device kinds.
  """
  slots = [
    _Slot(each.gpu, each.wiring or _default_wiring(each.gpu), i, each.count)
    for each in named
    for i in range(each.count)
  ]
  key = _host_model(NamedHosts(1, tuple(named)))
  devices = [_gpu_device(slot, i, says_gpu) for i, slot in enumerate(slots)]
  devices.append(_cpu_device(key, says_host))
  names = [device.name for device in devices]
  links = tuple(
    _link(slots, names, src, dst)
    for src in range(len(names))
    for dst in range(len(names))
    if src != dst
  )
  sources = {
    f"gpu-{each.gpu}" if says_gpu else "gpu": GPUS[each.gpu].source
    for each in named
  }
  sources[f"host-{key}" if says_host else "host"] = HOSTS[key].source
  return Cluster(name, tuple(devices), links, {"sources": sources})


def _default_wiring(gpu: str) -> str:
  return "nvlink" if GPUS[gpu].nvlinks and gpu != "p100" else "pcie"


def _gpu_device(slot: _Slot, index: int, says_gpu: bool) -> Device:
  return Device(
    f"{_TASK}GPU:{index}",
    f"GPU-{slot.key}" if says_gpu else "GPU",
    float(slot.gpu.memory_bytes),
    PLACETO_OP_OVERHEAD_US,
    {"hardware": gpu_description(slot.gpu)},
  )


def _cpu_device(host: str, says_host: bool) -> Device:
  return Device(
    f"{_TASK}CPU:0",
    f"{CPU}-{host}" if says_host else CPU,
    float(HOSTS[host].memory_bytes),
    PLACETO_OP_OVERHEAD_US,
    {"hardware": cpu_hardware(HOSTS[host])},
  )


def _link(
  slots: Sequence[_Slot], names: Sequence[str], src: int, dst: int
) -> Link:
  cpu = len(slots)
  ends = [slots[i] for i in (src, dst) if i != cpu]
  named = names[src], names[dst]
  if any(end.is_k80 for end in ends):
    from_other = src != cpu and not slots[src].is_k80
    channel = _pcie_channel(cpu, src, dst) if from_other else f"out:{named[0]}"
    return Link(*named, PLACETO_BYTES_PER_US, 0.0, PLACETO_GAP_US, channel)
  first, links = ends[0], 0
  is_alike = len(ends) == 2 and first.key == ends[1].key
  if is_alike and first.wiring == "nvlink":
    links = _num_nvlinks(first, ends[1])
  if links:
    channel = f"nvlink:{src}" if first.gpu.nvswitch else f"nvlink:{src}-{dst}"
    bandwidth = links * first.gpu.nvlink_bytes_per_us
  else:
    channel = _pcie_channel(cpu, src, dst)
    bandwidth = min(end.pcie_bytes_per_us for end in ends)
  return Link(*named, bandwidth, TRANSFER_LATENCY_US, 0.0, channel)


def _num_nvlinks(src: _Slot, dst: _Slot) -> int:
  gpu = src.gpu
  if gpu.nvswitch:
    return gpu.nvlinks
  if src.count <= 4:
    return gpu.nvlinks // 3
  cube_mesh = DGX1_NVLINKS[src.rank][dst.rank]
  return min(cube_mesh, 1) if gpu.nvlinks == 4 else cube_mesh


def _pcie_channel(cpu: int, src: int, dst: int) -> str:
  """Names the channel of a PCIe link; two GPUs share a switch."""
  if src == cpu:
    return f"pcie:switch-{dst // 2}:in"
  if dst != cpu and src // 2 == dst // 2:
    return f"pcie:{src}-{dst}"
  return f"pcie:switch-{src // 2}:out"
