"""Carries a placement over to a problem that has changed since it was made.

A device was lost, a link is slower, a batch is larger, ops came and went: the
old plan is the best guess of a new one. What it says of ops and devices that
are still there stays; this module decides about the rest, by rules, in
moments. It neither evaluates nor repairs memory: the placers do, as they
compare the guesses, and search from there.
"""

from collections.abc import Mapping

import numpy as np

from tfplace.core.cluster import Cluster
from tfplace.core.constraints import find_device
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.errors import FormatError, TfplaceError, shown
from tfplace.placers.groups import GroupGraph, main_devices

# What a search may begin from; a mapping is of ops to devices.
Start = Placement | Mapping[str, str]

_NEW = -1  # of an op or a group: the old plan does not know it
_ROUNDS = 100  # in which new groups follow their neighbours, at most


def carried_over(
  problem: Problem, assignments: Mapping[str, str]
) -> np.ndarray:
  """Guesses of a placement, from a placement of another problem.

  Ops that the graph lacks are ignored. Groups that the plan does not know go
  where most of the bytes that they exchange are. What was on devices that the
  cluster lacks goes, as a whole, to those that have least to do; or it is cut
  into blocks that level the devices' work, by time or by microbatch.

  Args:
    problem: to be placed.
    assignments: op -> device, named in full or by an end such as "GPU:0".

  Returns:
    [num_guesses, num_ops] int32 devices, allowed, at least one guess, each
    once; colocated ops are together.

  Raises:
    TfplaceError: the plan knows none of the graph's ops, or maps one to
      something else than a name.
  """
  for op, device in assignments.items():
    if not isinstance(device, str):
      raise TfplaceError(
        f"init_placement puts {shown(op)} on {shown(device)}; it must map ops"
        " to names of devices"
      )
  names = sorted(set(assignments.values()))
  old = _of_ops(problem, assignments, names)
  if problem.graph.num_ops and (old == _NEW).all():
    raise TfplaceError(
      f"init_placement names none of the {problem.graph.num_ops} ops of graph"
      f" {problem.graph.name!r}"
    )
  groups = GroupGraph(problem)
  old = _of_groups(groups, old, len(names))
  now = np.array([_find(problem.cluster, name) for name in names], np.int64)
  now = np.append(now, _NEW)[old]  # `old` of a new group is the last one
  lost = np.where(now < 0, old, _NEW)
  guesses = [
    _followed(groups, guess)
    for guess in (_inherited(groups, now, lost), *_levelled(groups, now, lost))
  ]
  distinct = {guess.tobytes(): groups.expand(guess) for guess in guesses}
  return np.stack(list(distinct.values()))


def _of_ops(
  problem: Problem, assignments: Mapping[str, str], names: list[str]
) -> np.ndarray:
  """[num_ops] index into the old devices' names, `_NEW` where there is none."""
  index = {name: i for i, name in enumerate(names)}
  return np.array(
    [index.get(assignments.get(op, ""), _NEW) for op in problem.graph.names],
    np.int64,
  )


def _of_groups(groups: GroupGraph, old: np.ndarray, count: int) -> np.ndarray:
  """[num_groups] old device on which most of each group's time was."""
  problem = groups.problem
  known = old != _NEW
  votes = np.zeros((groups.num_groups, max(count, 1)))
  weight = 1e-6 + problem.fastest_us[known]  # ops without time have a say, too
  np.add.at(votes, (problem.group_of[known], old[known]), weight)
  return np.where(votes.any(axis=1), votes.argmax(axis=1), _NEW)


def _find(cluster: Cluster, name: str) -> int:
  """The number of a device; -1 where the cluster lacks it."""
  try:
    return cluster.index[find_device(cluster, name)]
  except FormatError:
    return -1


