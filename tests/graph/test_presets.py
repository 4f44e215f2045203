"""Presets: names, links inside a host, and the network between hosts."""

import numpy as np
import pytest

from tfplace import OpSpec, Problem, build_graph, cluster_preset
from tfplace.errors import FormatError, ProblemError
from tfplace.graph.cluster import NO_CHANNEL
from tfplace.hardware.hardware import GPUS
from tfplace.hardware.preset_names import NamedGpus, NamedHosts, parse_preset

V100X2 = NamedGpus("v100", 2, None)
P100X2 = NamedGpus("p100", 2, None)


@pytest.mark.parametrize(
  "name, hosts, in_network",
  [
    ("v100x2+p100x2", (NamedHosts(1, (V100X2, P100X2)),), False),
    ("2*v100x2+p100x2",
     (NamedHosts(2, (V100X2,)), NamedHosts(1, (P100X2,))), True),
    ("2*(v100x2+p100x2)", (NamedHosts(2, (V100X2, P100X2)),), True),
    ("(v100x2+p100x2)+p100x2",
     (NamedHosts(1, (V100X2, P100X2)), NamedHosts(1, (P100X2,))), True),
    ("v100-32gbx1-pcie+a100x2",
     (NamedHosts(1, (NamedGpus("v100-32gb", 1, "pcie"),
                     NamedGpus("a100", 2, None))),), False),
  ],
)  # fmt: skip
def test_plus_joins_gpus_unless_the_name_has_hosts(name, hosts, in_network):
  assert parse_preset(name) == (hosts, in_network)


FORM = r"<gpu>x<count>.*<hosts>\*.*k80.*h100.*1 to 8.*1 to 64 GPUs"


@pytest.mark.parametrize(
  "name, told",
  [
    *dict.fromkeys(
      ("", "k80", "v100x0", "V100x4", "v100x2-", "x4", "*v100x4", "2*",
       "2*foo", "-1*v100x4", "2*2*v100x4", "2 * v100x4", "1.5*v100x4"), FORM,
    ).items(),
    ("v100x9", "9 GPUs in one host"),
    ("9*v100x8", "72 GPUs"),
    ("v100x2+p101x2", "part 'p101x2': unknown gpu 'p101'"),
    ("v100x2+p100x2-nvlnk", "part 'p100x2-nvlnk': unknown suffix '-nvlnk'"),
    ("v100x2+", "part '': not <gpu>x<count>"),
    ("v100x6+p100x6", "12 GPUs in one host"),
    ("2*(v100x2+p100x2", r"part '2\*\(v100x2': not hosts"),
    ("v100x2+v100x2", "v100 twice .* write v100x4"),
    ("2*k80x2-nvlink", "k80 has no NVLink"),
    (None, "it must be a name such as"),
  ],
)  # fmt: skip
def test_errors_name_the_part_and_a_way_out(name, told):
  with pytest.raises(FormatError, match=told) as caught:
    cluster_preset(name)
  assert repr(name) in str(caught.value)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("gpu", GPUS)
def test_gpus_come_first_then_one_cpu_and_all_are_linked(gpu, count):
  cluster = cluster_preset(f"{gpu}x{count}")
  task = "/job:localhost/replica:0/task:0/device:"
  names = [f"{task}GPU:{i}" for i in range(count)]
  assert [d.name for d in cluster.devices] == [*names, f"{task}CPU:0"]
  assert [d.kind for d in cluster.devices] == ["GPU"] * count + ["CPU"]
  assert cluster.devices[0].extra["hardware"] == GPUS[gpu].hardware
  assert (cluster.op_overhead_us == 5.7).all()
  assert cluster.is_fully_linked


def test_k80s_are_placetos_simulator():
  cluster = cluster_preset("k80x2")
  for link in cluster.links:
    assert link.bandwidth_bytes_per_us == 7600.0
    assert (link.latency_us, link.gap_us) == (0.0, 25.0)
  # One channel per source device.
  off = ~np.eye(3, dtype=bool)
  rows = [set(cluster.channel[i][off[i]]) for i in range(3)]
  assert all(len(row) == 1 for row in rows)
  assert cluster.num_channels == 3


