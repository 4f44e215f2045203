"""Links and buses, recovered from transfers that a model times."""

import numpy as np
import pytest

from tfplace.graph.cluster import Cluster, Device
from tfplace.measure.calibrate import links as links_lib
from tfplace.measure.local.devices import LocalDevices

PREFIX = "/job:localhost/replica:0/task:0/device:"
START_US = 150.0
LATENCY_US = 10.0


def names(gpus):
  return [*(f"{PREFIX}GPU:{i}" for i in range(gpus)), f"{PREFIX}CPU:0"]


def host(rate, occupied):
  """A timer of a host; flows take turns on each bus that they occupy.

  Args:
    rate: (src, dst) -> bytes per microsecond.
    occupied: (src, dst) -> buses.
  """

  def timer(loads):
    result = []
    for load in loads:
      alone, turns = [], {}
      for flow in load:
        way = flow.src, flow.dst
        us = flow.size / rate(*way)
        alone.append(flow.hops * (LATENCY_US + us))
        for bus in occupied(*way):
          turns[bus] = turns.get(bus, LATENCY_US) + us
      busy = turns.values() if len(load) > 1 else ()
      result.append(START_US + max([*alone, *busy]))
    return result

  return timer


def measured(gpus, timer):
  devices = tuple(Device(n, n.split(":")[-2]) for n in names(gpus))
  links = links_lib.gpu_links(names(gpus), timer)
  return Cluster("measured", devices, links)


def test_pcie_switches_are_channels_of_two_gpus():
  """GPUs 0 and 1 share a switch, 2 and 3 another; each has two directions."""

  def occupied(src, dst):
    if 4 not in (src, dst) and src // 2 == dst // 2:
      return (f"peers{src}-{dst}",)
    up = () if src == 4 else (f"up{src // 2}",)
    return (*up, *(() if dst == 4 else (f"down{dst // 2}",)))

  cluster = measured(4, host(lambda *_: 12e3, occupied))
  channel = cluster.channel
  np.testing.assert_allclose(cluster.bandwidth[0, 1:], 12e3, rtol=1e-6)
  np.testing.assert_allclose(cluster.latency_us[0, 1:], 10.0, rtol=1e-6)
  # All that leaves 0 and 1 to elsewhere, and what they receive from the host.
  assert channel[0, 4] == channel[1, 4] == channel[0, 2] == channel[1, 3]
  assert channel[4, 0] == channel[4, 1] != channel[4, 2]
  assert channel[2, 4] == channel[3, 4] == channel[2, 0] != channel[0, 4]
  assert channel[0, 4] != channel[4, 0]


def test_gpus_on_a_switch_have_an_outgoing_channel_each():
  def rate(src, dst):
    return 24e3 if 4 in (src, dst) else 300e3

  def occupied(src, dst):
    if 4 in (src, dst):
      return (f"pcie{src}-{dst}",)
    return f"out{src}", f"in{dst}"

  cluster = measured(4, host(rate, occupied))
  channel = cluster.channel
  assert cluster.bandwidth[0, 1] == pytest.approx(300e3)
  assert cluster.bandwidth[0, 4] == pytest.approx(24e3)
  for src in range(4):
    others = {channel[src, dst] for dst in range(4) if dst != src}
    assert len(others) == 1
    assert channel[src, 4] not in others
  assert len({channel[0, 1], channel[1, 0], channel[2, 0]}) == 3
  assert len({channel[i, 4] for i in range(4)}) == 4


def test_nvlinks_are_apart_and_a_bus_is_both_ways():
  # NVLink between GPUs; one bus carries all from and to the host.
  def rate(src, dst):
    return 12e3 if 3 in (src, dst) else 48e3

  def occupied(src, dst):
    return ("bus",) if 3 in (src, dst) else (f"nvlink{src}-{dst}",)

  channel = measured(3, host(rate, occupied)).channel
  gpus = [channel[i, j] for i in range(3) for j in range(3) if i != j]
  assert len(set(gpus)) == 6
  to_host = {channel[i, 3] for i in range(3)} | {
    channel[3, i] for i in range(3)
  }
  assert len(to_host) == 1 and not to_host & set(gpus)


