"""Times of kernels that memory limits: elementwise, softmax, normalization.

Bytes over the bandwidth that the class reaches. Reads from L2 are not modeled.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tfplace.cost.kernels.rates import Rates

_MOST = 1.0  # of the logarithm of a correction
_RANGE = 2.5  # of a feature, in about standard deviations


@dataclasses.dataclass(frozen=True)
class MemoryParameters:
  """Parameters of one class of kernels.

  Attributes:
    share: of the sustained bandwidth that large kernels reach.
    latency_us: of the first bytes.
    correction: coefficients of `features`, for the logarithm; empty where rows
      and their length do not matter.
  """

  share: float
  latency_us: float
  correction: Sequence[float] = ()


def times_us(
  num_bytes: np.ndarray,
  rows: np.ndarray,
  rates: Rates,
  parameters: MemoryParameters,
) -> np.ndarray:
  """Time of each kernel.

  Args:
    num_bytes: [n] bytes that it reads and writes.
    rows: [2, n] number of rows, and elements of each.

  Returns:
    [n] microseconds.
  """
  time_us = analytic_us(num_bytes, rates, parameters)
  if not parameters.correction:
    return time_us
  logarithm = features(rows, rates) @ np.asarray(parameters.correction)
  return time_us * np.exp(np.clip(logarithm, -_MOST, _MOST))


def analytic_us(
  num_bytes: np.ndarray, rates: Rates, parameters: MemoryParameters
) -> np.ndarray:
  """[n] the time before its correction."""
  rate = rates.bytes_per_us * parameters.share
  return parameters.latency_us + num_bytes / rate


def features(rows: np.ndarray, rates: Rates) -> np.ndarray:
  """[n, num_features] of the correction."""
  count, length = rows
  size = count * length * rates.element_bytes
  centered = [
    (np.log2(length) - 10) / 2,
    np.log2(size / rates.l2_bytes) / 4,
    (np.log2(count / rates.multiprocessors) - 6) / 3,
  ]
  z = [np.clip(feature, -_RANGE, _RANGE) for feature in centered]
  ones = np.ones_like(length)
  kinds = (rates.is_old * ones, rates.is_modern_memory * ones)
  columns = [
    ones,
    *z,
    *(z[i] * z[j] for i in range(3) for j in range(i, 3)),
    *kinds,
    *(kind * z[0] for kind in kinds),
    (length > 1024).astype(float),
    (length % 4 == 0).astype(float),
  ]
  return np.stack(columns, axis=-1)