def test_pcie_gpus_share_their_switch_to_the_host():
  cluster = cluster_preset("p100x4")
  channel, cpu = cluster.channel, 4
  assert np.nanmax(cluster.bandwidth) == np.nanmin(cluster.bandwidth) == 12000.0
  assert channel[0, cpu] == channel[1, cpu] == channel[1, 2]
  assert channel[0, cpu] != channel[2, cpu]
  assert channel[cpu, 0] == channel[cpu, 1] != channel[cpu, 2]
  assert channel[0, 1] not in (channel[1, 0], channel[0, cpu])


@pytest.mark.parametrize(
  "name, src, dst, bytes_per_us",
  [
    ("v100x4", 0, 1, 2 * 23950.0),  # two links between each pair
    ("v100x4", 3, 4, 12000.0),  # the CPU stays on PCIe 3.0
    ("a100x8", 0, 7, 12 * 18750.0),  # measured: 225 of 300 GB/s
    ("h100x2", 0, 1, 18 * 20000.0),
    ("p100x2-nvlink", 0, 1, 18310.0),
    ("v100x2-pcie", 0, 1, 12000.0),
    ("v100x8", 0, 3, 2 * 23950.0),
    ("v100x8", 0, 1, 23950.0),
    ("v100x8", 0, 5, 12000.0),  # no NVLink: through the host
    # GPUs 1-6 are V100s 0-5 of a DGX-1; between 0 and 5 there is no NVLink.
    ("p100x1+v100x6", 1, 4, 2 * 23950.0),
    ("p100x1+v100x6", 1, 6, 12000.0),
  ],
)
def test_nvlink_figures(name, src, dst, bytes_per_us):
  bandwidth = cluster_preset(name).bandwidth
  assert bandwidth[src, dst] == bandwidth[dst, src] == bytes_per_us


def test_unequal_gpus_have_their_kind_memory_and_hardware():
  cluster = cluster_preset("a100x1+v100x2")
  kinds = ["GPU-a100", "GPU-v100", "GPU-v100", "CPU"]
  assert [d.kind for d in cluster.devices] == kinds
  assert [d.is_cpu for d in cluster.devices] == [False] * 3 + [True]
  for i, gpu in enumerate(["a100", "v100", "v100"]):
    assert cluster.devices[i].memory_bytes == GPUS[gpu].memory_bytes
    assert cluster.devices[i].extra["hardware"] == GPUS[gpu].hardware
  # The host is the newer one, whose slots an A100 needs.
  assert "EPYC" in cluster.devices[3].extra["hardware"]["model"]
  assert set(cluster.extra["sources"]) == {"gpu-a100", "gpu-v100", "host"}


def test_unequal_gpus_use_pcie():
  bandwidth = cluster_preset("v100x2+a100x2").bandwidth
  channel = cluster_preset("v100x2+a100x2").channel
  assert bandwidth[0, 1] == 47900.0
  assert bandwidth[2, 3] == 12 * 18750.0
  # PCIe 3.0 of a V100, 4.0 of an A100; V100s share a switch, and so do A100s.
  assert bandwidth[0, 2] == bandwidth[2, 0] == bandwidth[0, 4] == 12000.0
  assert bandwidth[2, 4] == bandwidth[4, 3] == 24000.0
  assert channel[0, 2] == channel[1, 3] == channel[0, 4]
  assert channel[2, 0] == channel[3, 4] != channel[0, 2]
  # On one switch they reach each other directly.
  channel = cluster_preset("v100x1+p100x1").channel
  assert len({channel[0, 1], channel[1, 0], channel[0, 2], channel[2, 0]}) == 4


