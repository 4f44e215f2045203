"""Ops that a deadline forces onto one device.

An op between two others on one device pays for transfers to leave it and to
come back. So the more ops are known to be on the device, the fewer can leave.
"""

import numpy as np

from tfplace.bounds.relaxed import Flow
from tfplace.simulate.jit import Index, allocating_helper
from tfplace.simulate.links import arrival_us

_HALVINGS = 8  # Bisection steps on the interval of deadlines.


@allocating_helper
def relax_edge(
  flow: Flow,
  op: Index,
  c: int,
  root: int,
  edge: int,
  near: np.ndarray,
  far: np.ndarray,
) -> None:
  """Propagates the path times from `op` to the root over an edge into `op`.

  The root is on class c. `near[w]` is the least time from the end of w to the
  start of the root if both share a device, `far[w, k]` if w is on another
  device, of class k.
  """
  num_classes = far.shape[1]
  u = flow.before[edge]
  together = flow.group_of[u] == flow.group_of[op]
  size = flow.num_bytes[edge]
  at_root = op == root
  stay = flow.gap_us[edge, c]
  if not at_root:
    stay += flow.time_us[op, c] + near[op]
  best = stay
  if not together and not at_root:
    for k in range(num_classes):
      way = arrival_us(flow.links, 0.0, size, c, k)
      best = min(best, way + flow.time_us[op, k] + far[op, k])
  near[u] = max(near[u], best)
  for k in range(num_classes):
    best = np.inf
    if not together:
      best = arrival_us(flow.links, 0.0, size, k, c)
      if not at_root:
        best += flow.time_us[op, c] + near[op]
    if not at_root:
      best = min(best, flow.gap_us[edge, k] + flow.time_us[op, k] + far[op, k])
      if not together:
        for j in range(num_classes):
          way = arrival_us(flow.links, 0.0, size, k, j)
          best = min(best, way + flow.time_us[op, j] + far[op, j])
    far[u, k] = max(far[u, k], best)


@allocating_helper
def latest_impossible(
  flow: Flow,
  head: np.ndarray,
  root: int,
  c: int,
  ops: np.ndarray,
  place: np.ndarray,
  near: np.ndarray,
  far: np.ndarray,
  least: float,
  most: float,
) -> float:
  """Finds a late time at which the root on class `c` provably cannot start.

  Proof. Suppose that the root starts at time T or before. An op whose output
  would arrive too late from any other device must be on the root's device. Let
  M be the set of these ops. Any other op elsewhere pays transfers from the ops
  of M that it needs and to those that it feeds, so further ops may arrive too
  late and join M, until M stops growing. All of M runs in series. If that ends
  after T, the root starts after T. Any T may be tried; bisection finds a late
  one.

  Args:
    flow: the problem, in either direction.
    head: [num_ops, num_classes], final for `ops`.
    ops: ops before the root, each after all that it feeds.
    place: [num_ops] index in `ops`, negative for others.
    near: [num_ops] scratch.
    far: [num_ops, num_classes] scratch.
    most: time from which nothing can be proven.
  """
  size, num_classes = len(ops), head.shape[1]
  here = np.empty(size)
  away = np.empty((size, num_classes))
  forced = np.zeros(size, np.bool_)
  # Usually even the first deadline is possible. Otherwise the last one is often
  # impossible.
  last = most * (1 - 1e-12)
  best, deadline = least, least
  for turn in range(_HALVINGS):
    if _is_impossible(
      flow, head, root, c, ops, place, near, far, deadline, here, away, forced
    ):
      best = deadline
      if turn == 1:
        break
    elif turn == 0:
      break
    else:
      most = deadline
    deadline = last if turn == 0 else (best + most) / 2
  return best


