"""Correction of an analytic time by a forest of dimensionless features.

It follows the thresholds at which libraries change kernels. No feature names a
GPU or a model.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

MOST = 1.0  # of the logarithm: beyond the measured range nothing runs away


@dataclasses.dataclass(frozen=True)
class Forest:
  """Boosted regression trees (Friedman, 2001) whose outputs are added.

  Fitted by LightGBM, only evaluated here.

  Attributes:
    trees: nested nodes. An inner node is [feature, threshold, left, right];
      values up to the threshold go left. A leaf is a number, in units of
      `UNIT`.
  """

  trees: Sequence[Any]

  UNIT: ClassVar[float] = 1e-4

  def factor(self, details: np.ndarray) -> np.ndarray:
    """Returns the [n] factors of the analytic time.

    Args:
      details: [n, num_details] of the class.
    """
    count, (roots, table) = len(details), self._tables
    feature, threshold, left, right, value = table
    node = np.broadcast_to(roots, (count, len(roots)))
    rows = np.arange(count)[:, None]
    while (feature[node] >= 0).any():  # Leaves lead to themselves.
      is_left = details[rows, feature[node]] <= threshold[node]
      node = np.where(is_left, left[node], right[node])
    logarithm = value[node].sum(axis=1) * self.UNIT
    return np.exp(np.clip(logarithm, -MOST, MOST))

  @functools.cached_property
  def _tables(self) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Roots; and feature, threshold, left, right and value of all nodes."""
    nodes: list[tuple[float, ...]] = []

    def add(node: Any) -> int:
      at = len(nodes)
      nodes.append((-1, 0.0, at, at, node))
      if isinstance(node, list):
        nodes[at] = (*node[:2], add(node[2]), add(node[3]), 0.0)
      return at

    roots = np.array([add(tree) for tree in self.trees], np.int64)
    columns = np.array(nodes, float).reshape(-1, 5).T
    feature, left, right = columns[[0, 2, 3]].astype(np.int64)
    return roots, (feature, columns[1], left, right, columns[4])


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
