"""Descriptions of GPUs, from fakes of what TensorFlow tells of them."""

import logging
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfplace.cost import grappler
from tfplace.errors import MeasurementError
from tfplace.hardware.gpu_hardware import gpu_hardware
from tfplace.hardware.hardware import GPUS, HOSTS
from tfplace.measure.calibrate import links
from tfplace.measure.local import gpus
from tfplace.measure.session import messages, session, step_stats, worker
from tfplace.plan import local_devices
from tfplace.plan.local_devices import local_cluster, shared_note

TASK = "/job:localhost/replica:0/task:0"
PREFIX = f"{TASK}/device:"
GIB = 2**30
A10G = {
  "type": "GPU",
  "environment": {"architecture": "8.6"},
  "bandwidth": 600_000_000,
  "num_cores": 160,
  "frequency": 1500,
  "peak_gflops": {"fp32": 31_000.0, "fp16": 62_000.0},
}


@pytest.fixture
def host_of(monkeypatch):
  """Makes TensorFlow tell of GPUs: (product, capability, GiB of each part)."""

  def make(*cards):
    physical, details, parts, limits = [], {}, {}, {}
    for i, (product, capability, sizes) in enumerate(cards):
      gpu = SimpleNamespace(name=f"/physical_device:GPU:{i}")
      physical.append(gpu)
      details[gpu.name] = {"device_name": product}
      if capability is not None:
        details[gpu.name]["compute_capability"] = capability
      parts[gpu.name] = sizes if len(sizes) > 1 else None
      for size in sizes:
        limits[f"{PREFIX}GPU:{len(limits)}"] = size * GIB
    logical = tf.config.list_logical_devices

    def list_logical_devices(kind=None):
      gpus = [name.removeprefix(TASK) for name in limits]
      found = [SimpleNamespace(name=name) for name in gpus]
      return found if kind == "GPU" else logical(kind)

    def of(gpu):
      return details[gpu.name]

    monkeypatch.setattr(tf.config, "list_logical_devices", list_logical_devices)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: physical)
    monkeypatch.setattr(
      tf.config,
      "get_logical_device_configuration",
      lambda gpu: parts[gpu.name],
    )
    monkeypatch.setattr(tf.config.experimental, "get_device_details", of)
    known = {**limits, f"{PREFIX}CPU:0": 256 * 2**20}
    monkeypatch.setattr(session, "devices", lambda target, proto: known)

  return make


@pytest.mark.parametrize("card", GPUS)
def test_a_card_has_its_data_sheet_and_the_limit_of_tensorflow(host_of, card):
  hardware, name = GPUS[card].hardware, GPUS[card].names[0]
  major, minor = hardware["environment"]["architecture"].split(".")
  # TensorFlow leaves some of a card's memory to the system.
  host_of(*[(f"NVIDIA {name}", (int(major), int(minor)), [10.5])] * 2)
  cluster = local_cluster()
  assert [d.kind for d in cluster.devices] == ["GPU", "GPU", "CPU"]
  assert cluster.devices[1].memory_bytes == 10.5 * GIB
  assert cluster.devices[1].extra["hardware"] == hardware
  # By the PCIe generation of the card's host.
  rate = HOSTS[GPUS[card].host].pcie_bytes_per_us
  assert (cluster.bandwidth[0, 1:] == rate).all()


def test_the_process_of_gpus_describes_each_product(host_of, monkeypatch):
  host_of(
    ("NVIDIA A100-SXM4-80GB", (8, 0), [78]),
    ("Tesla V100-SXM2-32GB", (7, 0), [31]),
  )
  monkeypatch.setattr(step_stats, "configure", lambda config: None)
  config = messages.ChildConfig(gpus=True, describes_gpus=True)
  ready, _ = worker._start(config)
  kinds = [device.kind for device in ready.gpus]
  assert kinds == ["GPU-a100-80gb", "GPU-v100-32gb"]
  assert [gpu.memory_bytes for gpu in ready.gpus] == [78 * GIB, 31 * GIB]


