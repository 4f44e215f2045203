"""Published figures of GPUs: the data sheets behind the cluster presets."""

import dataclasses
from typing import Any

from tfplace.core.gpu_hardware import lanes_per_core

_GIB, _MIB = 2**30, 2**20


@dataclasses.dataclass(frozen=True)
class GpuModel:
  """Published figures of one GPU.

  Attributes:
    model: its name.
    memory_bytes: capacity as sold (GiB of the data sheet).
    multiprocessors: streaming multiprocessors.
    cuda_cores: single-precision lanes.
    frequency_mhz: the boost clock of the data sheet's single-precision peak.
    bandwidth_bytes_per_us: memory bandwidth.
    architecture: compute capability.
    host: key of `presets.HOSTS`.
    network: key of `hosts.NETWORKS`.
    nvlink_bytes_per_us: one way, of one NVLink; 0 where it has none.
    nvlinks: number of NVLinks.
    nvswitch: whether all NVLinks go into a switch.
    tf32_tflops: dense peak of the tensor cores; 0 where they lack it.
    fp16_tflops: dense peak of the tensor cores, with sums in float32; 0 where
      there are none.
    bf16_tflops: dense peak of the tensor cores; 0 where they lack it.
    l2_mib: size of the L2 cache.
    power_watts: power limit of the board, or of this GPU's part of it.
    memory_type: "gddr" or "hbm".
    source: where the figures are from.
  """

  model: str
  memory_bytes: int
  multiprocessors: int
  cuda_cores: int
  frequency_mhz: int
  bandwidth_bytes_per_us: float
  architecture: float
  host: str
  network: str
  nvlink_bytes_per_us: float
  nvlinks: int
  nvswitch: bool
  tf32_tflops: float
  fp16_tflops: float
  bf16_tflops: float
  l2_mib: float
  power_watts: float
  memory_type: str
  source: str

  @property
  def peak_gflops(self) -> float:
    """Single precision, a multiply-add as two."""
    return 2e-3 * self.cuda_cores * self.frequency_mhz


_V100_SXM2 = GpuModel(
  "Tesla V100-SXM2", 16 * _GIB, 80, 5120, 1530, 900000.0,
  7.0, "dgx-1", "dgx-1", 23950.0, 6, False, 0.0, 125.0, 0.0, 6, 300, "hbm",
  "NVIDIA Tesla V100 data sheet: 16 GB, 900 GB/s, 15.7 TFLOPS, 125 with "
  "tensor cores, boost 1530 MHz, 300 W; NVLink: 47.9 GB/s of two links "
  "measured on a PowerEdge C4130 (Dell); L2: Volta white paper",
)  # fmt: skip
_A100_SXM4 = GpuModel(
  "A100-SXM4-40GB", 40 * _GIB, 108, 6912, 1410, 1555000.0,
  8.0, "dgx-a100", "dgx-a100", 25000.0, 12, True,
  156.0, 312.0, 312.0, 40, 400, "hbm",
  "NVIDIA A100 white paper: 40 GB, 1555 GB/s, 19.5 TFLOPS (FP32, no tensor "
  "cores), 156 TF32, 312 FP16 and BF16, boost 1410 MHz, L2 of 40 MB, 400 W, "
  "12 NVLinks of 25 GB/s each way",
)  # fmt: skip

