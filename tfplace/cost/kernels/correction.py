"""A quadratic correction of an analytic time, in dimensionless features.

The analytic time of a class has the right shape; what is left depends on the
library's choice of kernels, which shows in ratios: waves per multiprocessor,
arithmetic intensity over that of the GPU, size over L2. The logarithm of the
correction is a quadratic form of those. No feature names a GPU or a model.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

MOST = 1.0  # of the logarithm: beyond the measured range nothing runs away
RANGE = 2.5  # of a feature, in about standard deviations


@dataclasses.dataclass(frozen=True)
class Correction:
  """Fitted coefficients, in the order of a class's features."""

  coefficients: Sequence[float]

  def factor(self, features: np.ndarray) -> np.ndarray:
    """[n] what the analytic time is multiplied by.

    Args:
      features: [n, num_features] of the class.
    """
    logarithm = features @ np.asarray(self.coefficients)
    return np.exp(np.clip(logarithm, -MOST, MOST))


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