def test_cards_that_differ_are_of_kinds_of_their_own(host_of):
  host_of(
    ("NVIDIA A100-SXM4-80GB", (8, 0), [78]),
    ("Tesla V100-SXM2-32GB", (7, 0), [31]),
    ("NVIDIA A100-SXM4-80GB", (8, 0), [39, 39]),
  )
  cluster = local_cluster()
  whole = "GPU-a100-80gb"
  part = f"{whole}-1of2"
  kinds = [whole, "GPU-v100-32gb", part, part, "CPU"]
  assert [d.kind for d in cluster.devices] == kinds
  # Costs can be estimated, with half of the cores for a half.
  described = grappler.described_by_kind(cluster)
  cores = [described[kind].gpu.multiprocessors for kind in kinds[:3]]
  assert cores == [108, 80, 54]
  # PCIe 3.0 of the V100, 4.0 of A100s, and memory between parts.
  rates = [cluster.bandwidth[0, i] for i in (1, 2)]
  assert rates == [12_000.0, 24_000.0]
  assert cluster.bandwidth[2, 3] > 24_000.0
  assert "share this machine's GPU" in shared_note(
    [d.name for d in cluster.devices[2:4]]
  )
  assert not shared_note([d.name for d in cluster.devices[:2]])


def test_cards_are_known_whatever_order_makes_them_visible(
  host_of, monkeypatch
):
  host_of(
    ("NVIDIA A100-SXM4-80GB", (8, 0), [78]),
    ("Tesla V100-SXM2-32GB", (7, 0), [31]),
  )
  # TensorFlow numbers logical GPUs in physical order, and lists the visible
  # ones in the order of `set_visible_devices`.
  visible = tf.config.get_visible_devices("GPU")
  monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: visible[::-1])
  kinds = [d.kind for d in local_cluster().devices]
  assert kinds == ["GPU-a100-80gb", "GPU-v100-32gb", "CPU"]


def test_links_of_a_process_are_measured_once(host_of, monkeypatch):
  asked = []

  def timer(loads):  # 10 us, then 40 GB/s each way
    asked.append(len(loads))
    return [max(f.hops * (10 + f.size / 40e3) for f in each) for each in loads]

  monkeypatch.setattr(local_devices, "_measured_links", {})
  monkeypatch.setattr(links, "timer_on", lambda *_: timer)
  host_of(*[("Tesla V100-SXM2-32GB", (7, 0), [31])] * 2)
  described = local_cluster()
  assert local_devices.lacks_links(described)
  for _ in range(2):
    cluster = local_devices.with_measured_links(described, lambda _: None)
  # Round trips, then transfers at the same time; three pairs of devices.
  assert len(asked) == 2
  assert not local_devices.lacks_links(cluster)
  assert cluster.devices == described.devices
  assert [link.latency_us for link in cluster.links] == pytest.approx([10] * 6)
  rates = [link.bandwidth_bytes_per_us for link in cluster.links]
  assert rates == pytest.approx([40e3] * 6)


def test_an_unknown_card_is_measured_and_told_in_a_line(
  host_of, monkeypatch, caplog
):
  timed = []

  def measured(device, product, architecture):
    timed.append((device, product, architecture))
    return dict(A10G), 4.0

  monkeypatch.setattr(gpus, "measured_card", measured)
  host_of(*[("NVIDIA A10G", (8, 6), [22])] * 2)
  with caplog.at_level(logging.WARNING, "tfplace"):
    cluster = local_cluster()
  assert timed == [(f"{PREFIX}GPU:0", "NVIDIA A10G", "8.6")] * 2
  assert cluster.devices[0].kind == "GPU"
  assert cluster.devices[0].op_overhead_us == 4.0
  assert cluster.devices[0].memory_bytes == 22 * GIB
  assert [record.getMessage() for record in caplog.records] == [
    "GPU:0, GPU:1: tfplace has no data sheet, so it measured NVIDIA A10G: 31"
    " TFLOPS in fp32, 62 TFLOPS in fp16, memory of 600 GB/s, 4.0 us per op"
  ]