def test_links_of_eight_gpus_take_less_than_half_a_minute():
  """At PCIe 3.0, with one bus for all transfers at the same time."""
  timer, seconds = host(lambda *_: 12e3, lambda *_: ("bus",)), []

  def timed(loads):
    took_us = timer(loads)
    # Each load runs once before it is timed.
    seconds.append((1 + links_lib._STEPS) * sum(took_us) / 1e6)
    return took_us

  assert len(measured(8, timed).links) == 72
  assert sum(seconds) < 30.0


# Published peer-to-peer rates of a V100 pair, GB/s by MB, and what small
# messages take.
PUBLISHED = {1: 17, 2: 25, 4: 31, 8: 36, 16: 39, 32: 41, 64: 42}
HOP_US = {
  4e3: 11.0,
  64e3: 16.0,
  **{mb * 1e6: mb * 1e3 / rate for mb, rate in PUBLISHED.items()},
  128e6: 3030.0,
}


def test_large_messages_show_the_bandwidth_of_nvlink():
  def timer(loads):
    us = []
    for load in loads:
      each = np.interp([f.size for f in load], [*HOP_US], [*HOP_US.values()])
      hops = [flow.hops for flow in load]
      us.append(START_US + (each * hops).sum())
    return us

  cluster = measured(2, timer)
  assert cluster.bandwidth[0, 1] == pytest.approx(43e3, rel=0.05)
  for mb, rate in PUBLISHED.items():
    us = cluster.latency_us[0, 1] + mb * 1e6 / cluster.bandwidth[0, 1]
    # A latency and a bandwidth cannot follow the medium sizes closely.
    rel = 0.1 if mb >= 8 else 0.4
    assert us == pytest.approx(mb * 1e3 / rate, rel=rel), mb


A, B = (f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2))


def trips_of(latency_us, us_per_byte):
  """A timer of single flows, each hop of which takes the given time."""

  def timer(loads):
    flows = [flow for (flow,) in loads]
    hop_us = [latency_us + f.size * us_per_byte for f in flows]
    pairs = zip(flows, hop_us, strict=True)
    return [START_US + flow.hops * us for flow, us in pairs]

  return timer


def test_processors_of_one_host_copy_half_each():
  there, back = links_lib.worker_links((A, B), trips_of(80.0, 4e-4))
  assert (there.src, there.dst) == (back.dst, back.src) == (A, B)
  for link in (there, back):
    assert (link.send_us, link.recv_us) == pytest.approx((40.0, 40.0))
    per_byte = link.send_us_per_byte, link.recv_us_per_byte
    assert per_byte == pytest.approx((2e-4, 2e-4))
    assert link.latency_us == 0.0
    assert link.bandwidth_bytes_per_us >= 1e6


@pytest.mark.parametrize(
  ("other", "latency_us"), [(B, 5000.0), (B.replace("CPU", "GPU"), 80.0)]
)
def test_networks_and_gpus_leave_processors_free(other, latency_us):
  link, _ = links_lib.worker_links((A, other), trips_of(latency_us, 1e-2))
  assert link.latency_us == pytest.approx(latency_us)
  assert link.bandwidth_bytes_per_us == pytest.approx(100.0)
  assert link.send_us == link.recv_us == link.send_us_per_byte == 0.0


def test_loads_run_on_the_devices_of_a_process():
  with LocalDevices(logical_cpus=2) as local, local.one_process():
    local.start()
    loads = [
      (links_lib.Flow(0, 1, 4096, hops=2),),
      (links_lib.Flow(0, 1, 1 << 20), links_lib.Flow(1, 0, 1 << 20)),
    ]
    request = links_lib.request(local.device_names, loads)
    took = local.time_each(request)
  assert len(took) == 2
  assert all(0 < us < 1e6 for us in took)
