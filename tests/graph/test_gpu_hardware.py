"""Descriptions of GPUs: precisions, defaults by capability, and bad fields."""

import pytest

from tfplace.errors import ProblemError
from tfplace.hardware.gpu_hardware import gpu_hardware
from tfplace.hardware.hardware import GPUS, find_gpu

# name: GiB and GB/s of its memory, TFLOPS in fp32, TF32 and fp16 with tensor
# cores, multiprocessors, watts: the data sheets again, typed a second time.
DATA_SHEETS = {
  "k80": (12, 240, 4.37, 0, 0, 13, 150),
  "p4": (8, 192, 5.5, 0, 0, 20, 75),
  "p100": (16, 732, 9.3, 0, 0, 56, 250),
  "v100": (16, 900, 15.7, 0, 125, 80, 300),
  "v100-32gb": (32, 900, 15.7, 0, 125, 80, 300),
  "v100-pcie": (16, 900, 14.0, 0, 112, 80, 250),
  "t4": (16, 320, 8.1, 0, 65, 40, 70),
  "a100": (40, 1555, 19.5, 156, 312, 108, 400),
  "a100-80gb": (80, 2039, 19.5, 156, 312, 108, 400),
  "a100-pcie": (40, 1555, 19.5, 156, 312, 108, 250),
  "a100-80gb-pcie": (80, 1935, 19.5, 156, 312, 108, 300),
  "a10": (24, 600, 31.2, 62.5, 125, 72, 150),
  "l4": (24, 300, 30.3, 60, 121, 58, 72),
  "h100": (80, 3350, 67, 495, 990, 132, 700),
  "h100-pcie": (80, 2039, 51, 378, 756, 114, 350),
  "p40": (24, 346, 11.76, 0, 0, 30, 250),
  "rtx-2080ti": (11, 616, 13.4, 0, 53.8, 68, 250),
  "a30": (24, 933, 10.3, 82, 165, 56, 165),
  "a40": (48, 696, 37.4, 74.8, 149.7, 84, 300),
  "rtx-a6000": (48, 768, 38.7, 77.4, 154.8, 84, 300),
  "rtx-3090": (24, 936, 35.6, 35.6, 71, 82, 350),
  "l40": (48, 864, 90.5, 90.5, 181, 142, 300),
  "l40s": (48, 864, 91.6, 183, 362, 142, 350),
  "rtx-4090": (24, 1008, 82.6, 82.6, 165.2, 128, 450),
  "h200": (141, 4800, 67, 495, 990, 132, 700),
  "gh200": (96, 4000, 67, 495, 990, 132, 900),
  "b200": (180, 8000, 75, 1125, 2250, 148, 1000),
  "rtx-5090": (32, 1792, 104.8, 104.8, 209.5, 170, 575),
}
# An RTX 3090 as a file would describe it.
CARD = {
  "type": "GPU",
  "environment": {"architecture": "8.6"},
  "multiprocessors": 82,
  "bandwidth": 936_000_000,
  "peak_gflops": {"fp32": 35600, "tf32": 35600, "fp16": 71000},
}


@pytest.mark.parametrize("name", GPUS)
def test_gpus_of_presets_are_those_of_their_data_sheets(name):
  gib, gb_per_s, fp32, tf32, fp16, multiprocessors, watts = DATA_SHEETS[name]
  hardware = GPUS[name].hardware
  found = gpu_hardware(name, hardware)
  peaks = found.peak_flops_per_us
  assert GPUS[name].memory_bytes == gib * 2**30
  assert found.bandwidth_bytes_per_us == gb_per_s * 1e3
  assert peaks["fp32"] == pytest.approx(fp32 * 1e6, rel=0.012)
  assert peaks.get("tf32", 0) == pytest.approx(tf32 * 1e6, rel=0.01)
  assert peaks.get("fp16", 0) == pytest.approx(fp16 * 1e6, rel=0.01)
  assert found.multiprocessors == multiprocessors
  assert found.power_watts == watts
  # Grappler computes a GPU's peak (op_level_cost_estimator.cc).
  lanes = 192 if found.architecture < 4 else 64
  by_grappler = 2 * hardware["num_cores"] * hardware["frequency"] * lanes
  assert by_grappler == pytest.approx(fp32 * 1e6, rel=0.012)


def test_a_card_is_described_from_its_data_sheet():
  found = gpu_hardware("d", CARD)
  assert found.peak_flops_per_us == {
    "fp32": 35.6e6,
    "tf32": 35.6e6,
    "fp16": 71e6,
  }
  assert found.bandwidth_bytes_per_us == 936_000
  # 936 GB/s is above what GDDR6 cards of servers have.
  assert found.memory_type == "hbm"
  assert (
    gpu_hardware("d", {**CARD, "memory_type": "gddr"}).memory_type == "gddr"
  )


