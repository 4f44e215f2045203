"""Convex groups of the nodes of a graph."""

from collections.abc import Hashable, Iterable, Sequence, Set

from tfplace.graph.paths import reached


def convex_groups(
  keys: Sequence[Hashable | None],
  before: Sequence[Iterable[int]],
  order: Iterable[int],
  *,
  first_fit: bool = False,
) -> list[int]:
  """Groups nodes of equal keys so that the graph of groups has no cycle.

  A node joins the last group of its key, or begins the next if that closed a
  cycle; by first fit, it joins the first group of its key that stays free of
  cycles.

  Args:
    keys: key of each node, or None to keep it out of groups.
    before: predecessors of each node.
    order: the nodes in topological order.
    first_fit: whether all groups of its key are open to a node.

  Returns:
    Group of each node; -1 without one.
  """
  dag, group_of = _Dag(), [-1] * len(keys)
  vertex: dict[int, int] = {}
  open_groups: dict[Hashable, list[int]] = {}
  group: dict[int, int] = {}
  for node in order:
    key = keys[node]
    earlier = {vertex[other] for other in before[node]}
    known = [] if key is None else open_groups.setdefault(key, [])
    fits = (at for at in known if dag.follows(at, earlier - {at}))
    at = next(fits, None)
    if at is None:
      at = dag.add(earlier)
      if key is not None:
        group[at] = len(group)
        open_groups[key] = [*known, at] if first_fit else [at]
    vertex[node] = at
    group_of[node] = group.get(at, -1)
  return group_of


class _Dag:
  """Vertices in a topological order that adapts to new edges.

  Source: Pearce and Kelly, "A Dynamic Topological Sort Algorithm for Directed
  Acyclic Graphs", JEA 2006.
  """

  def __init__(self) -> None:
    self._place: list[int] = []  # of each vertex, in the order
    self._after: list[set[int]] = []
    self._before: list[set[int]] = []

  def add(self, before: Set[int]) -> int:
    """Adds a vertex with these predecessors and returns it."""
    vertex = len(self._place)
    self._place.append(vertex)
    self._after.append(set())
    self._before.append(set(before))
    for other in before:
      self._after[other].add(vertex)
    return vertex

  def follows(self, vertex: int, before: Set[int]) -> bool:
    """Adds predecessors; returns False, and adds none, if they follow it."""
    place, first = self._place, self._place[vertex]
    late = [other for other in before if place[other] > first]
    if late:
      end = max(place[other] for other in late)
      ahead = reached(
        [vertex], lambda at: [o for o in self._after[at] if place[o] <= end]
      )
      if not ahead.keys().isdisjoint(late):
        return False
      behind = reached(
        late, lambda at: [o for o in self._before[at] if place[o] > first]
      )
      moved = sorted(behind, key=place.__getitem__)
      moved += sorted(ahead, key=place.__getitem__)
      places = sorted(place[other] for other in moved)
      for other, at in zip(moved, places, strict=True):
        place[other] = at
    self._before[vertex] |= before
    for other in before:
      self._after[other].add(vertex)
    return True
