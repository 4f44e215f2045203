"""METIS: parts of equal work with few bytes between them.

Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning
irregular graphs" (1998), through pymetis. METIS ignores order and memory;
placements that do not fit are repaired.
"""

import contextlib
import ctypes
import dataclasses
import os
import threading
from collections.abc import Iterator

import numpy as np

from tfplace.errors import TfplaceError
from tfplace.graph.budget import Budget
from tfplace.graph.csr import csr
from tfplace.placers.groups import GroupGraph, main_devices, unique_pairs
from tfplace.placers.one_shot import Batches

_TOTAL = 2**28  # METIS sums weights in integers of 32 bits in some builds.
# The k-way scheme first coarsens a graph to this many vertices per part. On
# smaller graphs it may leave parts empty.
_KWAY_VERTICES = 30
_stdout = threading.Lock()


def metis(groups: GroupGraph, seed: int, budget: Budget) -> Batches:
  """Cuts the groups into a part per device of the fastest kind (see `cut`).

  A group that cannot run there goes to its fastest allowed device.
  """
  devices = main_devices(groups)
  parts = cut(weighted_graph(groups, devices), len(devices), seed)
  yield [groups.nearest(devices[parts])]


@dataclasses.dataclass(frozen=True, eq=False)
class WeightedGraph:
  """An undirected weighted graph; each edge is listed at both ends.

  Attributes:
    offsets: [num_vertices + 1] int64; the edges of vertex i are entries
      `offsets[i]:offsets[i + 1]` of `adjacent` and `edge_weights`.
    adjacent: [2 * num_edges] int64 neighbors, ascending for each vertex.
    edge_weights: [2 * num_edges] int64, at least 1.
    vertex_weights: [num_vertices] int64, at least 0.
  """

  offsets: np.ndarray
  adjacent: np.ndarray
  edge_weights: np.ndarray
  vertex_weights: np.ndarray


def weighted_graph(
  groups: GroupGraph, devices: np.ndarray, total: int = _TOTAL
) -> WeightedGraph:
  """Builds a graph weighted by microseconds and bytes, scaled to integers.

  Args:
    devices: [num_parts] devices that share the work. A group that none of them
      can run has weight 0, because it runs elsewhere.
    total: approximate sum of all vertex weights and of all edge weights;
      rounding may add one per edge.
  """
  time_us = groups.time_us[:, devices].min(axis=1, initial=np.inf)
  time_us = np.where(np.isfinite(time_us), time_us, 0.0)
  src, dst, size = groups.edges
  low, high, size = unique_pairs(
    np.minimum(src, dst), np.maximum(src, dst), size, groups.num_groups
  )
  size = _scaled(size, total)
  ends, others = np.concatenate((low, high)), np.concatenate((high, low))
  offsets, order = csr(ends, groups.num_groups, others)
  return WeightedGraph(
    offsets=offsets,
    adjacent=others[order].astype(np.int64),
    # An edge without bytes is still a dependency, and METIS needs weights above
    # 0.
    edge_weights=np.maximum(np.concatenate((size, size))[order], 1),
    vertex_weights=_scaled(time_us, total),
  )


def _scaled(values: np.ndarray, total: int) -> np.ndarray:
  share = values / max(float(values.sum()), 1e-300)
  return np.rint(share * total).astype(np.int64)


def cut(graph: WeightedGraph, num_parts: int, seed: int) -> np.ndarray:
  """Partitions a graph with METIS; returns the [num_vertices] parts.

  The scheme is multilevel k-way with METIS's defaults, as published, or
  recursive bisection for graphs that are too small.

  Raises:
    TfplaceError: pymetis is not installed, or METIS fails.
  """
  num_vertices = len(graph.vertex_weights)
  if num_parts == 1 or num_vertices == 0:
    return np.zeros(num_vertices, np.int64)
  try:
    import pymetis  # Only this placer needs this compiled library.
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
  """Suppresses METIS's output to stdout.

  METIS prints "***Cannot bisect a graph with 0 vertices!" for every empty half
  and has no option against it. One thread at a time may redirect the output.
  """
  with _stdout:
    try:
      kept = os.dup(1)
    except OSError:  # The process has no standard output.
      yield
      return
    with open(os.devnull, "wb") as nowhere:
      os.dup2(nowhere.fileno(), 1)
    try:
      yield
    finally:
      ctypes.CDLL(None).fflush(None)  # Flush the C library's own buffer.
      os.dup2(kept, 1)
      os.close(kept)
