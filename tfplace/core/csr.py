"""Compressed sparse rows (CSR): entries sorted by row, with offsets."""

import numpy as np
from numpy.typing import ArrayLike


def offsets_of(counts: ArrayLike) -> np.ndarray:
  """Returns [num_rows + 1] int64 offsets of rows with [num_rows] counts."""
  return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def csr(
  rows: np.ndarray, num_rows: int, *ties: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Sorts entries by row.

  Args:
    rows: [num_entries] row of each entry.
    *ties: [num_entries] keys of entries in one row, the most significant first.
      Further ties keep the order of the entries.

  Returns:
    [num_rows + 1] int64 offsets and [num_entries] int64 positions of the
    entries, row after row.
  """
  order = np.lexsort((*reversed(ties), rows))
  return offsets_of(np.bincount(rows, minlength=num_rows)), order
