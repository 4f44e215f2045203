"""Replanning: adapts a placement to a changed problem.

Keeps the devices of ops that still exist and guesses the rest by fast rules.
"""

from collections.abc import Mapping

import numpy as np

from tfplace.errors import FormatError, TfplaceError, shown
from tfplace.graph.cluster import Cluster, find_device
from tfplace.graph.op_names import UNKNOWN
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.placers.groups import (
  GroupGraph,
  main_devices,
  working_devices,
)

# A start of a search: a placement, or a mapping of ops to devices.
Start = Placement | Mapping[str, str]

_MOST_ROUNDS = 100  # In which new groups follow those that are placed.
_NEW = UNKNOWN  # An op or group without a device in the old placement.


def carried_over(
  problem: Problem, assignments: Mapping[str, str]
) -> np.ndarray:
  """Derives placements from a placement of another problem.

  Unknown ops are ignored. New groups follow most of the bytes that they
  exchange. Groups of lost devices move, in one guess, as a whole to the device
  with the least work. In other guesses they are cut into blocks that balance
  the work of all devices, by time or by microbatch. If groups are new, further
  guesses use only devices that the step can be divided among.

  Args:
    assignments: op -> device, by full name or by a suffix such as "GPU:0".

  Returns:
    [num_guesses, num_ops] int32 allowed devices; one or more distinct guesses.

  Raises:
    TfplaceError: the assignments have none of the graph's ops, or a value that
      is not a name.
  """
  for op, device in assignments.items():
    if not isinstance(device, str):
      raise TfplaceError(
        f"init_placement puts {shown(op)} on {shown(device)}; it must map ops"
        " to names of devices"
      )
  names = sorted(set(assignments.values()))
  index = {name: i for i, name in enumerate(names)}
  of_op = [
    index.get(assignments.get(op, ""), _NEW) for op in problem.graph.names
  ]
  old = np.array(of_op, np.int64)
  if problem.graph.num_ops and (old == _NEW).all():
    raise TfplaceError(
      f"init_placement names none of the {problem.graph.num_ops} ops of graph"
      f" {problem.graph.name!r}"
    )
  groups = GroupGraph.of(problem)
  old = groups.majority(old)
  now = np.array([_find(problem.cluster, name) for name in names], np.int64)
  # Index -1, of new groups, selects the last entry.
  now = np.append(now, _NEW)[old]
  lost = np.where(now < 0, old, _NEW)
  guesses = [
    _moved_together(groups, now, lost),
    *_spread_evenly(groups, now, lost),
  ]
  if (old == _NEW).any():
    guesses += [_on_working_devices(groups, guess) for guess in guesses]
  guesses = [_with_new_groups(groups, guess) for guess in guesses]
  distinct = {guess.tobytes(): groups.expand(guess) for guess in guesses}
  return np.stack(list(distinct.values()))


def _find(cluster: Cluster, name: str) -> int:
  try:
    return cluster.index[find_device(cluster, name)]
  except FormatError:
    return -1


def _on_working_devices(groups: GroupGraph, devices: np.ndarray) -> np.ndarray:
  """Forgets devices that do none of the work, where a group may be elsewhere.

  Numbers in names of ops shift with a new layer, so that a heavy op may have
  the name of a light one on a CPU.
  """
  work = working_devices(groups)
  is_free = groups.allowed[:, work].any(axis=1) & ~np.isin(devices, work)
  return np.where(is_free, _NEW, devices)


def _loads(groups: GroupGraph, devices: np.ndarray) -> np.ndarray:
  placed = np.flatnonzero(devices >= 0)
  where = groups.nearest(np.maximum(devices, 0))[placed]
  return np.bincount(where, groups.time_us[placed, where], groups.num_devices)


def _moved_together(
  groups: GroupGraph, now: np.ndarray, lost: np.ndarray
) -> np.ndarray:
  """Moves all groups of a lost device together; returns [num_groups] devices.

  Lost devices go by decreasing work, each to the device with the least work.
  """
  devices, main = now.copy(), main_devices(groups)
  loads = _loads(groups, now)[main]
  work = np.bincount(
    lost[lost >= 0], groups.fastest_us[lost >= 0], lost.max(initial=0) + 1
  )
  for device in np.argsort(-work, kind="stable"):
    target = int(loads.argmin())
    devices[lost == device] = main[target]
    loads[target] += work[device]
  return devices


def _spread_evenly(
  groups: GroupGraph, now: np.ndarray, lost: np.ndarray
) -> list[np.ndarray]:
  """Cuts the groups of lost devices into blocks, by time and by microbatch."""
  gone = np.flatnonzero(lost >= 0)
  if not len(gone):
    return []
  main = main_devices(groups)
  room = _even_shares(_loads(groups, now)[main], groups.fastest_us[gone].sum())
  by_time = gone[np.argsort(groups.position[gone])]
  orders = [by_time]
  microbatch = groups.problem.graph.microbatch
  if groups.problem.graph.num_microbatches > 1:
    of_group = microbatch[groups.first_ops][by_time]
    orders.append(by_time[np.argsort(of_group, kind="stable")])
  return [
    _filled_in_order(groups, now, order, main=main, room=room)
    for order in orders
  ]


def _even_shares(loads: np.ndarray, work: float) -> np.ndarray:
  """Returns how much of `work` each device takes for the most even loads."""
  ranked = np.sort(loads)
  counts = np.arange(1, len(ranked) + 1)
  levels = (work + np.cumsum(ranked)) / counts
  # Fill up the devices below the common level.
  return np.maximum(0.0, levels[levels >= ranked][-1] - loads)


def _filled_in_order(
  groups: GroupGraph,
  now: np.ndarray,
  order: np.ndarray,
  *,
  main: np.ndarray,
  room: np.ndarray,
) -> np.ndarray:
  """Returns [num_groups] devices; `order` fills each device's room in turn."""
  devices, took = now.copy(), groups.fastest_us[order]
  middle = np.cumsum(took) - took / 2
  block = np.searchsorted(np.cumsum(room), middle)
  devices[order] = main[np.minimum(block, len(main) - 1)]
  return devices


def _with_new_groups(groups: GroupGraph, devices: np.ndarray) -> np.ndarray:
  """Assigns new groups to devices; returns [num_groups] allowed devices.

  A group follows most of the bytes that it exchanges. Groups without assigned
  neighbors go to the device with the least work.
  """
  if (devices >= 0).all():
    return groups.nearest(devices)
  devices = devices.copy()
  src, dst, size = groups.edges
  ends, others = np.concatenate((src, dst)), np.concatenate((dst, src))
  weight = np.concatenate((size, size)) + 1.0  # Empty messages count, too.
  for _ in range(_MOST_ROUNDS):
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
