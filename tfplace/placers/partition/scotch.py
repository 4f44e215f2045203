"""Scotch: maps the graph onto devices and the links between them.

Pellegrini and Roman, "Scotch: a software package for static mapping by dual
recursive bipartitioning" (1996), by its program `gmap` (Debian's `scotch`). It
ignores order and memory; placements are repaired.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import ClassVar

import numpy as np

from tfplace.core.budget import Budget
from tfplace.core.evaluation import Result
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator
from tfplace.errors import TfplaceError
from tfplace.placers.groups import GroupGraph, main_devices
from tfplace.placers.partition.metis import (
  WeightedGraph,
  offer_parts,
  weighted_graph,
)
from tfplace.placers.tracker import Tracker


def graph_text(graph: WeightedGraph) -> str:
  """Formats a `.grf` file: sizes, then each vertex's weight, degree and edges.

  Flags 011 mean no labels, edge weights and vertex weights. If all weights are
  0 they become 1, because the program divides by their sum.
  """
  weights = graph.vertex_weights
  if not weights.any():
    weights = np.ones_like(weights)
  lines = ["0", f"{len(weights)} {len(graph.adjacent)}", "0 011"]
  bounds = graph.offsets.tolist()
  pairs = np.stack((graph.edge_weights, graph.adjacent), axis=1)
  flat = [str(value) for value in pairs.reshape(-1).tolist()]
  for vertex, weight in enumerate(weights.tolist()):
    first, end = bounds[vertex], bounds[vertex + 1]
    edges = flat[2 * first : 2 * end]
    lines.append(" ".join([str(weight), str(end - first), *edges]))
  return "\n".join(lines) + "\n"


def target_text(distance: np.ndarray) -> str:
  """Formats a `deco 0` file: devices as leaves of a binary tree.

  After the header, each device has a line with its label, weight (1) and leaf
  number (the root is 1, the children of i are 2 i and 2 i + 1). The lower
  triangle of `distance`, [num_parts, num_parts] int64 and symmetric, follows.
  """
  leaf = leaves(distance)
  lines = ["deco", "0", f"{len(leaf)} {max(leaf)}"]
  lines += [f"{label} 1 {number}" for label, number in enumerate(leaf)]
  for row in range(1, len(distance)):
    lines.append(" ".join(str(int(d)) for d in distance[row, :row]))
  return "\n".join(lines) + "\n"


def leaves(distance: np.ndarray) -> list[int]:
  """Returns the leaf of each device in a tree that keeps near devices close.

  A set is split around its two devices that are farthest apart.
  """
  result = [0] * len(distance)

  def halve(members: list[int], number: int) -> None:
    if len(members) == 1:
      result[members[0]] = number
      return
    among = distance[np.ix_(members, members)]
    left, right = np.unravel_index(int(among.argmax()), among.shape)
    nearer = among[:, left] - among[:, right]
    nearer[left], nearer[right] = -(10**9), 10**9
    ordered = [members[i] for i in np.argsort(nearer, kind="stable")]
    half = (len(members) + 1) // 2
    halve(sorted(ordered[:half]), 2 * number)
    halve(sorted(ordered[half:]), 2 * number + 1)

  halve(list(range(len(distance))), 1)
  return result


def parse_mapping(text: str, num_vertices: int, num_parts: int) -> np.ndarray:
  """Parses a `.map` file to the [num_vertices] int64 part of each vertex.

  Raises TfplaceError unless it gives exactly one valid part per vertex.
  """
  try:
    values = np.array([int(word) for word in text.split()], np.int64)
  except (ValueError, OverflowError) as error:
    raise TfplaceError(
      f"Scotch's mapping is no list of numbers: {error}"
    ) from (error)
  if len(values) != 1 + 2 * num_vertices or values[0] != num_vertices:
    raise TfplaceError(
      f"Scotch's mapping has {len(values)} numbers, not the"
      f" {1 + 2 * num_vertices} that {num_vertices} vertices take"
    )
  vertex, part = values[1::2], values[2::2]
  result = np.full(num_vertices, -1, np.int64)
  if ((vertex >= 0) & (vertex < num_vertices)).all():
    result[vertex] = part
  if ((result < 0) | (result >= num_parts)).any():
    at = int(np.flatnonzero((result < 0) | (result >= num_parts))[0])
    raise TfplaceError(
      f"Scotch's mapping puts vertex {at} on no part of 0 to {num_parts - 1}"
    )
  return result


# The name in Debian. The authors' own name, `gmap`, is also that of a genome
# aligner.
PROGRAMS = ("scotch_gmap",)
# Sums of weight times distance must fit in the 32 bits of Debian's build.
_TOTAL = 2**24
# Several threads give results that vary.
_ENVIRONMENT = {"SCOTCH_PTHREAD_NUMBER": "1"}
_NEAR, _FAR = 4, 64  # Distance of the fastest link and maximum distance.


@dataclasses.dataclass(frozen=True)
class ScotchPlacer:
  """Maps with Scotch onto the devices of the fastest kind."""

  # Seconds that the program may take, if the budget allows it.
  longest_s: float = 60.0
  name: ClassVar[str] = "scotch"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Maps the groups (see `find_program` and `run` for its errors)."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    program = find_program()
    groups = GroupGraph(problem)
    devices = main_devices(groups)
    graph = weighted_graph(groups, devices, _TOTAL)
    parts = np.zeros(groups.num_groups, np.int64)
    if len(devices) > 1 and groups.num_groups:
      timeout_s = min(self.longest_s, max(1.0, budget.left_s))
      parts = run(program, graph, distances(groups, devices), timeout_s)
    offer_parts(tracker, groups, parts)
    return tracker.result()


def find_program() -> str:
  """Finds Scotch's mapper; raises TfplaceError if it is not installed."""
  for name in PROGRAMS:
    path = shutil.which(name)
    if path is not None:
      return path
  raise TfplaceError(
    f"strategy 'scotch' needs the program {PROGRAMS[0]} of the Debian package"
    " scotch, which is not installed"
  )


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


