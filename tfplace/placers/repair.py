"""Moves groups off devices whose simulated peak exceeds their memory.

One-shot placers count memory by sums, yet what a step really holds at once is
known only from its schedule. This cheap loop evaluates, moves the groups that
hold most to where there is room, and evaluates again.
"""

import numpy as np

from tfplace.core.protocols import Evaluation
from tfplace.placers.groups import GroupGraph
from tfplace.placers.tracker import Tracker

_MAX_ROUNDS = 40  # each costs one evaluation; most repairs take under ten


def offer_repaired(
  tracker: Tracker, groups: GroupGraph, group_devices: np.ndarray
) -> Evaluation:
  """Offers a placement, and repaired versions of it until one fits.

  Where it needs a missing link, all ops on one device are offered instead.

  Args:
    tracker: receives every version.
    groups: of the problem.
    group_devices: [num_groups] int32 devices, allowed.

  Returns:
    The last version's evaluation; feasible if the repair worked.
  """
  current = group_devices.copy()
  held = groups.persistent_bytes.copy()
  evaluation = tracker.offer(groups.expand(current))
  linked = groups.problem.cluster.is_fully_linked
  for device in range(0 if linked else groups.num_devices):
    if np.isfinite(evaluation.step_time_us):
      break
    current = groups.nearest(np.full(groups.num_groups, device))
    evaluation = tracker.offer(groups.expand(current))
  for round_number in range(_MAX_ROUNDS):
    if evaluation.feasible or not np.isfinite(evaluation.step_time_us):
      break
    # Outputs are freed in time: trust them less, the longer this goes on.
    weight = held if round_number % 2 else groups.total_bytes
    if not _move_off(groups, current, _room(groups, evaluation), weight):
      break
    evaluation = tracker.offer(groups.expand(current))
  return evaluation


def offer_like(
  tracker: Tracker, groups: GroupGraph, devices: np.ndarray
) -> Evaluation:
  """Offers what is allowed and fits and is like a placement.

  Args:
    tracker: receives every version.
    groups: of the problem.
    devices: [num_ops], with colocated ops together.

  Returns:
    The last version's evaluation.
  """
  wanted = groups.nearest(groups.contract(devices))
  return offer_repaired(tracker, groups, wanted)


def _room(groups: GroupGraph, evaluation: Evaluation) -> np.ndarray:
  """[num_devices] bytes free at the peak; negative where over."""
  devices = groups.problem.cluster.devices
  return np.array(
    [
      d.memory_bytes - evaluation.peak_memory_bytes.get(d.name, 0.0)
      for d in devices
    ]
  )


def _move_off(
  groups: GroupGraph,
  current: np.ndarray,
  room: np.ndarray,
  held: np.ndarray,
) -> bool:
  """Moves groups from the fullest device until the excess would be gone."""
  full = int(room.argmin())
  candidates = np.flatnonzero((current == full) & (held > 0))
  # Those near the end of the order first: they are at the border of a block.
  position = np.empty(groups.num_groups)
  position[groups.order] = np.arange(groups.num_groups)
  excess, moved = -room[full], False
  for group in _cover(candidates, held, excess, position):
    device = _target(groups, current, room, group, held[group])
    if device is None:
      continue
    current[group] = device
    room[device] -= held[group]
    excess -= held[group]
    moved = True
    if excess <= 0:
      break
  return moved


def _cover(
  candidates: np.ndarray,
  held: np.ndarray,
  excess: float,
  position: np.ndarray,
) -> np.ndarray:
  """Candidates, the smallest that covers the excess alone first, then the
  others from the largest."""
  enough = candidates[held[candidates] >= excess]
  rest = candidates[held[candidates] < excess]
  enough = enough[np.lexsort((-position[enough], held[enough]))]
  rest = rest[np.lexsort((-position[rest], -held[rest]))]
  return np.concatenate((enough[:1], rest, enough[1:]))


def _target(
  groups: GroupGraph,
  current: np.ndarray,
  room: np.ndarray,
  group: int,
  size: float,
) -> int | None:
  """The fastest allowed device with room, the roomiest of equals.

  Where none has room, the one that is then the least over, if that is better
  than now: an error should name the nearest miss.
  """
  best, best_key = None, (True, np.inf, np.inf)
  for device in np.flatnonzero(groups.allowed[group]):
    after = float(room[device] - size)
    if device == current[group] or after < min(0.0, room[current[group]]):
      continue
    time_us = float(groups.time_us[group, device])
    key = (after < 0, -after if after < 0 else time_us, -after)
    if key < best_key:
      best, best_key = int(device), key
  return best