GPUS = {
  "k80": GpuModel(
    "Tesla K80 (one of its two GK210)", 12 * _GIB, 13, 2496, 875, 240000.0,
    3.7, "dgx-1", "cloud", 0.0, 0, False, 0.0, 0.0, 0.0, 1.5, 150, "gddr",
    "NVIDIA Tesla K80 board specification BD-07317-001: 24 GB, 480 GB/s, "
    "8.73 TFLOPS and 4992 cores for two GPUs, boost to 875 MHz, 300 W",
  ),
  "p4": GpuModel(
    "Tesla P4", 8 * _GIB, 20, 2560, 1063, 192000.0,
    6.1, "dgx-1", "cloud", 0.0, 0, False, 0.0, 0.0, 0.0, 2, 75, "gddr",
    "NVIDIA Tesla P4 data sheet: 8 GB, 192 GB/s, 5.5 TFLOPS, 2560 cores, 75 W",
  ),
  "p100": GpuModel(
    "Tesla P100", 16 * _GIB, 56, 3584, 1303, 732000.0,
    6.0, "dgx-1", "cloud", 18310.0, 4, False, 0.0, 0.0, 0.0, 4, 250, "hbm",
    "NVIDIA Tesla P100 PCIe data sheet: 16 GB, 732 GB/s, 9.3 TFLOPS, boost "
    "1303 MHz, 250 W; NVLink: 18.31 GB/s measured on a PowerEdge C4130 (Dell "
    "HPC); L2: Pascal white paper",
  ),
  "v100": _V100_SXM2,
  "v100-32gb": dataclasses.replace(
    _V100_SXM2, model="Tesla V100-SXM2-32GB", memory_bytes=32 * _GIB
  ),
  "v100-pcie": dataclasses.replace(
    _V100_SXM2, model="Tesla V100-PCIE", frequency_mhz=1380, network="cloud",
    nvlink_bytes_per_us=0.0, nvlinks=0, fp16_tflops=112.0, power_watts=250,
    source="NVIDIA Tesla V100 data sheet: 16 GB, 900 GB/s, 14 TFLOPS, 112 with "
    "tensor cores, boost 1380 MHz, 250 W; L2: Volta white paper",
  ),
  "t4": GpuModel(
    "T4", 16 * _GIB, 40, 2560, 1590, 320000.0,
    7.5, "dgx-1", "cloud", 0.0, 0, False, 0.0, 65.0, 0.0, 4, 70, "gddr",
    "NVIDIA T4 data sheet: 16 GB, 320 GB/s, 8.1 TFLOPS, 65 with tensor cores, "
    "2560 cores, 70 W; boost and L2: Turing white paper",
  ),
  "a100": _A100_SXM4,
  "a100-80gb": dataclasses.replace(
    _A100_SXM4, model="A100-SXM4-80GB", memory_bytes=80 * _GIB,
    bandwidth_bytes_per_us=2039000.0,
    source="NVIDIA A100 data sheet: as the A100-SXM4-40GB, with 80 GB of 2039 "
    "GB/s",
  ),
  "a100-pcie": dataclasses.replace(
    _A100_SXM4, model="A100-PCIE-40GB", network="cloud",
    nvlink_bytes_per_us=0.0, nvlinks=0, nvswitch=False, power_watts=250,
    source="NVIDIA A100 PCIe product brief: 40 GB, 1555 GB/s, peaks of the "
    "A100-SXM4, 250 W",
  ),
  "a10": GpuModel(
    "A10", 24 * _GIB, 72, 9216, 1695, 600000.0,
    8.6, "dgx-a100", "cloud", 0.0, 0, False,
    62.5, 125.0, 125.0, 6, 150, "gddr",
    "NVIDIA A10 data sheet: 24 GB, 600 GB/s, 31.2 TFLOPS, 62.5 TF32, 125 FP16 "
    "and BF16, 150 W; cores, boost and L2: GA102 white paper",
  ),
  "l4": GpuModel(
    "L4", 24 * _GIB, 58, 7424, 2040, 300000.0,
    8.9, "dgx-a100", "cloud", 0.0, 0, False,
    60.0, 121.0, 121.0, 48, 72, "gddr",
    "NVIDIA L4 data sheet: 24 GB, 300 GB/s, 30.3 TFLOPS, 120 TF32 and 242 FP16 "
    "and BF16 with sparsity, 72 W; cores, boost and L2: Ada white paper",
  ),
  "h100": GpuModel(
    "H100-SXM5-80GB", 80 * _GIB, 132, 16896, 1980, 3350000.0,
    9.0, "dgx-h100", "dgx-h100", 25000.0, 18, True,
    494.7, 989.4, 989.4, 50, 700, "hbm",
    "NVIDIA H100 data sheet: 80 GB, 3.35 TB/s, 67 TFLOPS (FP32, no tensor "
    "cores), 989 TF32 and 1979 FP16 and BF16 with sparsity, boost 1980 MHz, "
    "700 W, 18 NVLinks of 25 GB/s each way; L2: Hopper white paper",
  ),
  "h100-pcie": GpuModel(
    "H100-PCIE-80GB", 80 * _GIB, 114, 14592, 1755, 2039000.0,
    9.0, "dgx-h100", "cloud", 0.0, 0, False,
    378.0, 756.0, 756.0, 50, 350, "hbm",
    "NVIDIA H100 PCIe data sheet: 80 GB, 2 TB/s, 51 TFLOPS (FP32, no tensor "
    "cores), 756 TF32 and 1513 FP16 and BF16 with sparsity, 350 W; "
    "multiprocessors, boost and L2: Hopper white paper",
  ),
}  # fmt: skip


def gpu_description(gpu: GpuModel) -> dict[str, Any]:
  """A GPU as a device's `hardware`: MHz, KB/s, bytes, GFLOP/s, watts.

  The fields that Grappler knows come first. It derives the peak from
  `num_cores` multiprocessors of 192 lanes (capability 3) or 64 (6 and later).
  The multiprocessors of some have 128 lanes, so that they are described as
  twice as many: the peak is right.
  """
  peaks = {
    "fp32": gpu.peak_gflops,
    "tf32": gpu.tf32_tflops * 1e3,
    "fp16": gpu.fp16_tflops * 1e3,
    "bf16": gpu.bf16_tflops * 1e3,
  }
  return {
    "type": "GPU",
    "vendor": "NVIDIA",
    "model": gpu.model,
    "frequency": gpu.frequency_mhz,
    "num_cores": gpu.cuda_cores // lanes_per_core(gpu.architecture),
    "bandwidth": int(gpu.bandwidth_bytes_per_us * 1e3),
    "memory_size": gpu.memory_bytes,
    "l2_cache_size": int(gpu.l2_mib * _MIB),
    "environment": {"architecture": str(gpu.architecture)},
    "multiprocessors": gpu.multiprocessors,
    "peak_gflops": {name: peak for name, peak in peaks.items() if peak},
    "power_watts": gpu.power_watts,
    "memory_type": gpu.memory_type,
  }
