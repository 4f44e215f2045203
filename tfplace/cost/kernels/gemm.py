"""Times of matrix products: `MatMul`, batched products, 1x1 convolutions.

A product is computed in tiles, one wave of a block per multiprocessor after
another, and the last wave takes as long as a full one (Habitat, USENIX ATC
2021; NeuSight, ASPLOS 2025). The fastest tile and split of K is taken. A forest
corrects the result.
"""

import dataclasses

import numpy as np

from tfplace.cost.kernels import correction
from tfplace.cost.kernels.correction import Forest
from tfplace.cost.kernels.rates import Rates

_SHAPES = ((256, 256), (256, 128), (128, 128), (128, 64), (64, 64), (64, 32),
           (64, 16), (16, 16))  # fmt: skip
TILES = (*_SHAPES, *((n, m) for m, n in _SHAPES if m != n))
SPLITS = (1, 2, 4, 8, 16)
# Waves of tiles that a multiprocessor computes at once: fewer take as long. All
# fits, of fp32 and of tensor cores, end at this upper bound.
BLOCKS = 6.0
_STEP_K = 32  # of a tile


@dataclasses.dataclass(frozen=True)
class GemmParameters:
  """Fitted properties of the library's kernels of one class.

  Attributes:
    fill_k: steps of K that a tile spends on prologue and epilogue.
    half_intensity: elements of a tile's side at which loads halve its
      throughput; see `Rates.tile_scale`.
    overlap: exponent of the norm that combines compute and memory time.
    split_us: cost of splitting K.
    floor_us: of the smallest product, without its launch.
    l2_reuse: share of the L2 that holds operands between waves.
    old_traffic: growth of memory time with size before Volta.
    forest: correction by `details`.
  """

  fill_k: float
  half_intensity: float
  overlap: float
  split_us: float
  floor_us: float
  l2_reuse: float
  old_traffic: float
  forest: Forest


def times_us(
  shapes: np.ndarray,
  rates: Rates,
  parameters: GemmParameters,
  operands: np.ndarray | None = None,
) -> np.ndarray:
  """Time of each product.

  Args:
    shapes: [4, n] batch, M, N and K of [M, K] times [K, N].
    operands: [n] elements that are read, where a matrix is formed from fewer.

  Returns:
    [n] microseconds.
  """
  factor = parameters.forest.factor(details(shapes, rates))
  time_us = analytic_us(shapes, rates, parameters, operands) * factor
  return np.maximum(time_us, 2 * shapes.prod(axis=0) / rates.peak_flops_per_us)


def analytic_us(
  shapes: np.ndarray,
  rates: Rates,
  parameters: GemmParameters,
  operands: np.ndarray | None = None,
) -> np.ndarray:
  """[n] the time before its correction."""
  batch, m, n, k = shapes
  result = batch * m * n
  if operands is None:
    operands = batch * k * (m + n)
  size = (operands + result) * rates.element_bytes
  grown = 1 + parameters.old_traffic * rates.is_old * np.log1p(size / 64e6)
  per_element = rates.element_bytes / rates.bytes_per_us * grown
  in_l2 = rates.l2_bytes * parameters.l2_reuse / rates.element_bytes
  missed = operands / (operands + in_l2)
  best = np.full(m.shape, np.inf)
  for tile in TILES:
    tiles = np.ceil(m / tile[0]) * np.ceil(n / tile[1])
    # Blocks of one wave read their operands together, and share them in L2.
    side = np.sqrt(np.clip(tiles, 1, rates.multiprocessors))
    columns = 1 / np.minimum(tile[0] * side, m)
    rows = 1 / np.minimum(tile[1] * side, n)
    again = np.maximum(result * k * (columns + rows) - operands, 0.0)
    for split in SPLITS:
      moved = operands + again * missed + result * (1 if split == 1 else 3)
      compute = compute_us(
        tiles * batch * split, tile, k / split, rates, parameters
      )
      time_us = combined(compute, moved * per_element, parameters.overlap)
      time_us = time_us + (parameters.split_us if split > 1 else 0.0)
      best = np.minimum(best, time_us)
  return parameters.floor_us + best


def compute_us(
  blocks: np.ndarray,
  tile: tuple[int, int],
  k: np.ndarray,
  rates: Rates,
  parameters: GemmParameters,
) -> np.ndarray:
  """Time of so many tiles, from the multiprocessors alone.

  Args:
    blocks: [n] number of tiles.
    k: [n] length of the sums.
  """
  tile_m, tile_n = tile
  intensity = 2 / (1 / tile_m + 1 / tile_n)
  half = parameters.half_intensity * rates.tile_scale
  steps = np.ceil(k / _STEP_K) * _STEP_K + parameters.fill_k
  rate = rates.flops_per_us / rates.multiprocessors
  rate = rate * intensity / (intensity + half)
  waves = np.maximum(np.ceil(blocks / rates.multiprocessors), BLOCKS)
  return waves * 2 * tile_m * tile_n * steps / rate


def combined(one: np.ndarray, other: np.ndarray, power: float) -> np.ndarray:
  """Norm of two times that overlap: of power 1, their sum."""
  longest = np.maximum(np.maximum(one, other), 1e-12)
  parts = (one / longest) ** power + (other / longest) ** power
  return longest * parts ** (1 / power)


def details(shapes: np.ndarray, rates: Rates) -> np.ndarray:
  """[n, num_details] of the correction's forest."""
  batch, m, n, k = shapes
  size = batch * (m * k + n * k + m * n) * rates.element_bytes
  balance = rates.peak_flops_per_us / rates.peak_bytes_per_us
  intensity = 2 * batch * m * n * k / size / balance
  waves = np.ceil(m / 128) * np.ceil(n / 128) * batch / rates.multiprocessors
  sizes = (batch, m, n, k, np.minimum(m, n), m / n)
  kinds = (rates.is_old, rates.is_modern_memory, rates.power_ratio)
  columns = [
    *correction.details(sizes, (m, n, k)),
    np.log2(intensity),
    np.log2(waves),
    np.ceil(waves) / waves,
    np.log2(size / rates.l2_bytes),
    *(np.broadcast_to(kind, size.shape) for kind in kinds),
  ]
  return np.stack(columns, axis=-1)
