"""Presets of known hardware, such as `k80x2`, `v100x2+p100x2` or `2*v100x8`.

A preset is N GPUs and one CPU device in one host, or several hosts in a network
(`preset_names` defines the names). All figures are published; `hardware` and
the comments below name their sources. Measured clusters come from
`tfplace.measure`, all others from files.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from tfplace.graph.cluster import CPU, Cluster, Device, Link
from tfplace.hardware.hardware import (
  DGX1_NVLINKS,
  HOSTS,
  NETWORKS,
  HostModel,
  NetworkModel,
)
from tfplace.hardware.preset_names import NamedGpus, parse_preset

# Placeto (arXiv 1906.08879), public simulator: K80s on one host with 7600 B/us,
# 25 us between messages, and 5.7 us to launch an op. TensorFlow's executor on
# the host does the launch. No value is published for the other devices, so all
# presets use this one.
PLACETO_BYTES_PER_US = 7600.0
PLACETO_GAP_US = 25.0
PLACETO_OP_OVERHEAD_US = 5.7

# The sources of links give no latency. The value lies between the few
# microseconds of a raw peer read and the tens of microseconds of a copy
# scheduled by TensorFlow. All-reduce of 1 MiB on 2 to 8 A100 by NCCL takes 6 to
# 20 us for each step of the ring (VIA-Research/vTrain).
TRANSFER_LATENCY_US = 10.0

_Slot = tuple[NamedGpus, int]  # A GPU, and its number among those of its kind.


def cluster_preset(name: str) -> Cluster:
  """Builds a preset such as `v100x2+p100x2` or `2*v100x4+a100x8`.

  `preset_names` defines the names. In each host, GPUs 0 .. count-1 come first,
  then the CPU. Without a suffix, p100 and the GPUs without NVLink are joined by
  PCIe, the others by NVLink. Figures as in `hardware`:

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
  - `2*v100x8`: two such hosts in a network, with up to 64 GPUs in total.
    Unequal hosts are joined at the rate of the slower adapter, with the longer
    of their networks' latencies; a host of unequal GPUs has the slowest of
    their networks. A transfer leaves through the adapter on the PCIe switch of
    the sending device and queues there, whatever its destination. Transfers
    that reach a host from several others do not queue, because a link has only
    one channel.

  A cluster with GPUs of several kinds has device kinds `GPU-v100`, `GPU-p100`;
  one with several kinds of hosts, `CPU-dgx-1`, `CPU-dgx-a100`. Otherwise, kinds
  are `GPU` and `CPU`. `extra["hardware"]` of each device describes it to
  cost models.

  Raises:
    FormatError: the name is unknown; lists the choices.
  """
  named, in_network = parse_preset(name)
  says_gpu = len({each.gpu for host in named for each in host.gpus}) > 1
  says_host = len({_host_key(host.gpus) for host in named}) > 1
  all_gpus = [host.gpus for host in named for _ in range(host.count)]
  hosts = [
    _host(
      gpus, f"/job:worker/replica:0/task:{i}" if in_network else "",
      says_gpu, says_host,
    )
    for i, gpus in enumerate(all_gpus)
  ]  # fmt: skip
  links = [link for host in hosts for link in host.links]
  for one, other in itertools.permutations(hosts, 2):
    links += _network_links(one, other)
  sources = {key: s for host in hosts for key, s in host.sources.items()}
  if in_network:
    networks = dict.fromkeys(host.network.source for host in hosts)
    sources["network"] = "; ".join(networks)
  devices = tuple(device for host in hosts for device in host.devices)
  return Cluster(name, devices, tuple(links), {"sources": sources})


@dataclasses.dataclass(frozen=True)
class _Host:
  """A host of a preset.

  Attributes:
    task: name of its task in a network, "" outside of one.
    devices: its GPUs, then its CPU.
    links: between all pairs of them.
    network: its adapters.
    sources: part -> source of its figures.
  """

  task: str
  devices: tuple[Device, ...]
  links: tuple[Link, ...]
  network: NetworkModel
  sources: Mapping[str, str]


def _host_key(gpus: Sequence[NamedGpus]) -> str:
  """Returns the key of the host with the newest PCIe of its GPUs' hosts."""
  keys = [each.model.host for each in gpus]
  return max(keys, key=lambda key: HOSTS[key].pcie_bytes_per_us)


