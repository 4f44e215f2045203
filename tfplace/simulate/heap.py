"""Binary heap of (time, key) records for kernels."""

import numpy as np

from tfplace.simulate.jit import Index, helper

ENTRY = np.dtype([("time", np.float64), ("key", np.int64)])


@helper
def push(heap: np.ndarray, size: Index, time: float, key: Index) -> Index:
  """Adds an entry; returns the new size."""
  at: Index = np.int64(size)
  while at > 0:
    up = (at - 1) >> 1
    over = heap[up]
    if over.time < time or (over.time == time and over.key <= key):
      break
    heap[at].time, heap[at].key = over.time, over.key
    at = up
  heap[at].time, heap[at].key = time, key
  return np.int64(size) + 1


@helper
def pop(heap: np.ndarray, size: Index) -> Index:
  """Removes the first entry, the smallest; returns the new size."""
  size = np.int64(size) - 1
  time, key = heap[size].time, heap[size].key
  at: Index = np.int64(0)  # A literal would have a type of its own.
  while 2 * at + 1 < size:
    child = 2 * at + 1
    if child + 1 < size:
      a, b = heap[child], heap[child + 1]
      if b.time < a.time or (b.time == a.time and b.key < a.key):
        child += 1
    below = heap[child]
    if below.time > time or (below.time == time and below.key >= key):
      break
    heap[at].time, heap[at].key = below.time, below.key
    at = child
  heap[at].time, heap[at].key = time, key
  return size
