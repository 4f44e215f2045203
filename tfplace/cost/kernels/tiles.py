"""Time of a matrix product computed in tiles, one wave after another.

A wave has one block per multiprocessor, and the last takes as long as a full
one (Habitat, USENIX ATC 2021; NeuSight, ASPLOS 2025). The fastest tile is
taken.
"""

import dataclasses

import numpy as np

from tfplace.cost.kernels.rates import Rates

_SHAPES = ((256, 128), (128, 128), (128, 64), (64, 64), (128, 32), (32, 32),
           (16, 16))  # fmt: skip
TILES = (*_SHAPES, *((n, m) for m, n in _SHAPES if m != n))
SPLITS = (1, 3, 9, 27)


@dataclasses.dataclass(frozen=True)
class TileParameters:
  """Fitted properties of the library's kernels.

  Attributes:
    fill_k: steps of K that a tile spends on prologue and epilogue.
    blocks: tiles per multiprocessor that hide each other's latency.
    fill_power: how fast throughput falls with fewer tiles than that.
    half_intensity: elements of a tile's side at which loads from L2 halve its
      throughput, in fp32.
    unaligned: share of the throughput where rows are not aligned to 16 bytes.
    unaligned_traffic: additional memory traffic there.
    l2_reuse: share of the L2 that holds operands between waves.
    overlap: exponent of the norm that combines compute and memory time.
    old_traffic: growth of memory time with size before Volta.
    split_us: cost of splitting K.
  """

  fill_k: float
  blocks: float
  fill_power: float
  half_intensity: float
  unaligned: float
  unaligned_traffic: float
  l2_reuse: float
  overlap: float
  old_traffic: float
  split_us: float


def product_us(
  shapes: np.ndarray,
  unaligned: np.ndarray,
  rates: Rates,
  parameters: TileParameters,
) -> np.ndarray:
  """Time of the fastest tile of each product.

  Args:
    shapes: [4, n] batch, M, N and K of [M, K] times [K, N].
    unaligned: [n] 1 where rows are not aligned, else 0.

  Returns:
    [n] microseconds.
  """
  best = np.full(shapes.shape[1], np.inf)
  for tile in TILES:
    for split in SPLITS:
      time_us = _tiled_us(shapes, unaligned, rates, parameters, tile, split)
      best = np.minimum(best, time_us)
  return best


def _tiled_us(
  shapes: np.ndarray,
  unaligned: np.ndarray,
  rates: Rates,
  parameters: TileParameters,
  tile: tuple[int, int],
  split: int,
) -> np.ndarray:
  batch, m, n, k = shapes
  tile_m, tile_n = tile
  tiles = np.ceil(m / tile_m) * np.ceil(n / tile_n)
  waves = np.ceil(tiles * batch * split / rates.multiprocessors)
  compute = compute_us(waves, tile, k / split, rates, parameters)
  compute = compute / np.where(unaligned > 0, parameters.unaligned, 1.0)
  # Blocks of one wave read their operands together, and share them in L2.
  at_once = rates.multiprocessors * parameters.blocks
  side = np.sqrt(np.clip(tiles, 1, at_once))
  read = (
    m
    * n
    * k
    * (1 / np.minimum(tile_m * side, m) + 1 / np.minimum(tile_n * side, n))
  )
  least = k * (m + n)
  operand_bytes = rates.element_bytes * least
  missed = operand_bytes / (
    operand_bytes + rates.l2_bytes * parameters.l2_reuse
  )
  traffic = least + np.maximum(read - least, 0.0) * missed
  traffic = traffic * (1 + parameters.unaligned_traffic * unaligned)
  written = m * n * (1.0 if split == 1 else 3.0)
  memory = (traffic + written) * batch * rates.element_bytes
  memory_us = memory / rates.bytes_per_us
  size = (least + m * n) * batch * rates.element_bytes
  grown = parameters.old_traffic * rates.is_old * np.log1p(size / 64e6)
  total = combined(compute, memory_us * (1 + grown), parameters.overlap)
  return total + (parameters.split_us if split > 1 else 0.0)


def compute_us(
  waves: np.ndarray,
  tile: tuple[int, int],
  k: np.ndarray,
  rates: Rates,
  parameters: TileParameters,
) -> np.ndarray:
  """Time of so many waves of tiles, from the multiprocessors alone.

  Args:
    waves: [n] number of waves.
    k: [n] length of the sums.
  """
  tile_m, tile_n = tile
  # A tensor core needs its operands faster, in smaller elements. What that
  # costs against fp32 is in `Limits.tensor_share`.
  intensity = 2 / (1 / tile_m + 1 / tile_n)
  efficiency = intensity / (intensity + parameters.half_intensity)
  steps = np.ceil(k / 8) * 8 + parameters.fill_k
  rate = rates.flops_per_us / rates.multiprocessors * efficiency
  filled = np.minimum(1.0, waves / parameters.blocks) ** parameters.fill_power
  return waves * (2 * tile_m * tile_n) * steps / rate / filled


def combined(one: np.ndarray, other: np.ndarray, power: float) -> np.ndarray:
  """Norm of two times that overlap: of power 1, their sum."""
  longest = np.maximum(np.maximum(one, other), 1e-12)
  parts = (one / longest) ** power + (other / longest) ** power
  return longest * parts ** (1 / power)
