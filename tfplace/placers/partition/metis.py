"""METIS: parts of equal work with the fewest bytes between them.

Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning
irregular graphs" (1998), by pymetis, with the weights of the placement papers
(op cost on vertices, bytes on edges). METIS knows neither the order of ops nor
memory: the papers report OOM for many of its placements. Here one that does
not fit is repaired like any other placer's, so that it is a competitor
everywhere, and better than published.
"""

import contextlib
import ctypes
import dataclasses
import os
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tfplace.core.problem import Problem
from tfplace.core.protocols import Budget, Evaluator, Result
from tfplace.errors import TfplaceError
from tfplace.placers.groups import GroupGraph, main_devices
from tfplace.placers.repair import offer_repaired
from tfplace.placers.tracker import Tracker

_TOTAL = 2**28  # METIS sums weights in integers, of 32 bits in some builds
# The k-way scheme shrinks a graph to this many vertices per part before it
# starts; on a graph as small as that it may leave parts empty.
_KWAY_VERTICES = 30


@dataclasses.dataclass(frozen=True)
class MetisPlacer:
  """METIS on the devices of the fastest kind."""

  name: ClassVar[str] = "metis"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Cuts the groups into as many parts as there are devices.

    Raises:
      TfplaceError: pymetis is not installed.
    """
    tracker = Tracker(self.name, problem, evaluator, budget)
    groups = GroupGraph(problem)
    devices = main_devices(groups)
    graph = weighted_graph(groups, devices, _TOTAL)
    offer_parts(tracker, groups, cut(graph, len(devices), seed))
    return tracker.result()


@dataclasses.dataclass(frozen=True, eq=False)
class WeightedGraph:
  """An undirected graph; every edge is there from both of its ends.

  Attributes:
    offsets: [num_vertices + 1] int64; the edges of vertex i are entries
      `offsets[i]:offsets[i + 1]` of the two below.
    adjacent: [2 * num_edges] int64, ascending for each vertex.
    edge_weights: [2 * num_edges] int64, 1 or more.
    vertex_weights: [num_vertices] int64, 0 or more.
  """

  offsets: np.ndarray
  adjacent: np.ndarray
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
    adjacent=others[order].astype(np.int64),
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


def cut(graph: WeightedGraph, num_parts: int, seed: int) -> np.ndarray:
  """[num_vertices] part of each vertex, by METIS with its own defaults.

  Multilevel k-way, as published; by recursive bisection where the graph is
  too small for that.

  Raises:
    TfplaceError: pymetis is not installed, or METIS fails.
  """
  num_vertices = len(graph.vertex_weights)
  if num_parts == 1 or num_vertices == 0:
    return np.zeros(num_vertices, np.int64)
  try:
    import pymetis  # a compiled library, wanted by this placer only
  except ImportError as error:
    raise TfplaceError(
      f"strategy 'metis' needs the package pymetis: {error}"
    ) from error
  adjacency = pymetis.CSRAdjacency(graph.offsets, graph.adjacent)
  try:
    with _without_stdout():
      _, parts = pymetis.part_graph(
        num_parts,
        adjacency,
        vweights=graph.vertex_weights,
        eweights=graph.edge_weights,
        recursive=num_vertices < _KWAY_VERTICES * num_parts,
        options=pymetis.Options(seed=seed % 2**31),
      )
  except RuntimeError as error:
    raise TfplaceError(f"METIS failed: {error}") from error
  return np.asarray(parts, np.int64)


@contextlib.contextmanager
def _without_stdout() -> Iterator[None]:
  """Drops what METIS prints there: "***Cannot bisect a graph with 0 vertices!",
  wherever one half of a bisection is empty, for which it offers no option."""
  try:
    kept = os.dup(1)
  except OSError:  # a process without it
    yield
    return
  with open(os.devnull, "wb") as nowhere:
    os.dup2(nowhere.fileno(), 1)
  try:
    yield
  finally:
    ctypes.CDLL(None).fflush(None)  # the C library's own buffer
    os.dup2(kept, 1)
    os.close(kept)
