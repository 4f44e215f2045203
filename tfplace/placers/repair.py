"""Repairs of placements that do not fit in memory.

One-shot placers only sum memory. `offer_repaired` moves activations to hosts
where the step allows it, then groups off full devices; `offer_packed` solves
bin packing by exchanges where nothing fits.
"""

import time
from collections.abc import Iterable

import numpy as np

from tfplace.graph.evaluation import Evaluation
from tfplace.placers.groups import GroupGraph, equal_blocks
from tfplace.placers.tracker import Tracker
from tfplace.simulate.jit import kernel

# Limits of repairs and packings, chosen by trial.
_ROUNDS = 40  # Rounds of a repair, one evaluation each; most need under ten.
_PACKINGS = 100  # Packings to simulate.
_EXCHANGES_PER_START = 300  # Exchanges per start of a packing.
_EXCHANGES = 30_000  # Of all packings if the budget counts evaluations.
_GROUPS_PER_DEVICE = 24  # Groups that an exchange considers.


def offer_repaired(
  tracker: Tracker, groups: GroupGraph, group_devices: np.ndarray
) -> Evaluation:
  """Offers a placement and repaired versions of it until one fits.

  If it needs a missing link, placements on single devices are offered instead.

  Args:
    group_devices: [num_groups] int32 allowed devices.

  Returns:
    The evaluation of the last version; feasible if the repair succeeded.
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
  for round_number in range(_ROUNDS):
    if evaluation.feasible or not np.isfinite(evaluation.step_time_us):
      break
    # Outputs are freed during the step, so every other round ignores them.
    weight = held if round_number % 2 else groups.total_bytes
    if not _move_off(groups, current, _room(groups, evaluation), weight):
      break
    evaluation = tracker.offer(groups.expand(current))
  return evaluation


def offer_all_repaired(
  tracker: Tracker, groups: GroupGraph, rows: Iterable[np.ndarray]
) -> None:
  """Offers [num_groups] placements; repairs the fastest one if none fits."""
  fastest, least_us = None, np.inf
  for row in rows:
    found_us = tracker.offer(groups.expand(row)).step_time_us
    if fastest is None or found_us < least_us:
      fastest, least_us = row, found_us
    if tracker.budget.left_s <= 0:
      break
  if tracker.best is None and fastest is not None:
    offer_repaired(tracker, groups, fastest)


def offer_like(
  tracker: Tracker, groups: GroupGraph, devices: np.ndarray
) -> Evaluation:
  """Offers, with repairs, the placement nearest to [num_ops] devices."""
  wanted = groups.nearest(groups.contract(devices))
  return offer_repaired(tracker, groups, wanted)


def offer_starts(
  tracker: Tracker, groups: GroupGraph, starts: np.ndarray
) -> np.ndarray:
  """Offers [num_starts, num_ops] devices, each with its repairs.

  Returns the [num_ops] devices of the tracker's best placement, or the first
  start if nothing fits.
  """
  for devices in starts:
    offer_like(tracker, groups, devices)
  return starts[0] if tracker.best is None else tracker.best[0]


def _room(groups: GroupGraph, evaluation: Evaluation) -> np.ndarray:
  """Returns [num_devices] free bytes at the peak; negative if exceeded."""
  cluster = groups.problem.cluster
  return cluster.memory_bytes - _peaks(groups, evaluation)


def _peaks(groups: GroupGraph, evaluation: Evaluation) -> np.ndarray:
  peaks = evaluation.peak_memory_bytes
  return np.array(
    [peaks.get(device.name, 0.0) for device in groups.problem.cluster.devices]
  )


def _move_off(
  groups: GroupGraph,
  current: np.ndarray,
  room: np.ndarray,
  held: np.ndarray,
) -> bool:
  """Moves groups off the fullest device until its excess is covered."""
  full = int(room.argmin())
  candidates = np.flatnonzero((current == full) & (held > 0))
  # Groups at the end of the order come first, because they border a block.
  order = _cover(candidates, held, -room[full], groups.position)
  return _move_each(order, held, groups.allowed, groups.time_us, current, room)


def _cover(
  candidates: np.ndarray,
  held: np.ndarray,
  excess: float,
  position: np.ndarray,
) -> np.ndarray:
  """Sorts candidates: the smallest that covers the excess, then by size."""
  enough = candidates[held[candidates] >= excess]
  rest = candidates[held[candidates] < excess]
  enough = enough[np.lexsort((-position[enough], held[enough]))]
  rest = rest[np.lexsort((-position[rest], -held[rest]))]
  return np.concatenate((enough[:1], rest, enough[1:]))


@kernel
def _move_each(
  order: np.ndarray,
  held: np.ndarray,
  allowed: np.ndarray,
  time_us: np.ndarray,
  current: np.ndarray,
  room: np.ndarray,
) -> bool:
  """Moves groups of one device in order until its excess is covered.

  Each goes to the fastest allowed device with room; ties go to the most room.
  If no device has room, it goes to the one with the smallest excess, provided
  it is smaller than the present one, so that errors name the nearest miss.
  """
  moved, excess = False, 0.0
  for i in range(len(order)):
    group = order[i]
    source, size = current[group], held[group]
    if i == 0:
      excess = -room[source]
    least = min(0.0, room[source])
    best, best_key, best_after = -1, np.inf, -np.inf
    for device in range(len(room)):
      after = room[device] - size
      if not allowed[group, device] or device == source or after < least:
        continue
      key = time_us[group, device] if after >= 0 else -after
      is_first = best < 0 or (after >= 0) > (best_after >= 0)
      is_same = (after >= 0) == (best_after >= 0)
      is_less = key < best_key or (key == best_key and after > best_after)
      if is_first or (is_same and is_less):
        best, best_key, best_after = device, key, after
    if best < 0:
      continue
    current[group] = best
    room[best] -= size
    excess -= size
    moved = True
    if excess <= 0:
      break
  return moved


class _Allowance:
  """A limit of a packing in seconds, or in exchanges for evaluation budgets."""

  def __init__(self, tracker: Tracker, limit_s: float) -> None:
    self._left = _EXCHANGES
    self._is_timed = tracker.budget.is_timed
    self._ends = time.perf_counter() + limit_s

  def take(self) -> bool:
    self._left -= 1
    if self._is_timed:
      return time.perf_counter() < self._ends
    return self._left >= 0


def offer_packed(
  tracker: Tracker, groups: GroupGraph, seed: int, limit_s: float
) -> None:
  """Offers packings until one fits or the limit is reached.

  Args:
    limit_s: time limit in seconds; replaced by a fixed effort if the budget
      counts evaluations.
  """
  rng, allowance = np.random.default_rng(seed), _Allowance(tracker, limit_s)
  memory = groups.problem.cluster.memory_bytes
  wanted = equal_blocks(groups, groups.order)
  besides = np.zeros(groups.num_devices)
  for _ in range(_PACKINGS):
    packed = pack(
      groups, wanted, memory - besides, rng=rng, allowance=allowance
    )
    if packed is None:
      if not besides.any():
        return
      # The reserve is too large; another start may need less.
      wanted = _spread(groups, wanted, memory, rng)
      besides = np.zeros_like(besides)
      continue
    evaluation = tracker.offer(groups.expand(packed))
    is_run = np.isfinite(evaluation.step_time_us)
    if evaluation.feasible or tracker.is_done or not is_run:
      return
    held = np.bincount(packed, groups.persistent_bytes, groups.num_devices)
    besides = _peaks(groups, evaluation) - held
    wanted = packed


def pack(
  groups: GroupGraph,
  start: np.ndarray,
  room: np.ndarray,
  *,
  rng: np.random.Generator,
  allowance: _Allowance,
) -> np.ndarray | None:
  """Packs the groups' persistent bytes into the devices' room.

  Args:
    start: [num_groups] devices to start from; other starts follow.
    room: [num_devices] bytes.

  Returns:
    [num_groups] int32 devices, or None.
  """
  held = groups.persistent_bytes
  # Cap unlimited room, because infinities have no midpoint.
  room = np.minimum(room, held.sum())
  if held.sum() > room.sum():
    return None
  devices = start.copy()
  while True:
    left = room - np.bincount(devices, held, len(room))
    for _ in range(_EXCHANGES_PER_START):
      if left.min() >= 0:
        return devices
      if not allowance.take():
        return None
      _exchange(groups, devices, left, rng)
    devices = _spread(groups, devices, room, rng)


def _spread(
  groups: GroupGraph,
  devices: np.ndarray,
  room: np.ndarray,
  rng: np.random.Generator,
) -> np.ndarray:
  """Returns another start: large groups first, each to the most room.

  The order is randomized. Groups without persistent bytes stay.
  """
  held, left, devices = groups.persistent_bytes, room.copy(), devices.copy()
  order = np.argsort(-held * rng.uniform(0.8, 1.2, len(held)))
  for group in order[held[order] > 0]:
    device = int(np.where(groups.allowed[group], left, -np.inf).argmax())
    devices[group] = device
    left[device] -= held[group]
  return devices


def _exchange(
  groups: GroupGraph,
  devices: np.ndarray,
  left: np.ndarray,
  rng: np.random.Generator,
) -> None:
  """Trades groups of an overfull device with another one, in place.

  Nothing changes if the trade increases the excess. `left` is [num_devices]
  free bytes.
  """
  full = int(rng.choice(np.flatnonzero(left < 0)))
  other = int((full + rng.integers(1, max(len(left), 2))) % len(left))
  sizes, out = _choices(groups, devices, rng, source=full, target=other)
  back_sizes, back = _choices(groups, devices, rng, source=other, target=full)
  # Equal room on both devices is the target.
  wanted = (left[other] - left[full]) / 2
  after = np.searchsorted(back_sizes, sizes - wanted)
  at = np.stack((after - 1, after)).clip(0, len(back) - 1)
  miss = np.abs(sizes - back_sizes[at] - wanted)
  side, chosen = np.unravel_index(miss.argmin(), miss.shape)
  returned = at[side, chosen]
  moved = sizes[chosen] - back_sizes[returned]
  before = min(0.0, left[full]) + min(0.0, left[other])
  if min(0.0, left[full] + moved) + min(0.0, left[other] - moved) < before:
    return
  devices[out[chosen][out[chosen] >= 0]] = other
  devices[back[returned][back[returned] >= 0]] = full
  left[full] += moved
  left[other] -= moved


def _choices(
  groups: GroupGraph,
  devices: np.ndarray,
  rng: np.random.Generator,
  *,
  source: int,
  target: int,
) -> tuple[np.ndarray, np.ndarray]:
  """Lists none, one or two of a device's groups that another may run.

  Returns [num_choices] bytes, ascending, and [num_choices, 2] groups or -1.
  """
  held = groups.persistent_bytes
  movable = (devices == source) & (held > 0) & groups.allowed[:, target]
  items = np.flatnonzero(movable)
  if len(items) > _GROUPS_PER_DEVICE:
    items = rng.choice(items, _GROUPS_PER_DEVICE, replace=False)
  first, second = np.triu_indices(len(items), 1)
  single = np.stack((items, np.full(len(items), -1)), axis=1)
  pairs = np.stack((items[first], items[second]), axis=1)
  members = np.concatenate((np.full((1, 2), -1), single, pairs))
  sizes = np.concatenate(
    ([0.0], held[items], held[items[first]] + held[items[second]])
  )
  order = np.argsort(sizes, kind="stable")
  return sizes[order], members[order]