def _loads(groups: GroupGraph, devices: np.ndarray) -> np.ndarray:
  """[num_devices] us of work of the groups that have a device."""
  placed = np.flatnonzero(devices >= 0)
  where = groups.nearest(np.maximum(devices, 0))[placed]
  return np.bincount(where, groups.time_us[placed, where], groups.num_devices)


def _inherited(
  groups: GroupGraph, now: np.ndarray, lost: np.ndarray
) -> np.ndarray:
  """[num_groups] devices: all that was on a lost one goes to one other, the
  largest share first, each to where least is by then."""
  devices, main = now.copy(), main_devices(groups)
  loads = _loads(groups, now)[main]
  work = np.bincount(
    lost[lost >= 0], groups.fastest_us[lost >= 0], lost.max(initial=0) + 1
  )
  for device in np.argsort(-work, kind="stable"):
    heir = int(loads.argmin())
    devices[lost == device] = main[heir]
    loads[heir] += work[device]
  return devices


def _levelled(
  groups: GroupGraph, now: np.ndarray, lost: np.ndarray
) -> list[np.ndarray]:
  """[num_groups] devices each: what was on lost ones is cut into blocks, by
  time alone and by microbatch, then time."""
  gone = np.flatnonzero(lost >= 0)
  if not len(gone):
    return []
  main = main_devices(groups)
  room = _rooms(_loads(groups, now)[main], groups.fastest_us[gone].sum())
  position = np.empty(groups.num_groups, np.int64)
  position[groups.order] = np.arange(groups.num_groups)
  by_time = gone[np.argsort(position[gone])]
  orders = [by_time]
  microbatch = groups.problem.graph.microbatch
  if groups.problem.graph.num_microbatches > 1:
    of_group = microbatch[groups.first_ops][by_time]
    orders.append(by_time[np.argsort(of_group, kind="stable")])
  return [_cut(groups, now, order, main, room) for order in orders]


def _rooms(loads: np.ndarray, work: float) -> np.ndarray:
  """How much of `work` each device takes so that loads are as level as can
  be: they are filled up from the least one, like water."""
  ranked = np.sort(loads)
  counts = np.arange(1, len(ranked) + 1)
  levels = (work + np.cumsum(ranked)) / counts
  # Of the devices below the level, the level is what they reach together.
  return np.maximum(0.0, levels[levels >= ranked][-1] - loads)


def _cut(
  groups: GroupGraph,
  now: np.ndarray,
  order: np.ndarray,
  main: np.ndarray,
  room: np.ndarray,
) -> np.ndarray:
  """[num_groups] devices where `order` fills the devices' room in turn."""
  devices, took = now.copy(), groups.fastest_us[order]
  middle = np.cumsum(took) - took / 2
  block = np.searchsorted(np.cumsum(room), middle)
  devices[order] = main[np.minimum(block, len(main) - 1)]
  return devices


def _followed(groups: GroupGraph, devices: np.ndarray) -> np.ndarray:
  """[num_groups] int32 devices, allowed: groups without one go where most of
  what they exchange is, and what has no such neighbour where least is."""
  if (devices >= 0).all():
    return groups.nearest(devices)
  devices = devices.copy()
  src, dst, size = groups.edges
  ends, others = np.concatenate((src, dst)), np.concatenate((dst, src))
  weight = np.concatenate((size, size)) + 1.0  # of empty messages, too
  for _ in range(_ROUNDS):
    open_edges = (devices[ends] < 0) & (devices[others] >= 0)
    if not open_edges.any():
      break
    new, index = np.unique(ends[open_edges], return_inverse=True)
    votes = np.zeros((len(new), groups.num_devices))
    where = devices[others[open_edges]]
    np.add.at(votes, (index, where), weight[open_edges])
    devices[new] = np.where(groups.allowed[new], votes, -1.0).argmax(axis=1)
  rest = devices < 0
  if rest.any():
    main = main_devices(groups)
    devices[rest] = main[_loads(groups, devices)[main].argmin()]
  return groups.nearest(devices)
