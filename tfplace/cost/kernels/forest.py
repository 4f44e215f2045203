"""Boosted regression trees (Friedman, 2001) that refine a kernel's time.

Fitted by LightGBM, only evaluated here.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Forest:
  """Trees whose outputs are added.

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
