"""Scotch: maps the graph onto devices and the links between them.

Pellegrini and Roman, "Scotch: a software package for static mapping by dual
recursive bipartitioning" (1996), through pyscotch, in a process of its own (see
`scotch_child`). It ignores order and memory; placements are repaired.
"""

import os
import pathlib
import subprocess
import sys
from importlib import util

import numpy as np

from tfplace.errors import TfplaceError
from tfplace.graph.budget import Budget
from tfplace.placers.groups import GroupGraph, main_devices
from tfplace.placers.one_shot import Batches
from tfplace.placers.partition import scotch_child
from tfplace.placers.partition.metis import WeightedGraph, weighted_graph

# Sum of all weights: Scotch multiplies a vertex weight, an edge weight and a
# distance, and checks no overflow of its 64 bits.
_TOTAL = 2**24
_NEAR, _FAR = 4, 64  # Distance of the fastest link and maximum distance.
# Mappings of different seeds; the best by simulation counts. The process takes
# longer to start than to map most graphs. The others follow if none fits in
# memory: some other numbering of the devices may fit.
_MAPPINGS = (3, 5)
# Seconds that Scotch may take: in any case, and if the budget allows it.
_SHORTEST_S, _LONGEST_S = 2.0, 60.0


def scotch(groups: GroupGraph, seed: int, budget: Budget) -> Batches:
  """Maps the groups onto the devices of the fastest kind (see `mapped`)."""
  devices = main_devices(groups)
  graph = weighted_graph(groups, devices, _TOTAL)
  distance = distances(groups, devices)
  rng = np.random.default_rng(seed % 2**31)
  for count in _MAPPINGS:
    seeds = rng.integers(2**31, size=count)
    limit_s = min(_LONGEST_S, max(_SHORTEST_S, budget.left_s))
    mappings = mapped(graph, distance, seeds, limit_s)
    yield [groups.nearest(devices[parts]) for parts in mappings]
    if budget.left_s <= 0:
      break


def distances(groups: GroupGraph, devices: np.ndarray) -> np.ndarray:
  """Returns [num_parts, num_parts] int64 slowness of each device pair.

  The value is proportional to microseconds per byte, in the slower direction.
  The fastest link is 4. The slowest, or a missing link, is at most 64.
  """
  cluster = groups.problem.cluster
  among = np.ix_(devices, devices)
  us = np.where(cluster.channel >= 0, 1 / cluster.bandwidth, np.inf)[among]
  us = np.maximum(us, us.T)
  away = ~np.eye(len(devices), dtype=bool)
  least = float(us[away].min(initial=np.inf))
  if not np.isfinite(least) or least <= 0:
    return np.where(away, _NEAR, 0)
  return np.where(
    away, np.rint(np.minimum(_NEAR * us / least, _FAR)), 0
  ).astype(np.int64)


def mapped(
  graph: WeightedGraph, distance: np.ndarray, seeds: np.ndarray, limit_s: float
) -> np.ndarray:
  """Maps a graph with Scotch, once for each seed.

  Args:
    distance: [num_parts, num_parts] int64, symmetric.
    seeds: [num_seeds] int64; Scotch takes 2 k and 2 k + 1 as one seed.
    limit_s: time limit in seconds.

  Returns:
    The [num_mappings, num_vertices] int64 part of each vertex; fewer mappings
    than seeds if the time is over.

  Raises:
    TfplaceError: pyscotch is not installed, or Scotch fails, finds no mapping
      within the limit, or returns an invalid one.
  """
  num_vertices, num_parts = len(graph.vertex_weights), len(distance)
  if num_parts == 1 or num_vertices == 0:
    return np.zeros((1, num_vertices), np.int64)
  if util.find_spec("pyscotch") is None:
    raise TfplaceError(
      "strategy 'scotch' needs the package pyscotch, whose wheels are for Linux"
    )
  weights = graph.vertex_weights
  request = scotch_child.pack(
    [
      graph.offsets,
      graph.adjacent,
      graph.edge_weights,
      # Scotch divides by the sum of the weights.
      weights if weights.any() else np.ones_like(weights),
      distance,
      seeds,
    ]
  )
  answer, is_late = _run(request, limit_s)
  row_bytes = num_vertices * np.dtype(np.int64).itemsize
  rows = len(answer) // row_bytes
  if is_late and not rows:
    raise TfplaceError(f"strategy 'scotch' found no mapping in {limit_s:g} s")
  if not is_late and len(answer) != len(seeds) * row_bytes:
    raise TfplaceError(
      f"strategy 'scotch': Scotch's answer has {len(answer)} bytes, not the"
      f" {len(seeds) * row_bytes} of {len(seeds)} mappings"
    )
  parts = np.frombuffer(answer[: rows * row_bytes], np.int64)
  outside = parts[(parts < 0) | (parts >= num_parts)]
  if len(outside):
    raise TfplaceError(
      f"strategy 'scotch': Scotch maps to part {outside[0]}, not to one of 0"
      f" to {num_parts - 1}"
    )
  return parts.reshape(rows, num_vertices)


def _run(request: bytes, limit_s: float) -> tuple[bytes, bool]:
  """Runs the child process once.

  Returns its answer, and True if the time was over, so that some is missing.
  """
  environment = {
    **os.environ,
    # The child finds its packages where this process does.
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    # Several threads give results that vary.
    "SCOTCH_PTHREAD_NUMBER": "1",
    # Products of weights need more than 32 bits.
    "PYSCOTCH_INT_SIZE": "64",
    "PYSCOTCH_PARALLEL": "0",
  }
  try:
    done = subprocess.run(
      [sys.executable, str(pathlib.Path(scotch_child.__file__))],
      input=request,
      env=environment,
      timeout=limit_s,
      capture_output=True,
      check=False,
    )
  except subprocess.TimeoutExpired as late:
    return late.output or b"", True
  except OSError as error:
    raise TfplaceError(
      f"strategy 'scotch': Python {sys.executable!r} does not run: {error}"
    ) from error
  if done.returncode:
    output = " ".join(done.stderr.decode("utf-8", "replace").split())
    raise TfplaceError(
      f"strategy 'scotch': Scotch ended with exit code {done.returncode}; it"
      f" said {output[-300:]!r}"
    )
  return done.stdout, False
