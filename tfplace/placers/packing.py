"""Fits groups into devices' memory where no placer found a placement that fits.

Bin packing by exchanges: from any assignment, up to two groups of a device that
holds too much change places with up to two of another, chosen so that both come
nearest to what they have; then again from another start. (Thirty sizes between
100,000 and 200,000 bytes on four devices with 20 to spare take it some seconds;
the mixed-integer solver HiGHS found none of four such packings in 20.) What a
step holds besides persistent bytes is known only once it is simulated, and is
kept free in the next attempt.
"""

import time

import numpy as np

from tfplace.placers.groups import GroupGraph
from tfplace.placers.rules.single import cut
from tfplace.placers.tracker import Tracker

_PER_START = 300  # exchanges from one start
_ALL = 30_000  # exchanges in all where evaluations count: the same everywhere
_PACKINGS = 100  # that are simulated
_PER_DEVICE = 24  # groups of a device that an exchange looks at


class _Allowance:
  """How long a packing may take: seconds, or exchanges where evaluations are
  the budget."""

  def __init__(self, tracker: Tracker, limit_s: float) -> None:
    self._left = _ALL
    self._is_timed = tracker.budget.max_evaluations is None
    self._ends = time.perf_counter() + limit_s

  def take(self) -> bool:
    """Whether there is time for one more exchange."""
    self._left -= 1
    if self._is_timed:
      return time.perf_counter() < self._ends
    return self._left >= 0


def offer_packed(
  tracker: Tracker, groups: GroupGraph, seed: int, limit_s: float
) -> None:
  """Offers packings until one fits, or the time is over.

  Args:
    tracker: receives them; where one fits, it has a best then.
    groups: of the problem.
    seed: of random choices.
    limit_s: seconds; where evaluations are the budget, a fixed effort instead.
  """
  rng, allowance = np.random.default_rng(seed), _Allowance(tracker, limit_s)
  memory = groups.problem.cluster.memory_bytes
  wanted = cut(groups, groups.order)
  besides = np.zeros(groups.num_devices)
  for _ in range(_PACKINGS):
    found = pack(groups, wanted, memory - besides, rng, allowance)
    if found is None:
      if not besides.any():
        return
      # So much room there is not: another start may need less of it.
      wanted = _spread(groups, wanted, memory, rng)
      besides = np.zeros_like(besides)
      continue
    evaluation = tracker.offer(groups.expand(found))
    is_run = np.isfinite(evaluation.step_time_us)
    if evaluation.feasible or tracker.is_done or not is_run:
      return
    names = [device.name for device in groups.problem.cluster.devices]
    peaks = np.array([evaluation.peak_memory_bytes[name] for name in names])
    besides = peaks - np.bincount(found, groups.persistent_bytes, len(names))
    wanted = found


def pack(
  groups: GroupGraph,
  start: np.ndarray,
  room: np.ndarray,
  rng: np.random.Generator,
  allowance: _Allowance,
) -> np.ndarray | None:
  """[num_groups] int32 devices with room for their persistent bytes, or None.

  Args:
    groups: of the problem.
    start: [num_groups] devices to begin from; other starts follow.
    room: [num_devices] bytes.
    rng: random numbers.
    allowance: of exchanges.
  """
  held = groups.persistent_bytes
  # More than all is not needed, and infinities have no middle.
  room = np.minimum(room, held.sum())
  if held.sum() > room.sum():
    return None
  devices = start.copy()
  while True:
    left = room - np.bincount(devices, held, len(room))
    for _ in range(_PER_START):
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
  """Another start: the largest first, roughly, each where most room is left;
  what holds nothing stays."""
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
  """Groups of a device that holds too much change places with some of another,
  unless that is worse; changes `devices` and [num_devices] `left`."""
  full = int(rng.choice(np.flatnonzero(left < 0)))
  other = int((full + rng.integers(1, max(len(left), 2))) % len(left))
  sizes, out = _choices(groups, devices, full, other, rng)
  back_sizes, back = _choices(groups, devices, other, full, rng)
  # Both then have the same room.
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
  source: int,
  target: int,
  rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
  """None, one or two of a device's groups that another may run.

  Returns:
    [num_choices] bytes, ascending, and [num_choices, 2] groups, -1 for none.
  """
  held = groups.persistent_bytes
  movable = (devices == source) & (held > 0) & groups.allowed[:, target]
  items = np.flatnonzero(movable)
  if len(items) > _PER_DEVICE:
    items = rng.choice(items, _PER_DEVICE, replace=False)
  first, second = np.triu_indices(len(items), 1)
  single = np.stack((items, np.full(len(items), -1)), axis=1)
  pairs = np.stack((items[first], items[second]), axis=1)
  members = np.concatenate((np.full((1, 2), -1), single, pairs))
  sizes = np.concatenate(
    ([0.0], held[items], held[items[first]] + held[items[second]])
  )
  order = np.argsort(sizes, kind="stable")
  return sizes[order], members[order]
