"""Keeps decisions within what kernels and links allow.

Each group has a domain, the devices that it may still take. Assigning a group
removes from its neighbours' domains whatever no link would reach, and so on
(arc consistency, Mackworth's AC-3, 1977). Where every pair of devices is
linked, which is usual, this costs nothing.
"""

import numpy as np

from tfplace.errors import ProblemError
from tfplace.placers.compiled import Index, helper, kernel
from tfplace.placers.groups import GroupGraph

_MAX_ATTEMPTS = 100  # orders of the groups that are tried where links are few


def linked(groups: GroupGraph) -> np.ndarray:
  """[num_devices, num_devices] bool: data can go from the one to the other."""
  channel = groups.problem.cluster.channel
  return (channel >= 0) | np.eye(len(channel), dtype=bool)


class Domains:
  """The devices that each group may still take.

  Attributes:
    free: [num_groups, num_devices] bool.
    is_solvable: false where some group has none.
  """

  def __init__(self, groups: GroupGraph) -> None:
    reach = linked(groups)
    offsets, entries, _ = groups.neighbours
    self.free = groups.allowed.copy()
    self.is_solvable = bool(reach.all()) or bool(
      propagate(
        self.free, np.arange(groups.num_groups), reach, offsets, entries
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
  queued = np.zeros(free.shape[0], np.bool_)
  stack = np.empty(free.shape[0], np.int64)
  for i in range(len(changed)):
    stack[i] = changed[i]
    queued[changed[i]] = True
  nothing = np.empty(0, np.int64)
  none = np.int64(0)  # a literal would be a type of its own
  is_consistent, _ = _narrow(
    free, queued, stack, len(changed), linked, offsets, entries, nothing, none
  )
  return is_consistent


@helper
def _narrow(
  free: np.ndarray,
  queued: np.ndarray,
  stack: np.ndarray,
  size: int,
  linked: np.ndarray,
  offsets: np.ndarray,
  entries: np.ndarray,
  removed: np.ndarray,
  count: Index,
) -> tuple[bool, Index]:
  """Looks at the neighbours of what is on the stack until nothing shrinks.

  Args:
    free: [num_groups, num_devices] bool; narrowed.
    queued: [num_groups] bool, which groups are on the stack; all false after.
    stack: [num_groups] int64; the first `size` entries hold.
    size: of the stack.
    linked: [num_devices, num_devices] bool.
    offsets: of the groups' neighbours, and so are entries.
    entries: see `GroupGraph.neighbours`.
    removed: [?] int64, where group x num_devices + device of what goes is
      noted from `count` on; [0] where nobody asks.
    count: devices gone so far.

  Returns:
    Whether every group has a device left, and how many devices are gone.
  """
  while size > 0:
    size -= 1
    group = stack[size]
    queued[group] = False
    for i in range(offsets[group], offsets[group + 1]):
      before = count
      other, is_left, count = _revise(
        free, group, entries[i], linked, removed, count
      )
      if not is_left:
        queued[stack[:size]] = False
        return False, count
      if count > before and not queued[other]:
        queued[other] = True
        stack[size] = other
        size += 1
  return True, count


@helper
def _revise(
  free: np.ndarray,
  group: int,
  entry: int,
  linked: np.ndarray,
  removed: np.ndarray,
  count: Index,
) -> tuple[int, bool, Index]:
  """Takes from one neighbour of `group` the devices that no link reaches.

  Returns:
    The neighbour, whether it has a device left, and how many are gone.
  """
  sends = entry >= 0
  other = entry if sends else -1 - entry
  is_left = False
  for target in range(free.shape[1]):
    if free[other, target]:
      if _reaches(free[group], sends, target, linked):
        is_left = True
      else:
        free[other, target] = False
        if len(removed):
          removed[count] = other * free.shape[1] + target
        count += 1
  return other, is_left, count


@helper
def _reaches(
  free: np.ndarray, sends: bool, target: int, linked: np.ndarray
) -> bool:
  """Whether a link joins one of the [num_devices] `free` with `target`."""
  for source in range(len(free)):
    if free[source] and (
      linked[source, target] if sends else linked[target, source]
    ):
      return True
  return False


@kernel
def _assign_all(
  free: np.ndarray,
  ranked: np.ndarray,
  order: np.ndarray,
  linked: np.ndarray,
  offsets: np.ndarray,
  entries: np.ndarray,
) -> int:
  """Assigns group after group the first device that leaves all others one.

  Args:
    free: [num_groups, num_devices] bool, consistent; narrowed to one each.
    ranked: [num_groups, num_devices] devices, the most wanted first.
    order: [num_groups] groups, the most important first.
    linked: [num_devices, num_devices] bool.
    offsets: of the groups' neighbours, and so are entries.
    entries: see `GroupGraph.neighbours`.

  Returns:
    The group that no device was left for; -1 where all have one.
  """
  num_groups, num_devices = free.shape
  queued = np.zeros(num_groups, np.bool_)
  stack = np.empty(num_groups, np.int64)
  removed = np.empty(num_groups * num_devices, np.int64)
  for group in order:
    is_assigned = False
    for device in ranked[group]:
      if not free[group, device]:
        continue
      count: Index = np.int64(0)
      for other in range(num_devices):
        if other != device and free[group, other]:
          free[group, other] = False
          removed[count] = group * num_devices + other
          count += 1
      stack[0] = group
      is_assigned, count = _narrow(
        free, queued, stack, 1, linked, offsets, entries, removed, count
      )
      if is_assigned:
        break
      for i in range(count):
        free[removed[i] // num_devices, removed[i] % num_devices] = True
    if not is_assigned:
      return group
  return -1


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
  reach = linked(groups)
  if reach.all():
    masked = np.where(groups.allowed, scores, np.inf)
    # A group whose scores are all infinite still needs an allowed device.
    masked = np.where(groups.allowed & np.isinf(masked), 1e300, masked)
    return masked.argmin(axis=1).astype(np.int32)
  domains = Domains(groups)
  if not domains.is_solvable:
    raise _unlinked(groups)
  ranked = np.argsort(scores, axis=1, kind="stable")
  offsets, entries, _ = groups.neighbours
  pending = np.array(order, np.int64)
  for _ in range(min(groups.num_groups + 1, _MAX_ATTEMPTS)):
    free = domains.free.copy()
    stuck = int(_assign_all(free, ranked, pending, reach, offsets, entries))
    if stuck < 0:
      return free.argmax(axis=1).astype(np.int32)
    if pending[0] == stuck:
      break
    pending = np.concatenate(([stuck], pending[pending != stuck]))
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
