"""Keeps decisions within what kernels and links allow.

Each group has a domain, the devices that it may still take. Assigning a group
removes from its neighbours' domains whatever no link would reach, and so on
(arc consistency, Mackworth's AC-3, 1977). Where every pair of devices is
linked, which is usual, this costs nothing.
"""

import numpy as np

from tfplace.errors import ProblemError
from tfplace.placers.groups import GroupGraph
from tfplace.placers.jit import kernel


def linked(groups: GroupGraph) -> np.ndarray:
  """[num_devices, num_devices] bool: data can go from the one to the other."""
  channel = groups.problem.cluster.channel
  return (channel >= 0) | np.eye(len(channel), dtype=bool)


class Domains:
  """The devices that each group may still take.

  Attributes:
    free: [num_groups, num_devices] bool.
  """

  def __init__(self, groups: GroupGraph) -> None:
    self._linked = linked(groups)
    self._is_complete = bool(self._linked.all())
    self._offsets, self._entries, _ = groups.neighbours
    self.free = groups.allowed.copy()
    self.is_solvable = self._is_complete or bool(
      propagate(
        self.free,
        np.arange(groups.num_groups),
        self._linked,
        self._offsets,
        self._entries,
      )
    )
    self._initial = self.free.copy()

  def reset(self) -> None:
    """Forgets all assignments."""
    self.free[:] = self._initial

  def assign(self, group: int, device: int) -> bool:
    """Fixes a group; false if some group is then left with no device."""
    self.free[group] = False
    self.free[group, device] = True
    if self._is_complete:
      return True
    return bool(
      propagate(
        self.free,
        np.array([group]),
        self._linked,
        self._offsets,
        self._entries,
      )
    )


@kernel
def propagate(
  free: np.ndarray,
  changed: np.ndarray,
  linked: np.ndarray,
  offsets: np.ndarray,
  entries: np.ndarray,
) -> bool:
  """Makes `free` consistent after the domains of `changed` shrank."""
  num_groups, num_devices = free.shape
  queued = np.zeros(num_groups, np.bool_)
  stack = np.empty(num_groups, np.int64)
  size = 0
  for group in changed:
    stack[size] = group
    queued[group] = True
    size += 1
  while size > 0:
    size -= 1
    group = stack[size]
    queued[group] = False
    for i in range(offsets[group], offsets[group + 1]):
      sends = entries[i] >= 0
      other = entries[i] if sends else -1 - entries[i]
      shrank, is_empty = False, True
      for target in range(num_devices):
        if not free[other, target]:
          continue
        reached = False
        for source in range(num_devices):
          if free[group, source] and (
            linked[source, target] if sends else linked[target, source]
          ):
            reached = True
            break
        if reached:
          is_empty = False
        else:
          free[other, target] = False
          shrank = True
      if is_empty:
        return False
      if shrank and not queued[other]:
        queued[other] = True
        stack[size] = other
        size += 1
  return True


def choose(
  groups: GroupGraph, scores: np.ndarray, order: np.ndarray
) -> np.ndarray:
  """Gives each group the device of least score that kernels and links allow.

  Where links are missing, a group that ends without a device goes first in
  another attempt.

  Args:
    groups: of the problem.
    scores: [num_groups, num_devices]; ties go to the lower device.
    order: [num_groups] the groups, the most important first.

  Returns:
    [num_groups] int32 devices.

  Raises:
    ProblemError: no assignment without an unlinked transfer was found.
  """
  domains = Domains(groups)
  if linked(groups).all():
    masked = np.where(groups.allowed, scores, np.inf)
    # A group whose scores are all infinite still needs an allowed device.
    masked = np.where(groups.allowed & np.isinf(masked), 1e300, masked)
    return masked.argmin(axis=1).astype(np.int32)
  if not domains.is_solvable:
    raise _unlinked(groups)
  pending = list(order)
  for _ in range(groups.num_groups + 1):
    domains.reset()
    stuck = _attempt(domains, scores, pending)
    if stuck is None:
      return domains.free.argmax(axis=1).astype(np.int32)
    if pending[0] == stuck:
      break
    pending.remove(stuck)
    pending.insert(0, stuck)
  return _one_device_per_component(groups, scores)


def choose_near(
  groups: GroupGraph, wanted: np.ndarray, order: np.ndarray | None = None
) -> np.ndarray:
  """The wanted devices as far as kernels and links allow, else the fastest.

  Args:
    groups: of the problem.
    wanted: [num_groups] device each.
    order: as of `choose`; None is the groups' own.

  Returns:
    [num_groups] int32 devices.

  Raises:
    ProblemError: as of `choose`.
  """
  scores = groups.time_us.copy()
  scores[np.arange(groups.num_groups), wanted] = -1.0
  return choose(groups, scores, groups.order if order is None else order)


def _attempt(
  domains: Domains, scores: np.ndarray, order: list[int]
) -> int | None:
  """Assigns greedily; the group that cannot be assigned, or None."""
  for group in order:
    before = domains.free.copy()
    for device in np.argsort(scores[group], kind="stable"):
      if not before[group, device]:
        continue
      if domains.assign(group, int(device)):
        break
      domains.free[:] = before
    else:
      return group
  return None


def _one_device_per_component(
  groups: GroupGraph, scores: np.ndarray
) -> np.ndarray:
  """Last resort: what is connected goes to one device."""
  from scipy.sparse import coo_matrix, csgraph  # slow to import, seldom used

  src, dst, _ = groups.edges
  shape = (groups.num_groups, groups.num_groups)
  matrix = coo_matrix((np.ones(len(src)), (src, dst)), shape)
  count, label = csgraph.connected_components(matrix, directed=False)
  free = np.ones((count, groups.num_devices), bool)
  np.logical_and.at(free, label, groups.allowed)
  if not free.any(axis=1).all():
    raise _unlinked(groups)
  total = np.zeros((count, groups.num_devices))
  np.add.at(total, label, np.where(np.isfinite(scores), scores, 1e300))
  best = np.where(free, total, np.inf).argmin(axis=1)
  best = np.where(free[np.arange(count), best], best, free.argmax(axis=1))
  return best[label].astype(np.int32)


def _unlinked(groups: GroupGraph) -> ProblemError:
  problem = groups.problem
  return ProblemError(
    f"graph {problem.graph.name!r} on cluster {problem.cluster.name!r}: found"
    " no placement in which every transfer has a link"
  )
