"""Correction of an analytic time, in dimensionless features.

A quadratic form holds on GPUs that were not measured, and a forest follows the
thresholds of libraries. No feature names a GPU or a model.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from tfplace.cost.kernels.rates import Rates

MOST = 1.0  # of the logarithm: beyond the measured range nothing runs away
RANGE = 2.5  # of a feature, in about standard deviations


@dataclasses.dataclass(frozen=True)
class Forest:
  """Boosted regression trees (Friedman, 2001) whose outputs are added.

  Fitted by LightGBM, only evaluated here.

  A tree with n leaves has n - 1 inner nodes, of which node 0 is the root. A
  child c >= 0 is a node, c < 0 is leaf `-1 - c`.

  Attributes:
    feature: per tree, the feature that each node compares.
    threshold: per tree; values up to it go left.
    left: per tree, the left child of each node.
    right: per tree, the right child of each node.
    value: per tree, the output of each leaf.
  """

  feature: Sequence[Sequence[int]]
  threshold: Sequence[Sequence[float]]
  left: Sequence[Sequence[int]]
  right: Sequence[Sequence[int]]
  value: Sequence[Sequence[float]]

  def predict(self, features: np.ndarray) -> np.ndarray:
    """Returns the [n] sum of all trees.

    Args:
      features: [n, num_features].
    """
    count = len(features)
    feature, threshold, left, right, value = self._tables
    tree = np.arange(len(feature))
    rows = np.arange(count)[:, None]
    node = np.zeros((count, len(tree)), np.int64)
    while (node >= 0).any():
      at = np.maximum(node, 0)
      is_left = features[rows, feature[tree, at]] <= threshold[tree, at]
      child = np.where(is_left, left[tree, at], right[tree, at])
      node = np.where(node >= 0, child, node)
    return value[tree, -1 - node].sum(axis=1)

  @functools.cached_property
  def _tables(self) -> tuple[np.ndarray, ...]:
    """Features, thresholds, children and values, padded to the largest tree."""
    feature, left, right = (
      _padded(rows, np.int64) for rows in (self.feature, self.left, self.right)
    )
    threshold, value = (
      _padded(rows, np.float64) for rows in (self.threshold, self.value)
    )
    return feature, threshold, left, right, value


def _padded(rows: Sequence[Sequence[float]], dtype: type) -> np.ndarray:
  most = max(map(len, rows), default=0)
  table: np.ndarray = np.zeros((len(rows), most), dtype)
  for i, row in enumerate(rows):
    table[i, : len(row)] = row
  return table


@dataclasses.dataclass(frozen=True)
class Correction:
  """Fitted correction of a class.

  Attributes:
    coefficients: of the quadratic form, in the order of the class's features.
    forest: takes the features of `details`; None without one.
  """

  coefficients: Sequence[float]
  forest: Forest | None = None

  def factor(
    self, features: np.ndarray, details: np.ndarray | None = None
  ) -> np.ndarray:
    """Returns the [n] factors of the analytic time.

    Args:
      features: [n, num_features] of the class.
      details: [n, num_details] of the class; required with a forest.
    """
    logarithm = features @ np.asarray(self.coefficients)
    logarithm = np.clip(logarithm, -MOST, MOST)
    if self.forest is not None:
      if details is None:
        raise ValueError("the forest of a correction needs its details")
      logarithm += np.clip(self.forest.predict(details), -MOST, MOST)
    return np.exp(logarithm)


def quadratic(centered: Sequence[np.ndarray]) -> list[np.ndarray]:
  """One, each feature, and each product of two.

  Args:
    centered: features of mean near 0 and deviation near 1; clipped to `RANGE`.
  """
  z = [np.clip(feature, -RANGE, RANGE) for feature in centered]
  products = [z[i] * z[j] for i in range(len(z)) for j in range(i, len(z))]
  return [np.ones_like(z[0]), *z, *products]


def fullness(sizes: np.ndarray, tile: int) -> np.ndarray:
  """Logarithm of the share of whole tiles that a dimension fills."""
  return np.log(sizes / (np.ceil(sizes / tile) * tile))


def details(
  sizes: Sequence[np.ndarray], tiled: Sequence[np.ndarray]
) -> list[np.ndarray]:
  """Columns that tell kernels of a library apart.

  Args:
    sizes: dimensions; each adds its logarithm.
    tiled: dimensions that are cut into tiles or read in vectors; each adds how
      full its tiles are and the power of two, up to 32, that divides it.
  """
  columns = [np.log2(size) for size in sizes]
  for size in tiled:
    columns += [fullness(size, tile) for tile in (8, 32, 64, 128)]
    columns.append(np.gcd(size.astype(np.int64), 32).astype(float))
  return columns


def machine(
  intensity: np.ndarray, waves: np.ndarray, size: np.ndarray, rates: Rates
) -> list[np.ndarray]:
  """Columns that relate a kernel to its GPU.

  Args:
    intensity: [n] operations per byte over those of the GPU.
    waves: [n] tiles of 128 x 128 per multiprocessor.
    size: [n] bytes of all operands.
  """
  kinds = (rates.is_old, rates.is_modern_memory, rates.power_ratio)
  return [
    np.log2(intensity),
    np.log2(waves),
    np.ceil(waves) / waves,
    np.log2(size / rates.l2_bytes),
    *(np.broadcast_to(kind, size.shape) for kind in kinds),
  ]
