"""A relaxed problem in the direction of time, or against it.

Tails are the heads of the reversed problem, so one kernel proves both.
"""

from typing import NamedTuple

import numpy as np

from tfplace.bounds.relaxed import Relaxed
from tfplace.simulate.jit import allocating_helper


class Flow(NamedTuple):
  """A relaxed problem, in the direction of time or against it.

  Against time, producers and consumers swap, and so does what precedes an op:
  `head_us` of the reversed problem is the tail of the real one.

  Attributes:
    order: [num_ops] what comes before first.
    rank: [num_ops] place in `order`.
    offsets: [num_ops + 1] into the edges that arrive at each op.
    before: [num_edges] the op at the other end.
    num_bytes: [num_edges].
    gap_us: [num_edges, num_classes] idle time of the edge's producer.
    time_us: [num_ops, num_classes]; inf where the op cannot be.
    work_us: [num_ops, num_classes] time and gap; inf where it cannot be.
    us_per_byte: [num_classes, num_classes] from the other end's class.
    latency_us: [num_classes, num_classes].
    group_of: [num_ops].
    spare_us: [num_ops, num_classes] at most 0: added to the work that is in
      series with an op, for the gap that may lie outside.
  """

  order: np.ndarray
  rank: np.ndarray
  offsets: np.ndarray
  before: np.ndarray
  num_bytes: np.ndarray
  gap_us: np.ndarray
  time_us: np.ndarray
  work_us: np.ndarray
  us_per_byte: np.ndarray
  latency_us: np.ndarray
  group_of: np.ndarray
  spare_us: np.ndarray


def flow_of(relaxed: Relaxed, backward: bool = False) -> Flow:
  """Packs a problem."""
  graph = relaxed.problem.graph
  offsets, edges = graph.out_csr if backward else graph.in_csr
  ends = graph.edge_dst if backward else graph.edge_src
  order = graph.topological_order
  order = np.ascontiguousarray(order[::-1] if backward else order)
  rank = np.empty(len(order), np.int64)
  rank[order] = np.arange(len(order))
  spare = np.zeros_like(relaxed.gap_us)
  if backward:
    spare = relaxed.gap_us - relaxed.overhead_us
  us_per_byte, latency_us = relaxed.us_per_byte, relaxed.latency_us
  if backward:
    us_per_byte, latency_us = us_per_byte.T, latency_us.T
  return Flow(
    order,
    rank,
    offsets,
    ends[edges],
    graph.edge_bytes[edges],
    relaxed.gap_us[graph.edge_src[edges]],
    relaxed.time_us,
    relaxed.time_us + relaxed.gap_us,
    np.ascontiguousarray(us_per_byte),
    np.ascontiguousarray(latency_us),
    relaxed.problem.group_of,
    spare,
  )


@allocating_helper
def least_end(flow: Flow, head: np.ndarray, op: int) -> float:
  """The earliest that `op` can have ended, wherever it is."""
  best = np.inf
  for c in range(head.shape[1]):
    best = min(best, head[op, c] + flow.time_us[op, c])
  return best
