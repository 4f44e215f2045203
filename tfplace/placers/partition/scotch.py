"""Scotch: maps the graph onto the devices and the links between them.

Pellegrini and Roman, "Scotch: a software package for static mapping by dual
recursive bipartitioning" (1996), by its program `gmap` (Debian's package
`scotch`; nothing of it is bundled) and its three text formats: graph (`.grf`),
target (`deco 0`) and mapping. Unlike METIS it knows how far apart devices are:
a byte counts as much as the link that it takes is slow. Like METIS it knows
neither the order of ops nor memory, so what does not fit is repaired. The
program takes no seed; on one thread each run gives the same.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import ClassVar

import numpy as np

from tfplace.core.problem import Problem
from tfplace.core.protocols import Budget, Evaluator, Result
from tfplace.errors import TfplaceError
from tfplace.placers.groups import GroupGraph, main_devices
from tfplace.placers.partition.metis import (
  WeightedGraph,
  offer_parts,
  weighted_graph,
)
from tfplace.placers.tracker import Tracker


def graph_text(graph: WeightedGraph) -> str:
  """A `.grf` file: sizes, then per vertex its weight, degree and edges.

  Flags 011: no labels, weights of edges, weights of vertices. A graph that
  weighs nothing gets weights of 1, for the program divides by their sum.
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
  """A `deco 0` file: the devices as leaves of a tree of halves.

  Args:
    distance: [num_parts, num_parts] int64, symmetric.

  Returns:
    For each device a line of label, weight (1) and number of its leaf (the
    root is 1, the halves of i are 2 i and 2 i + 1); then the distances below
    the diagonal, row by row.
  """
  leaf = leaves(distance)
  lines = ["deco", "0", f"{len(leaf)} {max(leaf)}"]
  lines += [f"{label} 1 {number}" for label, number in enumerate(leaf)]
  for row in range(1, len(distance)):
    lines.append(" ".join(str(int(d)) for d in distance[row, :row]))
  return "\n".join(lines) + "\n"


def leaves(distance: np.ndarray) -> list[int]:
  """[num_parts] leaf of each device in a tree of halves that are near.

  A set is halved around the two of its devices that are farthest apart.
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
  """[num_vertices] int64 part of each vertex, from a `.map` file.

  Raises:
    TfplaceError: anything but one line for each vertex, with its part.
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


# Debian's name; its authors' own, `gmap`, is also that of a genome aligner.
PROGRAMS = ("scotch_gmap",)
# Sums of weight times distance must fit into the 32 bits of Debian's build.
_TOTAL = 2**24
_ENVIRONMENT = {"SCOTCH_PTHREAD_NUMBER": "1"}  # threads race: no two runs agree
_LONGEST_S = 60.0  # for the program, if the budget allows so much
_NEAR, _FAR = 4, 64  # distance of the fastest link, and the largest of any


@dataclasses.dataclass(frozen=True)
class ScotchPlacer:
  """Scotch on the devices of the fastest kind."""

  name: ClassVar[str] = "scotch"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Maps the groups.

    Raises:
      TfplaceError: the program is not installed, fails, takes too long, or
        answers what is no mapping.
    """
    tracker = Tracker(self.name, problem, evaluator, budget)
    program = find_program()
    groups = GroupGraph(problem)
    devices = main_devices(groups)
    graph = weighted_graph(groups, devices, _TOTAL)
    parts = np.zeros(groups.num_groups, np.int64)
    if len(devices) > 1 and groups.num_groups:
      timeout_s = min(_LONGEST_S, max(1.0, budget.left_s))
      parts = run(program, graph, distances(groups, devices), timeout_s)
    offer_parts(tracker, groups, parts)
    return tracker.result()


def find_program() -> str:
  """Path of Scotch's mapper.

  Raises:
    TfplaceError: it is not installed.
  """
  for name in PROGRAMS:
    path = shutil.which(name)
    if path is not None:
      return path
  raise TfplaceError(
    f"strategy 'scotch' needs the program {PROGRAMS[0]} of the Debian package"
    " scotch, which is not installed"
  )


def distances(groups: GroupGraph, devices: np.ndarray) -> np.ndarray:
  """[num_parts, num_parts] int64: how slow a byte is between two devices.

  In proportion to microseconds per byte, the slower of the two directions;
  the fastest link is 4 and the slowest, or none at all, 64 at most.
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
  """[num_vertices] part of each vertex, by one run of the program.

  Raises:
    TfplaceError: it fails, takes too long, or answers what is no mapping.
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
  except OSError as error:  # no room for the files, or no program after all
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
