"""A problem as an undirected graph with integer weights, for partitioners.

What METIS and Scotch read: a vertex per colocation group, weighted by its
time, and an edge per pair of groups with traffic, weighted by its bytes.
Directions and devices' memory are lost, as in any use of a partitioner.
"""

import dataclasses

import numpy as np

from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_repaired
from tfplace.placers.rules.single import main_devices
from tfplace.placers.tracker import Tracker


@dataclasses.dataclass(frozen=True, eq=False)
class WeightedGraph:
  """An undirected graph; every edge is there from both of its ends.

  Attributes:
    offsets: [num_vertices + 1] int64; the edges of vertex i are entries
      `offsets[i]:offsets[i + 1]` of the two below.
    neighbours: [2 * num_edges] int64, ascending for each vertex.
    edge_weights: [2 * num_edges] int64, 1 or more.
    vertex_weights: [num_vertices] int64, 0 or more.
  """

  offsets: np.ndarray
  neighbours: np.ndarray
  edge_weights: np.ndarray
  vertex_weights: np.ndarray


def weighted_graph(
  groups: GroupGraph, devices: np.ndarray, total: int
) -> WeightedGraph:
  """Microseconds and bytes, each scaled to integers of about one sum.

  Args:
    groups: of the problem.
    devices: [num_parts] that are to share the work; a group that none of
      them can run weighs nothing, for it goes elsewhere.
    total: what the weights of all vertices, and of all edges, are scaled to
      sum to; rounding may add one per edge.
  """
  time_us = groups.time_us[:, devices].min(axis=1, initial=np.inf)
  time_us = np.where(np.isfinite(time_us), time_us, 0.0)
  src, dst, size = groups.edges
  low, high = np.minimum(src, dst), np.maximum(src, dst)
  keys = low.astype(np.int64) * groups.num_groups + high
  pairs, inverse = np.unique(keys, return_inverse=True)
  size = _scaled(np.bincount(inverse, size, len(pairs)), total)
  low, high = pairs // groups.num_groups, pairs % groups.num_groups
  ends, others = np.concatenate((low, high)), np.concatenate((high, low))
  order = np.lexsort((others, ends))
  counts = np.bincount(ends, minlength=groups.num_groups)
  return WeightedGraph(
    offsets=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
    neighbours=others[order].astype(np.int64),
    # An edge without bytes is still a dependency; METIS wants positive ones.
    edge_weights=np.maximum(np.concatenate((size, size))[order], 1),
    vertex_weights=_scaled(time_us, total),
  )


def _scaled(values: np.ndarray, total: int) -> np.ndarray:
  """int64 values in proportion, of about the sum `total`."""
  share = values / max(float(values.sum()), 1e-300)
  return np.rint(share * total).astype(np.int64)


def offer_parts(
  tracker: Tracker, groups: GroupGraph, parts: np.ndarray
) -> None:
  """Offers a partition as a placement, repaired where it does not fit.

  Args:
    tracker: receives every version.
    groups: of the problem.
    parts: [num_groups] index each into `main_devices`; a group that cannot
      be there goes to its fastest device that has a kernel for it.
  """
  wanted = main_devices(groups)[parts]
  offer_repaired(tracker, groups, groups.nearest(wanted))
