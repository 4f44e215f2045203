"""A binary heap of (time, key) pairs in two arrays, compiled."""

import numpy as np

from tfplace.placers.jit import Index, helper, inlined


@inlined
def _before(time: np.ndarray, key: np.ndarray, a: Index, b: Index) -> bool:
  return time[a] < time[b] or (time[a] == time[b] and key[a] < key[b])


@helper
def push(
  time: np.ndarray, key: np.ndarray, size: int, new_us: float, new_key: int
) -> int:
  """Adds to a binary heap by (time, key); returns its size."""
  time[size], key[size] = new_us, new_key
  at = size
  while at > 0:
    parent = (at - 1) >> 1
    if not _before(time, key, at, parent):
      break
    time[at], time[parent] = time[parent], time[at]
    key[at], key[parent] = key[parent], key[at]
    at = parent
  return size + 1


@helper
def pop(time: np.ndarray, key: np.ndarray, size: int) -> int:
  """Drops the first of a binary heap by (time, key); returns its size."""
  size -= 1
  time[0], key[0] = time[size], key[size]
  at: Index = np.int64(0)  # a literal would be a type of its own
  while True:
    child = 2 * at + 1
    if child >= size:
      return size
    if child + 1 < size and _before(time, key, child + 1, child):
      child += 1
    if not _before(time, key, child, at):
      return size
    time[at], time[child] = time[child], time[at]
    key[at], key[child] = key[child], key[at]
    at = child