def test_parts_of_a_measured_card_are_equal(host_of, monkeypatch):
  # The figures of a card are cached, so every part gets the same dict.
  monkeypatch.setattr(gpus, "measured_card", lambda *_: (A10G, 4.0))
  host_of(("NVIDIA A10G", (8, 6), [11, 11]))
  devices = local_cluster().devices[:2]
  # Each has half of the 160 cores.
  assert [d.extra["hardware"]["num_cores"] for d in devices] == [80, 80]


def test_a_card_without_capability_is_refused(host_of):
  host_of(("Radeon", None, [8, 8]))
  with pytest.raises(MeasurementError, match=r"'Radeon'.*cluster file"):
    local_cluster()
  # A cluster file describes it, so nothing is asked of it.
  names = [f"{PREFIX}GPU:{i}" for i in range(2)]
  assert "share this machine's GPU" in shared_note(names)


def test_measuring_a_device_describes_it(monkeypatch):
  # On the CPU, with matrices and a copy that take little time there.
  monkeypatch.setattr(gpus, "_SIDE", 256)
  monkeypatch.setattr(gpus, "_COPIED_BYTES", 1 << 20)
  monkeypatch.setattr(gpus, "_TIMED_S", 0.01)
  tf.random.set_seed(0)
  drawn = float(tf.random.uniform(()))
  tf.random.set_seed(0)
  hardware, launch_us = gpus.measured_card.__wrapped__(
    f"{PREFIX}CPU:0", "A card", "8.0"
  )
  found = gpu_hardware("d", hardware)
  assert set(found.peak_flops_per_us) == {"fp32", "tf32", "fp16", "bf16"}
  assert found.peak_flops_per_us["fp32"] == pytest.approx(
    1e3 * hardware["peak_gflops"]["fp32"]
  )
  # From 0.1 to 1,000 GFLOP/s and GB/s, and at most a millisecond per op.
  assert 1e2 < found.peak_flops_per_us["fp32"] < 1e7
  assert 1e2 < found.bandwidth_bytes_per_us < 1e6
  assert 0 < launch_us < 1e3
  assert float(tf.random.uniform(())) == drawn  # The user's state is kept.
  assert tf.config.experimental.tensor_float_32_execution_enabled()


@pytest.mark.parametrize("run_s", [1e-4, 0.01, 0.05])
def test_a_card_is_measured_for_two_seconds(run_s, monkeypatch):
  passed, value = [0.0], tf.zeros(())

  def run():
    passed[0] += run_s
    return value

  clock = SimpleNamespace(perf_counter=lambda: passed[0])
  monkeypatch.setattr(gpus, "time", clock)
  figures = len(gpus._PRECISIONS) + 2  # And a copy, and launches.
  for _ in range(figures):
    assert gpus._time_us(run) == pytest.approx(1e6 * run_s)
  assert passed[0] < 2.0


@pytest.mark.parametrize(
  ("architecture", "multiprocessors"),
  [("6.0", 200), ("6.1", 100), ("7.5", 200), ("8.0", 200), ("8.9", 100)],
)
def test_multiprocessors_have_the_lanes_of_their_capability(
  architecture, multiprocessors, monkeypatch
):
  # The time of a product at 200 x 64 lanes x 2 x 1.5 GHz.
  us = 2e-3 * gpus._SIDE**3 / (200 * 64 * 2 * 1.5)
  monkeypatch.setattr(gpus, "_product_us", lambda *_: us)
  for name in ("_copy_us", "_launch_us"):
    monkeypatch.setattr(gpus, name, lambda _: 200.0)
  hardware, _ = gpus.measured_card.__wrapped__("d", "A card", architecture)
  assert hardware["num_cores"] == 200
  assert gpu_hardware("d", hardware).multiprocessors == multiprocessors


def test_a_card_without_memory_to_measure_it_is_refused(monkeypatch):
  def full(*_):
    raise tf.errors.ResourceExhaustedError(None, None, "OOM")

  monkeypatch.setattr(gpus, "_product_us", full)
  with pytest.raises(MeasurementError, match=r"d lacks .*cluster file"):
    gpus.measured_card.__wrapped__("d", "A card", "8.0")
