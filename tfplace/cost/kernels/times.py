"""Times of kernels on one GPU: each class and precision by its own model."""

from collections.abc import Sequence

import numpy as np

from tfplace.cost.kernels import convolution, gemm, recurrent
from tfplace.cost.kernels.ops import CONVOLUTIONS, Kernel, stacked
from tfplace.cost.kernels.parameters import KernelParameters
from tfplace.cost.kernels.rates import memory_us, rates
from tfplace.hardware.gpu_hardware import GpuHardware

# Instructions that compute an index, as floating-point operations of the peak.
# By `Tile` of GroupNormalization on an H200 (benchmarks/results/gpu).
_FLOPS_PER_INDEX = 64.0
# A term of a serial sum, by `Sum` of the same step: the latency of a load.
_TERM_US = 0.1


def times_us(
  kernels: Sequence[Kernel], gpu: GpuHardware, parameters: KernelParameters
) -> np.ndarray:
  """Time of each kernel.

  Returns:
    [num_kernels] microseconds, without launching them.
  """
  groups: dict[tuple[str, str], list[int]] = {}
  for i, kernel in enumerate(kernels):
    groups.setdefault((kernel.name, kernel.precision), []).append(i)
  result = np.zeros(len(kernels))
  for (name, precision), members in groups.items():
    sizes = stacked([kernels[i] for i in members])
    result[members] = _of_class(name, precision, sizes, gpu, parameters)
  return result


def _of_class(
  name: str,
  precision: str,
  sizes: np.ndarray,
  gpu: GpuHardware,
  parameters: KernelParameters,
) -> np.ndarray:
  """[n] microseconds of kernels of one class and precision."""
  of_gpu = rates(gpu, precision, parameters.limits)
  product = parameters.tensor if of_gpu.tensor else parameters.matmul
  if name in ("matmul", "batch_matmul"):
    if name == "batch_matmul" and not of_gpu.tensor:
      product = parameters.batch_matmul
    return gemm.times_us(sizes, of_gpu, product)
  if name in CONVOLUTIONS:
    shapes = convolution.Shapes(*sizes)
    return convolution.times_us(
      name, shapes, of_gpu, parameters.convolution, product
    )
  if name == "recurrent":
    return recurrent.times_us(recurrent.Layers(*sizes), of_gpu, product)
  num_bytes, indices, terms = sizes
  index_us = _FLOPS_PER_INDEX * indices / gpu.peak_flops_per_us["fp32"]
  moved_us = memory_us(num_bytes, of_gpu, parameters.memory[name]) + index_us
  return np.maximum(moved_us, _TERM_US * terms)
