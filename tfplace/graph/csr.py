"""Compressed sparse rows (CSR): offsets, sums, and topological order."""

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


def group_sums(
  group_of: np.ndarray, values: np.ndarray, num_groups: int
) -> np.ndarray:
  """Sums the rows of each group, in order; much faster than `np.add.at`.

  Args:
    group_of: [num_rows] group of each row.
    values: [num_rows, num_columns].

  Returns:
    [num_groups, num_columns] float64.
  """
  result = np.zeros((num_groups, values.shape[1]))
  for column in range(values.shape[1]):
    result[:, column] = np.bincount(group_of, values[:, column], num_groups)
  return result


def all_of_group(
  group_of: np.ndarray, values: np.ndarray, num_groups: int
) -> np.ndarray:
  """Returns [num_groups, num_columns] bool: whether all rows are True.

  Args:
    group_of: [num_rows] group of each row.
    values: [num_rows, num_columns] bool.
  """
  return group_sums(group_of, ~values, num_groups) == 0.0


def topological_order(
  offsets: np.ndarray, successors: np.ndarray
) -> np.ndarray:
  """Sorts nodes topologically, producers first (Kahn's algorithm).

  Args:
    offsets: [num_nodes + 1] offsets into `successors`.
    successors: [num_edges] successors of each node, grouped by producer.

  Returns:
    [num_nodes] int32 nodes; fewer if the graph has a cycle.
  """
  count = len(offsets) - 1
  missing = np.bincount(successors, minlength=count).tolist()
  after, bounds = successors.tolist(), offsets.tolist()
  order = [i for i in range(count) if missing[i] == 0]
  for node in order:  # The list grows while it is read, as a queue.
    for successor in after[bounds[node] : bounds[node + 1]]:
      missing[successor] -= 1
      if missing[successor] == 0:
        order.append(successor)
  return np.array(order, np.int32)
