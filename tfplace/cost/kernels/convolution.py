"""Times of convolutions: the fastest of implicit GEMM and Winograd.

Winograd needs 2.25 (F(2x2, 3x3)) or 4 times (F(4x4, 3x3)) fewer multiplications
(Lavin and Gray, CVPR 2016); libraries have it on every card, but not on tensor
cores. Fitted to forward fp32 3x3 of stride 1; the rest is
extrapolated.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from tfplace.cost.kernels import correction, gemm
from tfplace.cost.kernels.correction import Forest, fullness
from tfplace.cost.kernels.rates import Rates

FILTER = 3  # that Winograd is for
OUTPUT_TILES = (2, 4)  # of F(2x2, 3x3) and F(4x4, 3x3)
# Convolutions over products of the same shape, and gradients by the input of a
# strided convolution over the forward one: by fp32 Wide-ResNets on a V100
# (microsoft/SuperScaler, profiled-time-eurosys) and development steps.
_OVER_PRODUCT = 1.1
_STRIDED = 1.5


@dataclasses.dataclass(frozen=True)
class ConvolutionParameters:
  """Fitted to convolutions.

  Attributes:
    tiles: of implicit GEMM and of the products of Winograd.
    winograd_fill_k: `fill_k` of the products of Winograd.
    winograd_share: throughput of these, over that of implicit GEMM, for each of
      `OUTPUT_TILES`.
    transform: memory traffic of the transforms of F(4x4, 3x3), over what they
      write and read once.
    forest: correction of 3x3 filters of stride 1.
  """

  tiles: gemm.GemmParameters
  winograd_fill_k: float
  winograd_share: tuple[float, float]
  transform: float
  forest: Forest


class Shapes(NamedTuple):
  """Convolutions; each field is an `[n]` array of numbers above 0.

  Attributes:
    batch: images.
    height: of the output.
    width: of the output.
    channels: of the input.
    filters: channels of the output.
    filter_height: of the filter.
    filter_width: of the filter.
    stride: the same in both directions.
    elements: of input and output together.
  """

  batch: np.ndarray
  height: np.ndarray
  width: np.ndarray
  channels: np.ndarray
  filters: np.ndarray
  filter_height: np.ndarray
  filter_width: np.ndarray
  stride: np.ndarray
  elements: np.ndarray

  def part(self, chosen: np.ndarray) -> "Shapes":
    """The chosen ones."""
    return Shapes(*(field[chosen] for field in self))


def times_us(
  name: str,
  shapes: Shapes,
  rates: Rates,
  parameters: ConvolutionParameters,
  product: gemm.GemmParameters,
) -> np.ndarray:
  """Time of each convolution on one GPU.

  Args:
    name: class of the kernels, one of `ops.CONVOLUTIONS`.
    shapes: of the convolutions; a gradient has the shape of the forward one.

  Returns:
    [n] microseconds.
  """
  is_filter_gradient = name == "filter_gradient"
  implicit = _as_products(shapes, is_filter_gradient)
  read = None  # On CUDA cores, patches: so Inception-V3 takes its time.
  if rates.tensor:
    read = shapes.elements
    if not is_filter_gradient:
      weights = shapes.channels * shapes.filters
      weights = weights * shapes.filter_height * shapes.filter_width
      read = read + weights - implicit[1] * implicit[2]
  result = _OVER_PRODUCT * gemm.times_us(implicit, rates, product, read)
  if not rates.tensor:
    chosen = is_winograd(shapes)
    by_winograd = three_by_three_us(shapes.part(chosen), rates, parameters)
    if is_filter_gradient:
      by_winograd = np.minimum(result[chosen], by_winograd)
    result[chosen] = by_winograd
  if name == "input_gradient":
    result = np.where(shapes.stride > 1, _STRIDED * result, result)
  return result


def is_winograd(shapes: Shapes) -> np.ndarray:
  """[n] whether the filter is 3x3 and the stride 1."""
  square = shapes.filter_height == FILTER
  square &= shapes.filter_width == FILTER
  return square & (shapes.stride == 1)


def three_by_three_us(
  shapes: Shapes, rates: Rates, parameters: ConvolutionParameters
) -> np.ndarray:
  """[n] microseconds of 3x3 convolutions of stride 1."""
  factor = parameters.forest.factor(details(shapes))
  return analytic_us(shapes, rates, parameters) * factor


def analytic_us(
  shapes: Shapes, rates: Rates, parameters: ConvolutionParameters
) -> np.ndarray:
  """[n] the time of 3x3 convolutions before its correction."""
  area = shapes.filter_height * shapes.filter_width
  weights = shapes.channels * shapes.filters
  traffic = (shapes.elements + weights * area) * rates.element_bytes
  best_us = gemm.combined(
    _tiled_us(
      np.ones_like(area),
      shapes.batch * shapes.height * shapes.width,
      shapes.filters,
      shapes.channels * area,
      rates,
      parameters.tiles,
    ),
    traffic / rates.bytes_per_us,
    parameters.tiles.overlap,
  )
  for tile, share in zip(OUTPUT_TILES, parameters.winograd_share, strict=True):
    time_us = _winograd_us(shapes, traffic, tile, share, rates, parameters)
    best_us = np.minimum(best_us, time_us)
  return best_us


def _winograd_us(
  shapes: Shapes,
  traffic: np.ndarray,
  tile: int,
  share: float,
  rates: Rates,
  parameters: ConvolutionParameters,
) -> np.ndarray:
  """Products of the transformed tiles, one for each of their elements."""
  points = float((tile + FILTER - 1) ** 2)
  count = np.ceil(shapes.height / tile) * np.ceil(shapes.width / tile)
  count = count * shapes.batch
  weights = shapes.channels * shapes.filters
  products = _tiled_us(
    np.full_like(count, points),
    count,
    shapes.filters,
    shapes.channels,
    rates,
    dataclasses.replace(parameters.tiles, fill_k=parameters.winograd_fill_k),
  )
  moved = points * weights * rates.element_bytes
  if tile == OUTPUT_TILES[0]:  # one fused kernel
    memory = traffic + moved
  else:
    images = points * count * (shapes.channels + shapes.filters)
    whole = 2 * (images * rates.element_bytes + moved)
    memory = traffic + parameters.transform * whole
  return gemm.combined(
    products / share, memory / rates.bytes_per_us, parameters.tiles.overlap
  )


def _tiled_us(
  batch: np.ndarray,
  m: np.ndarray,
  n: np.ndarray,
  k: np.ndarray,
  rates: Rates,
  parameters: gemm.GemmParameters,
) -> np.ndarray:
  """[n] compute time of products whose traffic is counted elsewhere."""
  best = np.full(m.shape, np.inf)
  for tile in gemm.TILES:
    blocks = np.ceil(m / tile[0]) * np.ceil(n / tile[1]) * batch
    tile_us = gemm.compute_us(blocks, tile, k, rates, parameters)
    best = np.minimum(best, tile_us)
  return best


def _as_products(shapes: Shapes, is_filter_gradient: bool) -> np.ndarray:
  """[4, n] the matrix products that convolutions are.

  Images and pixels are rows of the forward product. They are what the gradient
  of the filter sums over.
  """
  pixels = shapes.batch * shapes.height * shapes.width
  patch = shapes.channels * shapes.filter_height * shapes.filter_width
  sizes = pixels, shapes.filters, patch
  if is_filter_gradient:
    sizes = shapes.filters, patch, pixels
  return np.stack([np.ones_like(pixels), *sizes])


def details(shapes: Shapes) -> np.ndarray:
  """[n, num_details] of the correction's forest.

  No column tells of the GPU: with five of them measured, trees would tell the
  cards apart, and err more on others.
  """
  batch, height, width, channels, filters, *_ = shapes
  side = np.sqrt(height * width)
  sizes = (batch, side, channels, filters, batch * height * width)
  blocks = np.ceil(height / 4) * np.ceil(width / 4) * batch
  columns = correction.details(sizes, (channels, filters, side, blocks))
  columns += [fullness(side, 2), fullness(side, 4)]
  return np.stack(columns, axis=-1)