def _host(
  gpus: Sequence[NamedGpus], task: str, says_gpu: bool, says_host: bool
) -> _Host:
  """Builds a host; the last arguments name GPU and host in device kinds."""
  key = _host_key(gpus)
  model: HostModel = HOSTS[key]
  slots = [(each, rank) for each in gpus for rank in range(each.count)]
  prefix = f"{task or '/job:localhost/replica:0/task:0'}/device:"
  devices = [
    Device(
      f"{prefix}GPU:{i}",
      f"GPU-{each.gpu}" if says_gpu else "GPU",
      each.model.memory_bytes,
      PLACETO_OP_OVERHEAD_US,
      {"hardware": dict(each.model.hardware)},
    )
    for i, (each, _) in enumerate(slots)
  ]
  cpu = Device(
    f"{prefix}CPU:0",
    f"{CPU}-{key}" if says_host else CPU,
    float(model.hardware["memory_size"]),
    PLACETO_OP_OVERHEAD_US,
    {"hardware": dict(model.hardware)},
  )
  devices.append(cpu)
  names = [device.name for device in devices]
  links = [
    _link(slots, names, src, dst)
    for src, dst in itertools.permutations(range(len(names)), 2)
  ]
  if task:
    links = [
      dataclasses.replace(link, channel=f"{task}/{link.channel}")
      for link in links
    ]
  sources = {
    f"gpu-{each.gpu}" if says_gpu else "gpu": each.model.source for each in gpus
  }
  sources[f"host-{key}" if says_host else "host"] = model.source
  network = min(
    (NETWORKS[each.model.network] for each in gpus),
    key=lambda network: network.bytes_per_us,
  )
  return _Host(task, tuple(devices), tuple(links), network, sources)


def _network_links(src: _Host, dst: _Host) -> list[Link]:
  rate = min(src.network.bytes_per_us, dst.network.bytes_per_us)
  latency_us = max(src.network.latency_us, dst.network.latency_us)
  links = []
  for i, device in enumerate(src.devices):
    adapter = 0 if device.is_cpu else i // src.network.gpus_per_adapter
    channel = f"{src.task}/network:{adapter}:out"
    links += [
      Link(
        device.name, other.name, rate, TRANSFER_LATENCY_US + latency_us,
        channel=channel,
      )
      for other in dst.devices
    ]  # fmt: skip
  return links


def _link(
  slots: Sequence[_Slot], names: Sequence[str], src: int, dst: int
) -> Link:
  """Builds the link between two devices of a host; the CPU has no slot."""
  cpu = len(slots)
  ends = [slots[i] for i in (src, dst) if i != cpu]
  named = names[src], names[dst]
  if any(each.gpu == "k80" for each, _ in ends):
    from_other = src != cpu and slots[src][0].gpu != "k80"
    channel = _pcie_channel(cpu, src, dst) if from_other else f"out:{named[0]}"
    return Link(*named, PLACETO_BYTES_PER_US, 0.0, PLACETO_GAP_US, channel)
  first, model = ends[0][0], ends[0][0].model
  is_alike = len(ends) == 2 and first == ends[1][0]
  links = 0
  if is_alike and first.has_nvlink:
    links = _num_nvlinks(first, ends[0][1], ends[1][1])
  if links:
    channel = f"nvlink:{src}" if model.nvswitch else f"nvlink:{src}-{dst}"
    bandwidth = links * model.nvlink_bytes_per_us
  else:
    channel = _pcie_channel(cpu, src, dst)
    bandwidth = min(HOSTS[g.model.host].pcie_bytes_per_us for g, _ in ends)
  return Link(*named, bandwidth, TRANSFER_LATENCY_US, 0.0, channel)


def _num_nvlinks(gpus: NamedGpus, src: int, dst: int) -> int:
  model = gpus.model
  if model.nvswitch:
    return model.nvlinks
  if gpus.count <= 4:
    return model.nvlinks // 3
  cube_mesh = DGX1_NVLINKS[src][dst]
  return min(cube_mesh, 1) if model.nvlinks == 4 else cube_mesh


def _pcie_channel(cpu: int, src: int, dst: int) -> str:
  """Names the channel of a PCIe link; two GPUs share a switch."""
  if src == cpu:
    return f"pcie:switch-{dst // 2}:in"
  if dst != cpu and src // 2 == dst // 2:
    return f"pcie:{src}-{dst}"
  return f"pcie:switch-{src // 2}:out"