def run(
  program: str, graph: WeightedGraph, distance: np.ndarray, timeout_s: float
) -> np.ndarray:
  """Runs the program once; returns the [num_vertices] part of each vertex.

  Raises TfplaceError if it fails, times out, or returns an invalid mapping.
  """
  try:
    with tempfile.TemporaryDirectory(prefix="tfplace_scotch_") as name:
      folder = pathlib.Path(name)
      (folder / "graph.grf").write_text(graph_text(graph))
      (folder / "target.tgt").write_text(target_text(distance))
      command = [program, "graph.grf", "target.tgt", "mapping.map"]
      _run(command, folder, timeout_s)
      mapping = folder / "mapping.map"
      text = mapping.read_text(errors="replace") if mapping.exists() else ""
  # There is no space for the files, or the program is missing.
  except OSError as error:
    raise TfplaceError(f"Scotch's {program} does not run: {error}") from error
  return parse_mapping(text, len(graph.vertex_weights), len(distance))


def _run(command: list[str], folder: pathlib.Path, timeout_s: float) -> None:
  try:
    done = subprocess.run(
      command,
      cwd=folder,
      env={**os.environ, **_ENVIRONMENT},
      timeout=timeout_s,
      capture_output=True,
      text=True,
      errors="replace",
      stdin=subprocess.DEVNULL,
      check=False,
    )
  except subprocess.TimeoutExpired as error:
    raise TfplaceError(
      f"Scotch's {command[0]} took more than {timeout_s:.0f} s"
    ) from error
  if done.returncode:
    said = " ".join((done.stderr or done.stdout).split())[:200]
    raise TfplaceError(
      f"Scotch's {command[0]} failed with exit code {done.returncode}: {said}"
    )