@allocating_helper
def _is_impossible(
  flow: Flow,
  head: np.ndarray,
  root: int,
  c: int,
  ops: np.ndarray,
  place: np.ndarray,
  near: np.ndarray,
  far: np.ndarray,
  deadline: float,
  here: np.ndarray,
  away: np.ndarray,
  forced: np.ndarray,
) -> bool:
  """Returns True if the root provably starts after `deadline`."""
  size, num_classes = len(ops), head.shape[1]
  forced[:] = False
  while True:
    _ways_back(flow, root, c, ops, place, near, far, forced)
    _ways_there(flow, head, c, ops, place, here, away, forced)
    changed = False
    for i in range(size):
      op = ops[i]
      if forced[i]:
        continue
      arrival = np.inf
      if flow.group_of[op] != flow.group_of[root]:
        for k in range(num_classes):
          end = away[i, k] + flow.time_us[op, k]
          arrival = min(arrival, end + far[op, k])
      if arrival > deadline:
        forced[i] = True
        changed = True
    if _series(flow, root, c, ops, here, near, forced) > deadline:
      return True
    if not changed:
      return False


@allocating_helper
def _ways_back(
  flow: Flow,
  root: int,
  c: int,
  ops: np.ndarray,
  place: np.ndarray,
  near: np.ndarray,
  far: np.ndarray,
  forced: np.ndarray,
) -> None:
  """Computes `near` and `far` to the root with forced ops on its device."""
  near[ops] = 0.0
  for i in range(len(ops)):
    far[ops[i], :] = 0.0
  for at in range(-1, len(ops)):
    op: Index = root if at < 0 else ops[at]
    if at >= 0 and forced[at]:
      far[op, :] = np.inf
    for i in range(flow.offsets[op], flow.offsets[op + 1]):
      if place[flow.before[i]] >= 0:
        relax_edge(flow, op, c, root, i, near, far)


@allocating_helper
def _ways_there(
  flow: Flow,
  head: np.ndarray,
  c: int,
  ops: np.ndarray,
  place: np.ndarray,
  here: np.ndarray,
  away: np.ndarray,
  forced: np.ndarray,
) -> None:
  """Computes the least starts on the root's device and on other devices."""
  num_classes = head.shape[1]
  for at in range(len(ops) - 1, -1, -1):
    op = ops[at]
    here[at] = head[op, c]
    for k in range(num_classes):
      away[at, k] = np.inf if forced[at] else head[op, k]
    for i in range(flow.offsets[op], flow.offsets[op + 1]):
      before = place[flow.before[i]]
      if before < 0:
        continue
      u = flow.before[i]
      together = flow.group_of[u] == flow.group_of[op]
      size = flow.num_bytes[i]
      best = here[before] + flow.time_us[u, c] + flow.gap_us[i, c]
      if not together:
        for k in range(num_classes):
          way = arrival_us(flow.links, 0.0, size, k, c)
          best = min(best, away[before, k] + flow.time_us[u, k] + way)
      here[at] = max(here[at], best)
      if forced[at]:
        continue
      for k in range(num_classes):
        best = away[before, k] + flow.time_us[u, k] + flow.gap_us[i, k]
        if not together:
          way = arrival_us(flow.links, 0.0, size, c, k)
          best = min(best, here[before] + flow.time_us[u, c] + way)
          for j in range(num_classes):
            way = arrival_us(flow.links, 0.0, size, j, k)
            best = min(best, away[before, j] + flow.time_us[u, j] + way)
        away[at, k] = max(away[at, k], best)


@allocating_helper
def _series(
  flow: Flow,
  root: int,
  c: int,
  ops: np.ndarray,
  here: np.ndarray,
  near: np.ndarray,
  forced: np.ndarray,
) -> float:
  """Returns the least start of the root after the forced ops run in series."""
  result, total = 0.0, flow.spare_us[root, c]
  for i in np.argsort(-here):
    op = ops[i]
    if forced[i]:
      end = here[i] + flow.time_us[op, c] + near[op]
      result = max(result, end)
      if flow.work_us[op, c] > 0:
        total += flow.work_us[op, c]
        result = max(result, here[i] + total)
  return result