@pytest.mark.parametrize("one", ["k80x2", "p100x4", "v100x8", "a100x8-nvlink"])
def test_inside_a_host_all_is_as_in_the_preset_of_one(one):
  host, pair = cluster_preset(one), cluster_preset(f"2*{one}")
  count = host.num_devices
  for task in (0, 1):
    here = slice(task * count, (task + 1) * count)
    for field in ("bandwidth", "latency_us", "gap_us"):
      np.testing.assert_array_equal(
        getattr(pair, field)[here, here], getattr(host, field)
      )
    own = pair.channel[here, here]
    # Links share a channel where they do in one host, and only there.
    np.testing.assert_array_equal(
      own.ravel()[:, None] == own.ravel(),
      host.channel.ravel()[:, None] == host.channel.ravel(),
    )
    rest = pair.channel[count - task * count : (2 - task) * count]
    assert not set(own[own != NO_CHANNEL]) & set(rest.ravel())
    for device, of_one in zip(pair.devices[here], host.devices, strict=True):
      end = of_one.name.split("/device:")[1]
      assert device.name == f"/job:worker/replica:0/task:{task}/device:{end}"
      assert device.memory_bytes == of_one.memory_bytes
      assert device.extra == of_one.extra


@pytest.mark.parametrize(
  # Typed a second time: B/us of an adapter, as measured between two GPUs where
  # the source says so; microseconds; and adapters of a host.
  "name, bytes_per_us, latency_us, adapters",
  [
    ("2*k80x2", 32 * 125, 46, 1),
    ("2*p100x4", 32 * 125, 46, 1),
    ("2*t4x4", 50 * 125, 46, 1),
    ("2*v100x8", 5840, 24, 4),
    ("2*a100x8", 7800, 24, 8),
    ("2*h100x8", 36000, 24, 8),
    ("2*gh200x4", 23300, 44, 4),
  ],
)
def test_between_hosts_is_the_network_of_the_source(
  name, bytes_per_us, latency_us, adapters
):
  cluster = cluster_preset(name)
  half = cluster.num_devices // 2
  assert cluster.is_fully_linked
  for across in (np.s_[:half, half:], np.s_[half:, :half]):
    assert (cluster.bandwidth[across] == bytes_per_us).all()
    assert (cluster.latency_us[across] == latency_us).all()
    assert len(np.unique(cluster.channel[across])) == adapters
  assert cluster.channel[0, half] != cluster.channel[half, 0]
  assert set(cluster.extra["sources"]) == {"gpu", "host", "network"}
  # No way to another host is shorter than one inside.
  assert bytes_per_us <= np.nanmin(cluster.bandwidth[:half, :half])
  assert latency_us > cluster.latency_us[0, 1]


def test_unequal_hosts_are_joined_by_the_slower_network():
  cluster = cluster_preset("2*v100x4+a100x8")
  kinds = ["GPU-v100"] * 4 + ["CPU-dgx-1"]
  kinds = 2 * kinds + ["GPU-a100"] * 8 + ["CPU-dgx-a100"]
  assert [d.kind for d in cluster.devices] == kinds
  assert cluster.devices[18].name.endswith("task:2/device:CPU:0")
  assert cluster.bandwidth[0, 5] == cluster.bandwidth[0, 10] == 5840.0
  assert cluster.bandwidth[10, 0] == 5840.0
  # An A100 of host 2 has an adapter of its own, two V100s share one.
  channel = cluster.channel
  assert channel[10, 0] != channel[11, 0]
  assert channel[0, 10] == channel[1, 5] != channel[2, 10]
  # 10 us in a host and the longer latency: 36 us of the cloud's Ethernet.
  assert cluster_preset("1*v100x1+p100x1").latency_us[0, 2] == 46.0
  # Hosts of equal GPUs have plain kinds.
  assert set(cluster_preset("1*v100x4+v100x2").kind_labels) == {""}


def test_a_graph_without_times_of_the_kinds_is_refused():
  graph = build_graph(
    "g", [OpSpec("a", "MatMul", {"GPU": 1.0, "CPU": 9.0})], []
  )
  told = "'g' has times for 'GPU' but none for 'GPU-v100' .* extract it"
  with pytest.raises(ProblemError, match=told):
    Problem(graph, cluster_preset("v100x1+p100x1"))
  # A graph that nobody could have placed on a GPU is for CPUs.
  graph = build_graph("g", [OpSpec("a", "MatMul", {"CPU": 9.0})], [])
  cpus = Problem(graph, cluster_preset("v100x1+p100x1"))
  np.testing.assert_array_equal(cpus.allowed, [[False, False, True]])
