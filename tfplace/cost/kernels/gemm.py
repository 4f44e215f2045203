"""Times of matrix products: `MatMul`, batched products, 1x1 convolutions.

Fitted to fp32 kernels of P4, P100, V100, T4 and A100. Tensor cores follow the
same model with their own peak; that part is extrapolated.
"""

import dataclasses

import numpy as np

from tfplace.cost.kernels import correction, tiles
from tfplace.cost.kernels.correction import Correction, fullness, quadratic
from tfplace.cost.kernels.rates import Rates

_VECTOR_BYTES = 16  # the widest load


@dataclasses.dataclass(frozen=True)
class GemmParameters:
  """Parameters of one class of products: of matrices or of batches."""

  tiles: tiles.TileParameters
  correction: Correction


def times_us(
  shapes: np.ndarray, rates: Rates, parameters: GemmParameters
) -> np.ndarray:
  """Time of each product.

  Args:
    shapes: [4, n] batch, M, N and K of [M, K] times [K, N].

  Returns:
    [n] microseconds.
  """
  factor = parameters.correction.factor(
    features(shapes, rates), details(shapes, rates)
  )
  time_us = analytic_us(shapes, rates, parameters.tiles) * factor
  return np.maximum(time_us, 2 * shapes.prod(axis=0) / rates.peak_flops_per_us)


def analytic_us(
  shapes: np.ndarray, rates: Rates, parameters: tiles.TileParameters
) -> np.ndarray:
  """[n] the time before its correction."""
  unaligned = is_unaligned(shapes, rates)
  return tiles.product_us(shapes, unaligned, rates, parameters)


def is_unaligned(shapes: np.ndarray, rates: Rates) -> np.ndarray:
  """[n] 1 where the rows of an operand are not aligned to 16 bytes, else 0."""
  elements = _VECTOR_BYTES / rates.element_bytes
  _, _, n, k = shapes
  return ((k % elements != 0) | (n % elements != 0)).astype(float)


def _load(
  shapes: np.ndarray, rates: Rates
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns [n] intensity over the GPU's, waves of tiles, and bytes."""
  batch, m, n, k = shapes
  size = batch * (m * k + n * k + m * n) * rates.element_bytes
  balance = rates.fp32_flops_per_us / rates.peak_bytes_per_us
  intensity = 2 * batch * m * n * k / size / balance
  waves = np.ceil(m / 128) * np.ceil(n / 128) * batch / rates.multiprocessors
  return intensity, waves, size


def details(shapes: np.ndarray, rates: Rates) -> np.ndarray:
  """[n, num_details] of the correction's forest."""
  batch, m, n, k = shapes
  sizes = (batch, m, n, k, np.minimum(m, n), m / n)
  columns = correction.details(sizes, (m, n, k))
  columns += correction.machine(*_load(shapes, rates), rates)
  return np.stack(columns, axis=-1)


def features(shapes: np.ndarray, rates: Rates) -> np.ndarray:
  """[n, num_features] of the correction."""
  _, m, n, k = shapes
  intensity, waves, size = _load(shapes, rates)
  narrow = np.minimum(np.minimum(m, n), 1024)
  centered = [
    np.log2(waves) / 4,
    (np.log2(k) - 7) / 3,
    (np.log2(narrow) - 6) / 3,
    np.log2(intensity) / 4,
    np.log2(size / rates.l2_bytes) / 4,
    np.log2(m / n) / 4,
  ]
  z = [np.clip(feature, -2.5, 2.5) for feature in centered]
  is_short = (k <= 128).astype(float)
  columns = [
    *quadratic(centered),
    is_unaligned(shapes, rates),
    ((k % 32 == 0) & (n % 32 == 0) & (m % 32 == 0)).astype(float),
    is_short,
    is_short * z[0],
    fullness(m, 64),
    fullness(n, 64),
    fullness(m, 128),
    fullness(n, 128),
    np.minimum(m, 128) / 128,
    np.minimum(n, 128) / 128,
  ]
  return np.stack(columns, axis=-1)
