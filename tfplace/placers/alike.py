"""Devices that stand for each other: a placement has one twin per naming.

Costs do not tell twins apart; ties, which go by position, still can.
"""

import numpy as np

from tfplace.graph.problem import Problem

_MAX_ALIKE = 4  # devices of a chain: each placement has that many! names


def alike_devices(problem: Problem) -> list[list[int]]:
  """Chains of devices of which any two neighbours can be exchanged."""
  chains: list[list[int]] = []
  for device in range(problem.cluster.num_devices):
    last = chains[-1] if chains else []
    if 0 < len(last) < _MAX_ALIKE and _swappable(problem, last[-1], device):
      last.append(device)
    else:
      chains.append([device])
  return [chain for chain in chains if len(chain) > 1]


def _swappable(problem: Problem, a: int, b: int) -> bool:
  """Whether the cluster is the same with devices `a` and `b` exchanged."""
  cluster = problem.cluster
  one, two = cluster.devices[a], cluster.devices[b]
  if (one.kind, one.memory_bytes, one.op_overhead_us) != (
    two.kind,
    two.memory_bytes,
    two.op_overhead_us,
  ):
    return False
  order = np.arange(cluster.num_devices)
  order[[a, b]] = b, a
  swap = np.ix_(order, order)
  for matrix in (cluster.bandwidth, cluster.latency_us, cluster.gap_us):
    if not np.array_equal(matrix, matrix[swap], equal_nan=True):
      return False
  pairs = set(
    zip(cluster.channel.flat, cluster.channel[swap].flat, strict=True)
  )
  return len(pairs) == len({x for x, _ in pairs}) == len({y for _, y in pairs})
