"""Presets of GPUs of several kinds, on one host and on several."""

import numpy as np
import pytest

from tfplace import OpSpec, Problem, build_graph, cluster_preset
from tfplace.core.gpus import GPUS, gpu_description
from tfplace.core.preset_names import NamedGpus, NamedHosts, parse_preset
from tfplace.errors import FormatError, ProblemError

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


def test_each_gpu_has_its_kind_memory_and_hardware():
  cluster = cluster_preset("a100x1+v100x2")
  assert [d.name.split("/device:")[1] for d in cluster.devices] == [
    "GPU:0", "GPU:1", "GPU:2", "CPU:0"
  ]  # fmt: skip
  kinds = ["GPU-a100", "GPU-v100", "GPU-v100", "CPU"]
  assert [d.kind for d in cluster.devices] == kinds
  assert [d.is_cpu for d in cluster.devices] == [False] * 3 + [True]
  for i, gpu in enumerate(["a100", "v100", "v100"]):
    device = cluster.devices[i]
    assert device.memory_bytes == GPUS[gpu].memory_bytes
    assert device.extra["hardware"] == gpu_description(GPUS[gpu])
  # The host is the newer one, whose slots an A100 needs.
  assert "EPYC" in cluster.devices[3].extra["hardware"]["model"]
  assert set(cluster.extra["sources"]) == {"gpu-a100", "gpu-v100", "host"}
  assert cluster.is_fully_linked


def test_alike_gpus_keep_their_links_and_unequal_ones_use_pcie():
  cluster = cluster_preset("v100x2+a100x2")
  alone = cluster_preset("v100x2")
  bandwidth, channel = cluster.bandwidth, cluster.channel
  assert bandwidth[0, 1] == alone.bandwidth[0, 1] == 47900.0
  assert bandwidth[2, 3] == 12 * 25000.0
  # PCIe 3.0 of a V100, 4.0 of an A100; V100s share a switch, and so do A100s.
  assert bandwidth[0, 2] == bandwidth[2, 0] == bandwidth[0, 4] == 12000.0
  assert bandwidth[2, 4] == bandwidth[4, 3] == 24000.0
  assert channel[0, 2] == channel[1, 3] == channel[0, 4]
  assert channel[2, 0] == channel[3, 4] != channel[0, 2]


def test_unequal_gpus_on_one_switch_reach_each_other_directly():
  channel = cluster_preset("v100x1+p100x1").channel
  assert len({channel[0, 1], channel[1, 0], channel[0, 2], channel[2, 0]}) == 4


def test_links_with_a_k80_are_those_of_k80s():
  cluster = cluster_preset("k80x1+v100x2")
  for a, b in ((0, 1), (1, 0), (0, 3), (3, 0)):
    assert cluster.bandwidth[a, b] == 7600.0
    assert (cluster.latency_us[a, b], cluster.gap_us[a, b]) == (0.0, 25.0)
  assert cluster.bandwidth[1, 2] == 47900.0
  assert cluster.channel[0, 1] == cluster.channel[0, 3] != cluster.channel[1, 3]


def test_cube_mesh_counts_the_gpus_of_its_kind():
  # GPUs 1-6 are V100s 0-5 of a DGX-1, of which 0 and 5 have no NVLink.
  bandwidth = cluster_preset("p100x1+v100x6").bandwidth
  assert bandwidth[1, 4] == 47900.0
  assert bandwidth[1, 6] == 12000.0


def test_unequal_hosts_are_joined_by_the_slower_network():
  cluster = cluster_preset("2*v100x4+a100x8")
  kinds = ["GPU-v100"] * 4 + ["CPU-dgx-1"]
  kinds = 2 * kinds + ["GPU-a100"] * 8 + ["CPU-dgx-a100"]
  assert [d.kind for d in cluster.devices] == kinds
  assert cluster.devices[18].name.endswith("task:2/device:CPU:0")
  assert cluster.bandwidth[0, 5] == cluster.bandwidth[0, 10] == 12000.0
  assert cluster.bandwidth[10, 0] == 12000.0
  # An A100 of host 2 has an adapter of its own, two V100s share one.
  channel = cluster.channel
  assert channel[10, 0] != channel[11, 0]
  assert channel[0, 10] == channel[1, 5] != channel[2, 10]
  # 10 us in a host and the longer latency: 36 us of the cloud's Ethernet.
  assert cluster_preset("1*v100x1+p100x1").latency_us[0, 2] == 46.0


def test_hosts_of_equal_gpus_have_plain_kinds():
  cluster = cluster_preset("1*v100x4+v100x2")
  assert {d.kind for d in cluster.devices} == {"GPU", "CPU"}
  assert cluster.num_devices == 8


@pytest.mark.parametrize(
  "name, told",
  [
    ("v100x2+p101x2", "part 'p101x2': unknown gpu 'p101'"),
    ("v100x2+p100x2-nvlnk", "part 'p100x2-nvlnk': unknown suffix '-nvlnk'"),
    ("v100x2+", "part '': not <gpu>x<count>"),
    ("v100x6+p100x6", "12 GPUs in one host"),
    ("8*v100x8+p100x1", "65 GPUs"),
    ("2*(v100x2+p100x2", r"part '2\*\(v100x2': not hosts"),
    ("2*(v100x2)*2", r"\(not hosts\)"),
    ("v100x2+v100x2", "v100 twice .* write v100x4"),
    ("v100x2+p100x2+k80x1-nvlink", "k80 has no NVLink"),
  ],
)
def test_errors_name_the_part_and_a_way_out(name, told):
  with pytest.raises(FormatError, match=told) as caught:
    cluster_preset(name)
  assert repr(name) in str(caught.value)
  assert "\n" not in str(caught.value)


def test_a_graph_without_times_of_the_kinds_is_refused():
  ops = [OpSpec("a", "MatMul", {"GPU": 1.0, "CPU": 9.0}, [4.0])]
  graph = build_graph("g", ops, [])
  told = "'g' has times for 'GPU' but none for 'GPU-v100' .* extract it"
  with pytest.raises(ProblemError, match=told):
    Problem(graph, cluster_preset("v100x1+p100x1"))
  # A graph that nobody could have placed on a GPU is for CPUs.
  ops = [OpSpec("a", "MatMul", {"CPU": 9.0}, [4.0])]
  cpus = Problem(build_graph("g", ops, []), cluster_preset("v100x1+p100x1"))
  np.testing.assert_array_equal(cpus.allowed, [[False, False, True]])
