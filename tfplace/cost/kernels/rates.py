"""Sustained rates of a GPU for one precision, as the kernel classes take them.

The power limit bounds FLOPs per joule (see `Limits`), and memory gives a share
of its data-sheet bandwidth, which is all that elementwise kernels, softmax and
normalization depend on.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from tfplace.hardware.gpu_hardware import GpuHardware

_MAXWELL, _VOLTA, _AMPERE = 5.0, 7.0, 8.0  # their compute capabilities
TENSOR_CORES = ("tf32", "fp16", "bf16")
TILE_RATE = 312e6 / 108  # fp16 peak of an A100's multiprocessor, FLOP/us
BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}


@dataclasses.dataclass(frozen=True)
class Limits:
  """Sustained shares of the data-sheet rates of GPUs.

  Attributes:
    flops_per_joule: of fp32 multiply-adds up to compute capability 8.0, in
      GFLOP per joule; fitted together with the GEMM kernels.
    newer_gain: the same of later capabilities, over the above; extrapolated.
    kepler_share: of the peak, before Maxwell; the two development steps on one
      K80 err with it as they do on other cards. Its data sheet bounds it by
      0.43: the base clock over the boost clock (562 and 875 MHz), and the 128
      of 192 lanes that four schedulers feed without dual issue.
    tensor_share: share of the tensor peak that a card sustains whose fp16 peak
      is 1 TFLOP/s for each watt; fitted to A100, H100 and B200.
    tensor_slope: what of it is lost when that ratio doubles.
    tensor_gain: FLOPs per joule of fp16 tensor cores over those of fp32, for
      Volta and Turing; extrapolated.
    bandwidth_share: of the bandwidth, elementwise kernels, HBM since Volta.
    old_bandwidth_share: the same of GDDR memory, and of all before Volta.
  """

  flops_per_joule: float
  newer_gain: float
  kepler_share: float
  tensor_share: float
  tensor_slope: float
  tensor_gain: float
  bandwidth_share: float
  old_bandwidth_share: float


class Rates(NamedTuple):
  """Rates of one GPU, or of the GPUs of many kernels: floats or `[n]` arrays.

  Attributes:
    flops_per_us: sustained, of all multiprocessors.
    peak_flops_per_us: of the data sheet, in the precision of the kernels.
    bytes_per_us: sustained memory bandwidth.
    peak_bytes_per_us: of the data sheet.
    multiprocessors: of the GPU.
    l2_bytes: of the GPU.
    is_old: 1 before Volta, else 0.
    is_modern_memory: 1 with HBM since Volta, else 0.
    power_ratio: log2 of the fp32 peak over what the power limit allows; 0 with
      tensor cores.
    tile_scale: of `half_intensity`: `TILE_RATE` over the fp16 peak of a
      multiprocessor, since faster tensor cores compute larger tiles; at most 1.
    element_bytes: of the kernel's operands.
    tensor: 1 with tensor cores, else 0.
  """

  flops_per_us: Any
  peak_flops_per_us: Any
  bytes_per_us: Any
  peak_bytes_per_us: Any
  multiprocessors: Any
  l2_bytes: Any
  is_old: Any
  is_modern_memory: Any
  power_ratio: Any
  tile_scale: Any
  element_bytes: Any
  tensor: Any


def peak_of(gpu: GpuHardware, precision: str) -> tuple[str, float]:
  """The precision that the GPU computes in for one asked for, and its peak.

  Without tensor cores for it, a precision is computed as fp32; fp64 without a
  described peak runs at half of that rate.
  """
  peaks = gpu.peak_flops_per_us
  if precision in peaks:
    return precision, peaks[precision]
  if precision == "fp64":
    return precision, peaks["fp32"] / 2
  return "fp32", peaks["fp32"]


def rates(gpu: GpuHardware, precision: str, limits: Limits) -> Rates:
  """Returns the sustained rates of a GPU for one precision.

  Args:
    precision: one of `gpu_hardware.PRECISIONS`.
    limits: fitted shares.
  """
  computed, peak = peak_of(gpu, precision)
  tensor = computed in TENSOR_CORES
  per_joule = limits.flops_per_joule * 1e3  # in FLOP per microsecond and watt
  if gpu.architecture > _AMPERE:
    per_joule *= limits.newer_gain
  by_power = gpu.power_watts * per_joule
  ratio = np.log2(gpu.peak_flops_per_us["fp32"] / by_power)
  sustained, tile_scale = min(peak, by_power), 1.0
  if tensor:
    half = gpu.peak_flops_per_us.get("fp16", peak)
    tile_scale = min(1.0, TILE_RATE * gpu.multiprocessors / half)
    # A card of unknown power counts as one of 1 TFLOP/s for each watt.
    per_watt = half / gpu.power_watts * 1e-6 or 1.0
    share = limits.tensor_share - limits.tensor_slope * np.log2(per_watt)
    sustained = peak * float(np.clip(share, 0.0, 1.0))
    if gpu.architecture < _AMPERE:
      sustained = min(sustained, by_power * limits.tensor_gain)
  elif gpu.architecture < _MAXWELL:
    sustained = min(by_power, peak * limits.kepler_share)
  is_old = gpu.architecture < _VOLTA
  is_modern = gpu.memory_type == "hbm" and not is_old
  share = limits.bandwidth_share if is_modern else limits.old_bandwidth_share
  return Rates(
    flops_per_us=sustained,
    peak_flops_per_us=peak,
    bytes_per_us=gpu.bandwidth_bytes_per_us * share,
    peak_bytes_per_us=gpu.bandwidth_bytes_per_us,
    multiprocessors=gpu.multiprocessors,
    l2_bytes=gpu.l2_bytes,
    is_old=float(is_old),
    is_modern_memory=float(is_modern),
    power_ratio=0.0 if tensor else float(np.clip(ratio, -2, 2)),
    tile_scale=tile_scale,
    element_bytes=BYTES[precision],
    tensor=float(tensor),
  )


@dataclasses.dataclass(frozen=True)
class MemoryParameters:
  """Parameters of a class of kernels that memory limits.

  Attributes:
    share: of the sustained bandwidth that large kernels reach.
    latency_us: of the first bytes.
  """

  share: float
  latency_us: float


def memory_us(
  num_bytes: np.ndarray, rates: Rates, parameters: MemoryParameters
) -> np.ndarray:
  """Returns [n] microseconds to read and write [n] bytes; ignores the L2."""
  rate = rates.bytes_per_us * parameters.share
  return parameters.latency_us + num_bytes / rate
