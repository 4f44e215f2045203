"""The three text formats of Scotch's mapper: graph, target, mapping.

As its user's guide defines them: source graphs (`.grf`), targets that are
given by their decomposition (`deco 0`), and mappings (`.map`).
"""

import numpy as np

from tfplace.errors import TfplaceError
from tfplace.placers.partition import WeightedGraph


def graph_text(graph: WeightedGraph) -> str:
  """A `.grf` file: sizes, then per vertex its weight, degree and edges.

  Flags 011: no labels, weights of edges, weights of vertices. A graph that
  weighs nothing gets weights of 1, for the program divides by their sum.
  """
  weights = graph.vertex_weights
  if not weights.any():
    weights = np.ones_like(weights)
  lines = ["0", f"{len(weights)} {len(graph.neighbours)}", "0 011"]
  bounds = graph.offsets.tolist()
  pairs = np.stack((graph.edge_weights, graph.neighbours), axis=1)
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