def test_tensor_peaks_follow_from_the_capability():
  described = {
    "environment": {"architecture": "8.0"},
    "num_cores": 108,
    "frequency": 1410,
    "bandwidth": 1_555_000_000,
  }
  peaks = gpu_hardware("d", described).peak_flops_per_us
  fp32 = 2 * 108 * 64 * 1410  # a multiply-add of each lane and clock
  assert peaks["fp32"] == pytest.approx(fp32)
  assert peaks["tf32"] == pytest.approx(8 * fp32)
  assert peaks["fp16"] == pytest.approx(16 * fp32)
  described["environment"] = {"architecture": "6.1"}
  assert set(gpu_hardware("d", described).peak_flops_per_us) == {"fp32"}


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"peak_gflops": {"fp32": 1.0, "fp8": 2.0}},
      "unknown precision 'fp8'; choose from fp64, fp32, tf32, fp16, bf16",
    ),
    ({"peak_gflops": {"fp32": -1}}, "fp32 .* above 0, not -1"),
    ({"peak_gflops": 5}, "peak_gflops .* is 5; it must be an object"),
    ({"bandwidth": 936}, "bandwidth .* 936 KB/s, which no GPU has; give KB/s"),
    ({"bandwidth": 936e9}, r"bandwidth .* 9\.36e\+11 KB/s, which no GPU has"),
    ({"power_watts": "many"}, "power_watts .* above 0, not 'many'"),
    ({"multiprocessors": 0}, "multiprocessors .* above 0, not 0"),
    ({"memory_type": "hbm9"}, "memory_type .* 'hbm9'; choose from gddr, hbm"),
    (
      {"environment": {"architecture": "new"}},
      "architecture .* 'new'; it must",
    ),
  ],
)
def test_a_bad_value_is_refused_by_field(changes, message):
  described = {"frequency": 1000, "num_cores": 10, **CARD, **changes}
  with pytest.raises(ProblemError, match=f"device 'd': .*{message}"):
    gpu_hardware("d", described)


@pytest.mark.parametrize(
  ("product", "architecture", "expected"),
  [
    # Names of `nvidia-smi`.
    ("Tesla V100-SXM2-16GB", "7.0", "v100"),
    ("Tesla V100-SXM2-32GB", "7.0", "v100-32gb"),
    ("NVIDIA A100-SXM4-80GB", "8.0", "a100-80gb"),
    ("NVIDIA H100 80GB HBM3", "9.0", "h100"),
    ("NVIDIA H200", "9.0", "h200"),
    ("NVIDIA GeForce RTX 2080 Ti", "7.5", "rtx-2080ti"),
    ("NVIDIA L40S", "8.9", "l40s"),
    ("NVIDIA L40", "8.9", "l40"),
    ("Tesla K80", "3.7", "k80"),
    ("Tesla P4", "6.1", "p4"),
    ("Tesla P40", "6.1", "p40"),
    ("Tesla P100-PCIE-16GB", "6.0", "p100"),
    ("Tesla P100-SXM2-16GB", "6.0", "p100"),
    ("Tesla V100-SXM3-32GB", "7.0", "v100-32gb"),
    ("Tesla V100-PCIE-16GB", "7.0", "v100-pcie"),
    ("Tesla V100-PCIE-32GB", "7.0", "v100-pcie"),
    ("Tesla T4", "7.5", "t4"),
    ("A100-SXM4-40GB", "8.0", "a100"),
    ("NVIDIA A100-PCIE-40GB", "8.0", "a100-pcie"),
    ("A100-SXM-80GB", "8.0", "a100-80gb"),
    ("NVIDIA A100 80GB PCIe", "8.0", "a100-80gb-pcie"),
    ("NVIDIA A10", "8.6", "a10"),
    ("NVIDIA A30", "8.0", "a30"),
    ("NVIDIA A40", "8.6", "a40"),
    ("NVIDIA RTX A6000", "8.6", "rtx-a6000"),
    ("NVIDIA GeForce RTX 3090", "8.6", "rtx-3090"),
    ("NVIDIA GeForce RTX 4090", "8.9", "rtx-4090"),
    ("NVIDIA L4", "8.9", "l4"),
    ("NVIDIA H100 PCIe", "9.0", "h100-pcie"),
    ("NVIDIA GH200 480GB", "9.0", "gh200"),
    ("NVIDIA B200", "10.0", "b200"),
    ("NVIDIA GeForce RTX 5090", "12.0", "rtx-5090"),
    # A part of a card, other cards, and a name with another capability.
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "8.0", None),
    ("NVIDIA A10G", "8.6", None),
    ("GRID A100-10C", "8.0", None),
    ("NVIDIA H100 NVL", "9.0", None),
    ("NVIDIA H20", "9.0", None),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", "8.9", None),
    ("NVIDIA GeForce RTX 3090 Ti", "8.6", None),
    ("NVIDIA H200", "8.0", None),
  ],
)
def test_a_card_is_found_by_product_and_capability(
  product, architecture, expected
):
  assert find_gpu(product, architecture) == expected


def test_no_product_belongs_to_two_cards():
  names = [name for gpu in GPUS.values() for name in gpu.names]
  assert len(set(names)) == len(names)
