"""Whether two devices of a cluster stand for each other."""

import numpy as np

from tfplace.graph.cluster import Cluster


def swappable(cluster: Cluster, i: int, j: int) -> bool:
  """Whether exchanging two devices, and their links, changes nothing."""
  a, b = cluster.devices[i], cluster.devices[j]
  if (a.kind, a.memory_bytes, a.op_overhead_us) != (
    b.kind,
    b.memory_bytes,
    b.op_overhead_us,
  ):
    return False
  order = np.arange(cluster.num_devices)
  order[[i, j]] = j, i
  at = np.ix_(order, order)
  for matrix in (cluster.bandwidth, cluster.latency_us, cluster.gap_us):
    if not np.array_equal(matrix, matrix[at], equal_nan=True):
      return False
  return np.array_equal(_shares(cluster.channel), _shares(cluster.channel[at]))


def _shares(channel: np.ndarray) -> np.ndarray:
  """Which links share a channel, whatever the channels' numbers."""
  _, first, inverse = np.unique(channel, return_index=True, return_inverse=True)
  return np.where(channel < 0, -1, first[inverse.reshape(channel.shape)])
