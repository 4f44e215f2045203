"""Presets of several hosts: names, links inside, and the network between."""

import numpy as np
import pytest

from tfplace import Problem, Simulator
from tfplace.core import OpSpec, build_graph, presets
from tfplace.core.cluster import NO_CHANNEL
from tfplace.errors import FormatError


def _device(task, kind, index):
  return f"/job:worker/replica:0/task:{task}/device:{kind}:{index}"


@pytest.mark.parametrize(
  "name, hosts, count",
  [
    ("2*v100x8", 2, 8),
    ("4*p100x4", 4, 4),
    ("8*a100x8", 8, 8),
    ("1*k80x1", 1, 1),
  ],
)
def test_each_host_is_a_task_with_its_gpus_then_its_cpu(name, hosts, count):
  cluster = presets.cluster_preset(name)
  assert cluster.name == name
  assert [device.name for device in cluster.devices] == [
    device
    for task in range(hosts)
    for device in (
      *(_device(task, "GPU", i) for i in range(count)),
      _device(task, "CPU", 0),
    )
  ]
  assert cluster.is_fully_linked


@pytest.mark.parametrize("one", ["k80x2", "p100x4", "v100x8", "a100x8-nvlink"])
def test_inside_a_host_all_is_as_in_the_preset_of_one(one):
  host = presets.cluster_preset(one)
  pair = presets.cluster_preset(f"2*{one}")
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
      assert device.memory_bytes == of_one.memory_bytes
      assert device.extra == of_one.extra


# Typed a second time: B/us of an adapter, or of its PCIe slot, where that is
# less (12,000, 24,000 and 48,000 of 100, 200 and 400 Gb/s); microseconds; and
# adapters of a host.
NETWORKS = {
  "2*k80x2": (32 * 125, 46, 1),
  "2*p100x4": (32 * 125, 46, 1),
  "2*v100x8": (12000, 24, 4),
  "2*a100x8": (24000, 24, 8),
  "2*h100x8": (48000, 24, 8),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_between_hosts_is_the_network_of_the_data_sheet(name):
  cluster = presets.cluster_preset(name)
  bytes_per_us, latency_us, adapters = NETWORKS[name]
  half = cluster.num_devices // 2
  for across in (np.s_[:half, half:], np.s_[half:, :half]):
    assert (cluster.bandwidth[across] == bytes_per_us).all()
    assert (cluster.latency_us[across] == latency_us).all()
    assert len(np.unique(cluster.channel[across])) == adapters
  assert cluster.channel[0, half] != cluster.channel[half, 0]
  assert set(cluster.extra["sources"]) == {"gpu", "host", "network"}


@pytest.mark.parametrize("name", NETWORKS)
def test_no_way_to_another_host_is_shorter_than_one_inside(name):
  cluster = presets.cluster_preset(name)
  half = cluster.num_devices // 2
  inside = np.nanmin(cluster.bandwidth[:half, :half])
  assert (cluster.bandwidth[:half, half:] <= inside).all()
  assert (cluster.latency_us[:half, half:] > cluster.latency_us[0, 1]).all()


def test_what_leaves_a_host_takes_turns_wherever_it_goes():
  channel = presets.cluster_preset("4*p100x4").channel
  # Devices 0-4 are host 0, 5-9 host 1, 10-14 host 2.
  assert channel[0, 5] == channel[3, 12] == channel[4, 19]
  assert channel[5, 0] == channel[9, 10] != channel[0, 5]


def test_two_gpus_of_a_dgx_1_share_an_adapter():
  channel = presets.cluster_preset("2*v100x8").channel
  # Devices 0-7 and the CPU, 8, are host 0.
  assert channel[0, 9] == channel[1, 12] == channel[8, 9]
  assert channel[0, 9] != channel[2, 9] == channel[3, 17]


def test_two_tensors_by_one_adapter_arrive_one_after_the_other():
  # Both producers end at 10; a tensor of 1.2e6 bytes takes 100 us of a slot's
  # 12,000 B/us, and 24 us of latency: the second one leaves at 110, arrives at
  # 234, and is read for 10 us.
  ops = [
    OpSpec(name, "Op", {"GPU": 10.0}, [1.2e6]) for name in ("a", "b", "c", "d")
  ]
  graph = build_graph("two", ops, [(0, 0, 2), (1, 0, 3)])
  problem = Problem(graph, presets.cluster_preset("2*v100x2"))
  (evaluation,) = Simulator(problem).evaluate(np.array([[0, 1, 3, 4]]))
  assert evaluation.step_time_us == pytest.approx(10 + 2 * 100 + 24 + 10)


@pytest.mark.parametrize(
  "name",
  ["0*v100x4", "2*foo", "100*v100x8", "9*v100x8", "65*v100x1", "2*v100x9",
   "*v100x4", "2*", "-1*v100x4", "2*2*v100x4", "2 * v100x4", "1.5*v100x4"],
)  # fmt: skip
def test_names_of_no_cluster_get_one_sentence(name):
  with pytest.raises(FormatError, match=r"<hosts>\*.*1 to 64 GPUs") as caught:
    presets.cluster_preset(name)
  assert repr(name) in str(caught.value)
  assert "\n" not in str(caught.value)


def test_k80_hosts_have_no_nvlink():
  with pytest.raises(FormatError, match=r"2\*k80x2-nvlink.*no NVLink"):
    presets.cluster_preset("2*k80x2-nvlink")


def test_64_gpus_may_be_64_hosts():
  assert presets.cluster_preset("64*v100x1").num_devices == 128
