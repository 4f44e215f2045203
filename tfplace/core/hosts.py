"""Clusters of several hosts in a network.

A transfer between hosts leaves through the network adapter on the PCIe switch
of the sending device and queues there, whatever its destination. Transfers that
reach a host from several others do not queue, because a link has only one
channel. `presets` names these clusters.
"""

import dataclasses
import itertools
from collections.abc import Sequence

from tfplace.core.cluster import Cluster, Device, Link

MAX_GPUS = 64  # GPUs on all hosts of a preset.


@dataclasses.dataclass(frozen=True)
class NetworkModel:
  """Published figures of a network between hosts.

  Attributes:
    adapters: adapters of a host.
    bytes_per_us: one-way bandwidth of one adapter.
    gpus_per_adapter: consecutive GPUs that share an adapter, starting with GPU
      0 on adapter 0. The CPU uses adapter 0.
    latency_us: added to the latency of a transfer inside a host.
    source: source of the figures.
  """

  adapters: str
  bytes_per_us: float
  gpus_per_adapter: int
  latency_us: float
  source: str


# NCCL's estimate for one hop over InfiniBand (src/graph/tuning.cc,
# `hwLatencies` of network, ring, simple protocol).
_NCCL_LATENCY_US = 14.0
_NCCL = "; latency: NCCL, src/graph/tuning.cc"

# 100 Gb/s equal 12,500 B/us.
NETWORKS = {
  "cloud": NetworkModel(
    "Ethernet of 32 Gb/s", 4000.0, 8, 36.0,
    "Google Cloud, Network bandwidths and GPUs: 32 Gb/s for N1 VMs with K80 or "
    "P100; latency: half of 72 us, the mean round trip of two n1-highmem-8 "
    "of one zone (tech.zarmory.com, 2017)",
  ),
  "dgx-1": NetworkModel(
    "4 x InfiniBand EDR", 12500.0, 2, _NCCL_LATENCY_US,
    "NVIDIA DGX-1 white paper WP-08437: 4 adapters of 100 Gb/s, one on the "
    "PCIe switch of two GPUs" + _NCCL,
  ),
  "dgx-a100": NetworkModel(
    "8 x InfiniBand HDR", 25000.0, 1, _NCCL_LATENCY_US,
    "NVIDIA DGX A100 data sheet: 8 ConnectX-6 of 200 Gb/s" + _NCCL,
  ),
  "dgx-h100": NetworkModel(
    "8 x InfiniBand NDR", 50000.0, 1, _NCCL_LATENCY_US,
    "NVIDIA DGX H100 data sheet: 8 ConnectX-7 of 400 Gb/s" + _NCCL,
  ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class NetworkedHost:
  """A host and its way into the network.

  Attributes:
    cluster: devices of one task with all pairs linked; GPUs first, then a CPU.
    network: its adapters.
    pcie_bytes_per_us: bandwidth of an adapter's PCIe slot, which may limit it.
  """

  cluster: Cluster
  network: NetworkModel
  pcie_bytes_per_us: float

  @property
  def bytes_per_us(self) -> float:
    """Bandwidth of one adapter."""
    return min(self.network.bytes_per_us, self.pcie_bytes_per_us)


def joined(
  name: str, hosts: Sequence[NetworkedHost], latency_us: float
) -> Cluster:
  """Builds a fully linked cluster of hosts.

  Device `/job:worker/replica:0/task:i/device:GPU:j` is GPU j of host i. Devices
  are listed host by host. Two hosts are joined at the rate of the slower
  adapter, with the longer of their networks' latencies.

  Args:
    latency_us: latency of a transfer inside a host.
  """
  tasks = [_as_task(host.cluster, task) for task, host in enumerate(hosts)]
  links = [link for _, inside in tasks for link in inside]
  links += [
    Link(
      src.name,
      dst.name,
      min(hosts[i].bytes_per_us, hosts[j].bytes_per_us),
      latency_us
      + max(hosts[i].network.latency_us, hosts[j].network.latency_us),
      channel=f"{_task(i)}/network:{_adapter(hosts[i].network, src, at)}:out",
    )
    for i, j in itertools.permutations(range(len(hosts)), 2)
    for at, src in enumerate(tasks[i][0])
    for dst in tasks[j][0]
  ]
  devices = tuple(device for own, _ in tasks for device in own)
  sources = dict(
    source for host in hosts for source in host.cluster.extra["sources"].items()
  )
  networks = dict.fromkeys(host.network.source for host in hosts)
  sources["network"] = "; ".join(networks)
  return Cluster(name, devices, tuple(links), {"sources": sources})


def _adapter(network: NetworkModel, device: Device, number: int) -> int:
  return 0 if device.is_cpu else number // network.gpus_per_adapter


def _task(number: int) -> str:
  return f"/job:worker/replica:0/task:{number}"


def _as_task(host: Cluster, number: int) -> tuple[list[Device], list[Link]]:
  """Renames the devices and links of a host for task `number`."""
  names = {
    device.name: f"{_task(number)}/device:{device.name.split('/device:')[1]}"
    for device in host.devices
  }
  devices = [
    dataclasses.replace(device, name=names[device.name])
    for device in host.devices
  ]
  links = [
    dataclasses.replace(
      link,
      src=names[link.src],
      dst=names[link.dst],
      channel=link.channel and f"{_task(number)}/{link.channel}",
    )
    for link in host.links
  ]
  return devices, links
