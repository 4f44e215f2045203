import subprocess
import sys

import numpy as np
import pytest

from tfplace.core import presets
from tfplace.errors import FormatError

# name: GPU memory GiB, single-precision peak in TFLOPS, memory GB/s: the
# data sheets again, typed a second time.
DATA_SHEETS = {
  "k80x1": (12, 4.37, 240),
  "p100x1": (16, 9.34, 732),
  "v100x1": (16, 15.7, 900),
  "a100x1": (40, 19.5, 1555),
  "h100x1": (80, 66.9, 3350),
}


def _device(kind, index):
  return f"/job:localhost/replica:0/task:0/device:{kind}:{index}"


@pytest.mark.parametrize("name", DATA_SHEETS)
def test_described_hardware_has_the_peak_of_its_data_sheet(name):
  gpu = presets.cluster_preset(name).devices[0]
  gib, tflops, gb_per_s = DATA_SHEETS[name]
  hardware = gpu.extra["hardware"]
  # How Grappler computes a GPU's peak (op_level_cost_estimator.cc).
  lanes = 192 if hardware["environment"]["architecture"] < "4" else 64
  peak = hardware["num_cores"] * hardware["frequency"] * 1e-6 * lanes * 2
  assert peak == pytest.approx(tflops, rel=5e-3)
  assert hardware["bandwidth"] == gb_per_s * 10**6
  assert gpu.memory_bytes == hardware["memory_size"] == gib * 2**30


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("gpu", presets.GPUS)
def test_gpus_come_first_then_one_cpu_and_every_pair_is_linked(gpu, count):
  cluster = presets.cluster_preset(f"{gpu}x{count}")
  assert [d.name for d in cluster.devices] == [
    *(_device("GPU", i) for i in range(count)),
    _device("CPU", 0),
  ]
  assert [d.kind for d in cluster.devices] == ["GPU"] * count + ["CPU"]
  assert (cluster.op_overhead_us == 5.7).all()
  linked = cluster.channel >= 0
  assert (linked == ~np.eye(count + 1, dtype=bool)).all()


def test_k80s_are_placetos_simulator():
  cluster = presets.cluster_preset("k80x2")
  for link in cluster.links:
    assert link.bandwidth_bytes_per_us == 7600.0
    assert (link.latency_us, link.gap_us) == (0.0, 25.0)
  # One channel per source device.
  off = ~np.eye(3, dtype=bool)
  rows = [set(cluster.channel[i][off[i]]) for i in range(3)]
  assert all(len(row) == 1 for row in rows)
  assert cluster.num_channels == 3


def test_pcie_gpus_share_their_switch_to_the_host():
  cluster = presets.cluster_preset("p100x4")
  channel, cpu = cluster.channel, 4
  assert np.nanmax(cluster.bandwidth) == np.nanmin(cluster.bandwidth) == 12000.0
  assert channel[0, cpu] == channel[1, cpu] == channel[1, 2]
  assert channel[0, cpu] != channel[2, cpu]
  assert channel[cpu, 0] == channel[cpu, 1] != channel[cpu, 2]
  assert channel[0, 1] not in (channel[1, 0], channel[0, cpu])


def test_nvlink_figures():
  bandwidth = presets.cluster_preset("v100x4").bandwidth
  # Two links of 23.95 GB/s between each pair; the CPU stays on PCIe 3.0.
  assert bandwidth[0, 1] == bandwidth[3, 0] == 47900.0
  assert bandwidth[0, 4] == bandwidth[4, 0] == 12000.0
  a100 = presets.cluster_preset("a100x8")
  assert a100.bandwidth[0, 7] == 12 * 25000.0
  assert a100.channel[0, 1] == a100.channel[0, 7] != a100.channel[1, 0]
  assert presets.cluster_preset("h100x2").bandwidth[0, 1] == 18 * 25000.0
  assert presets.cluster_preset("p100x2-nvlink").bandwidth[0, 1] == 18310.0
  assert presets.cluster_preset("v100x2-pcie").bandwidth[0, 1] == 12000.0


def test_cube_mesh_uses_six_links_of_each_gpu_both_ways():
  mesh = np.array(presets.DGX1_NVLINKS)
  assert (mesh == mesh.T).all()
  assert (mesh.sum(axis=1) == 6).all()
  bandwidth = presets.cluster_preset("v100x8").bandwidth
  assert bandwidth[0, 3] == 47900.0
  assert bandwidth[0, 1] == 23950.0
  assert bandwidth[0, 5] == 12000.0  # no NVLink: through the host


@pytest.mark.parametrize(
  "name", ["", "k80", "v100x0", "v100x9", "V100x4", "k90x2", "v100x2-", "x4"]
)
def test_unknown_names_list_the_choices_and_the_form(name):
  with pytest.raises(FormatError, match=r"<gpu>x<count>.*k80.*h100.*1 to 8"):
    presets.cluster_preset(name)


def test_k80_has_no_nvlink():
  with pytest.raises(FormatError, match="k80 has no NVLink"):
    presets.cluster_preset("k80x2-nvlink")


def test_presets_do_not_import_tensorflow():
  code = (
    "import sys; from tfplace.core import presets;"
    "presets.cluster_preset('k80x2');"
    "sys.exit('tensorflow' in sys.modules)"
  )
  subprocess.run([sys.executable, "-c", code], check=True)
