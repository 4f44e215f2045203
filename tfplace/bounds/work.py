"""Bounds from work: in the whole step, or between a head and a tail.

The work bound lets every group be divided between devices at will and ignores
order and communication. This is a linear program, solved by HiGHS through
SciPy. A window bound (Fernandez and Bussell, 1973; Carlier, 1982) applies it to
ops that cannot start before some time h and that leave at least t to do after
them: all their work falls between h and t.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from tfplace.bounds.relaxed import Relaxed
from tfplace.simulate.jit import allocating, allocating_helper

if TYPE_CHECKING:
  from scipy import sparse


def work_prices(
  relaxed: Relaxed, ops: np.ndarray | None = None, limit_s: float = math.inf
) -> tuple[float, np.ndarray]:
  """Bounds the divisible work of some ops by pricing device time.

  Proof. A device of overhead o that runs the ops J idles after each op but its
  last, so sum(time + gap) <= T + o by rule 2 (device) of docs/simulation.md. If
  J is empty, o may be 0, which only helps. Multiply each device's inequality by
  a price p >= 0, with prices that sum to 1, and add them up: T >= sum over
  groups of the minimum, over the classes, of price times the group's time
  there, minus sum(p o). Any prices give a valid bound, so the prices of the
  linear program need not be exact. By rule 6 (memory), a price m per byte
  likewise adds m times the group's persistent bytes minus m times the memory.

  Args:
    ops: [num_chosen] positions of the ops; None means all.
    limit_s: time limit of the solver in seconds; prices found without it prove
      less.

  Returns:
    The bound in microseconds, and the [num_classes] price of one device.
  """
  spent, held = _group_costs(relaxed, ops)
  with_memory = bool(
    held.any() and held.sum() > 0.5 * relaxed.memory_bytes.min()
  )
  if len(relaxed.size) == 2 and not with_memory:
    price, rent = _two_prices(relaxed, spent, held), np.zeros(2)
  else:
    price, rent = _dual(relaxed, spent, held, with_memory, limit_s)
  best = _values(spent, held, price, rent).sum()
  free = float((relaxed.size * price * relaxed.overhead_us).sum())
  if with_memory:
    finite = np.where(rent > 0, relaxed.memory_bytes, 0.0)
    free += float((rent * finite).sum())
  return max(0.0, float(best) - free), price


def priced_work(
  relaxed: Relaxed, price: np.ndarray
) -> tuple[np.ndarray, float]:
  """Returns [num_ops] least priced work of each op and a constant to subtract.

  For any set S of ops, the devices need at least sum(priced work of S) minus
  the constant (see `work_prices`, without memory).
  """
  closed = np.isinf(relaxed.time_us)
  cost = np.where(closed, 0.0, relaxed.time_us) + relaxed.gap_us
  work = np.where(closed, np.inf, cost * price).min(axis=1, initial=np.inf)
  return work, float((relaxed.size * price * relaxed.overhead_us).sum())


def _values(
  spent: np.ndarray, held: np.ndarray, price: np.ndarray, rent: np.ndarray
) -> np.ndarray:
  """Returns the [num_priced_groups] least cost of each group at the prices."""
  closed = np.isinf(spent)
  cost = np.where(closed, 0.0, spent) * price + held[:, np.newaxis] * rent
  return np.where(closed, np.inf, cost).min(axis=1, initial=np.inf)


def _group_costs(
  relaxed: Relaxed, ops: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
  """Returns time with gaps and persistent bytes of each group.

  The time has shape [num_priced_groups, num_classes] and is inf where the group
  cannot run. Groups without time or bytes are dropped.
  """
  problem = relaxed.problem
  chosen = np.arange(problem.graph.num_ops) if ops is None else ops
  spent = np.zeros((problem.num_groups, len(relaxed.size)))
  cost = relaxed.time_us[chosen] + relaxed.gap_us[chosen]
  np.add.at(spent, problem.group_of[chosen], cost)
  held = np.bincount(
    problem.group_of, problem.graph.persistent_bytes, problem.num_groups
  )
  # A group holds its bytes on its device even if its ops are not counted.
  idle = ~np.isin(np.arange(len(spent)), problem.group_of[chosen])
  if idle.any():
    first = np.unique(problem.group_of, return_index=True)[1]
    closed = np.isinf(relaxed.time_us[first[idle]])
    spent[idle] = np.where(closed, np.inf, 0.0)
  used = (np.where(np.isfinite(spent), spent, 0).sum(axis=1) > 0) | (held > 0)
  return spent[used], held[used]


def _two_prices(
  relaxed: Relaxed, spent: np.ndarray, held: np.ndarray
) -> np.ndarray:
  """Finds the best prices of two classes; the bound is concave in the first."""

  def prices(first: float) -> np.ndarray:
    return np.array([first, (1 - first * relaxed.size[0]) / relaxed.size[1]])

  def bound(first: float) -> float:
    price = prices(first)
    free = float((relaxed.size * price * relaxed.overhead_us).sum())
    return float(_values(spent, held, price, np.zeros(2)).sum()) - free

  low, high = 0.0, 1 / float(relaxed.size[0])
  for _ in range(60):  # Ternary search shrinks the interval below 1e-10.
    third = (high - low) / 3
    if bound(low + third) < bound(high - third):
      low += third
    else:
      high -= third
  middle = (low + high) / 2
  return prices(max((0.0, middle, 1 / float(relaxed.size[0])), key=bound))


def _price_table(
  spent: np.ndarray, held: np.ndarray, limited: np.ndarray
) -> "sparse.coo_matrix":
  """Builds one constraint row per group and class that the group may be on.

  A row says value_g <= price_c * spent_gc + rent_c * held_g; its limit is 0.
  """
  from scipy.sparse import coo_matrix

  groups, classes = spent.shape
  group, column = np.nonzero(np.isfinite(spent))
  rows = np.arange(len(group))
  entries = np.concatenate(
    (
      np.ones(len(rows)),
      -spent[group, column],
      -np.where(limited[column], held[group], 0.0),
    )
  )
  at = np.concatenate((group, groups + column, groups + classes + column))
  return coo_matrix(
    (entries, (np.tile(rows, 3), at)), (len(rows), groups + 2 * classes)
  )


def _dual(
  relaxed: Relaxed,
  spent: np.ndarray,
  held: np.ndarray,
  with_memory: bool,
  limit_s: float,
) -> tuple[np.ndarray, np.ndarray]:
  """Solves the linear program for prices per device and rents per byte.

  The objective is the bound itself. The variables are one value per group, one
  price per class and one rent per class of limited memory.
  """
  # Imported here because it is slow to import.
  from scipy.optimize import linprog

  groups, classes = spent.shape
  fallback = np.full(classes, 1 / relaxed.size.sum()), np.zeros(classes)
  if not groups or (classes == 1 and not with_memory):
    return fallback
  memory = relaxed.memory_bytes if with_memory else np.full(classes, np.inf)
  limited = np.isfinite(memory)
  unit = max(1.0, float(held.max(initial=1.0)))
  scale = max(1e-9, float(spent[np.isfinite(spent)].max(initial=0.0)))
  table = _price_table(spent / scale, held / unit, limited)
  objective = np.concatenate(
    (
      -np.ones(groups),
      relaxed.size * relaxed.overhead_us / scale,
      np.where(limited, memory / unit, 0.0),
    )
  )
  equal = np.zeros((1, len(objective)))
  equal[0, groups : groups + classes] = relaxed.size
  solved = linprog(
    objective,
    A_ub=table.tocsr(),
    b_ub=np.zeros(table.shape[0]),
    A_eq=equal,
    b_eq=[1.0],
    bounds=[(None, None)] * groups
    + [(0, None)] * classes
    + [(0, None if limit else 0) for limit in limited],
    method="highs",
    options={} if limit_s == math.inf else {"time_limit": max(limit_s, 1e-3)},
  )
  if solved.x is None:
    if classes == 2:
      return _two_prices(relaxed, spent, held), np.zeros(2)
    return fallback
  price = np.maximum(solved.x[groups : groups + classes], 0.0)
  price = price / float((relaxed.size * price).sum())
  rent = np.maximum(solved.x[groups + classes :], 0.0) * scale / unit
  return price, np.where(limited, rent, 0.0)


def busiest_window(
  head: np.ndarray, tail: np.ndarray, work: np.ndarray, free: float
) -> tuple[float, np.ndarray]:
  """Finds the largest head + work + tail over all pairs of thresholds.

  Proof. Let S be the ops with head >= h and tail >= t. The devices do all work
  of S between h and t before the end, so T >= h + divisible work(S) + t.

  Args:
    head: [num_ops] proven heads.
    tail: [num_ops] proven tails.
    work: [num_ops] from `priced_work`.
    free: constant to subtract, from `priced_work`.

  Returns:
    The bound in microseconds, and the positions of the best S.
  """
  used = np.flatnonzero(work > 0)
  if not len(used):
    return 0.0, used
  levels, level = np.unique(tail[used], return_inverse=True)
  order = np.argsort(-head[used], kind="stable")
  best, from_head, from_tail = _sweep(
    head[used][order], level[order], work[used][order], levels
  )
  chosen = (head[used] >= from_head) & (tail[used] >= levels[from_tail])
  return best - free, used[chosen]


@allocating
def _sweep(
  head: np.ndarray, level: np.ndarray, work: np.ndarray, levels: np.ndarray
) -> tuple[float, float, int]:
  """Adds ops by descending head to a segment tree over the levels of tails.

  A node holds the sum added to all its leaves, and the value and index of its
  largest leaf. The leaf of tail t holds t + the work of ops with tails >= t.
  """
  width = 1
  while width < len(levels):
    width *= 2
  add = np.zeros(2 * width)
  top = np.full(2 * width, -np.inf)
  leaf = np.zeros(2 * width, np.int64)
  best, from_head, from_tail = -np.inf, 0.0, 0
  for i in range(len(head)):
    at = width + level[i]
    if top[at] == -np.inf:  # The first op of its tail, so S may end here.
      top[at] = levels[level[i]] + add[at]
      leaf[at] = level[i]
    _add_upto(add, top, leaf, width, level[i], work[i])
    if head[i] + top[1] > best:
      best, from_head, from_tail = head[i] + top[1], head[i], leaf[1]
  return best, from_head, from_tail


@allocating_helper
def _pull(
  add: np.ndarray, top: np.ndarray, leaf: np.ndarray, node: int
) -> None:
  child = 2 * node
  if top[child + 1] > top[child]:
    child += 1
  top[node] = top[child] + add[node]
  leaf[node] = leaf[child]


@allocating_helper
def _add_upto(
  add: np.ndarray,
  top: np.ndarray,
  leaf: np.ndarray,
  width: int,
  last: int,
  value: float,
) -> None:
  node = width + last
  add[node] += value
  top[node] += value
  while node > 1:
    if node & 1:
      add[node - 1] += value
      top[node - 1] += value
    node >>= 1
    _pull(add, top, leaf, node)


def busiest_group(
  relaxed: Relaxed, head: np.ndarray, tail: np.ndarray
) -> float:
  """Finds the largest head + work + tail of a colocation group.

  Proof. One device, of some class, runs all ops of the group one by one, with
  gaps after all but the last, by rule 2 (device) of docs/simulation.md. For its
  ops with head >= h and tail >= t, T >= h + times and gaps - overhead + t.

  Args:
    head: [num_ops, num_classes] proven heads.
    tail: [num_ops, num_classes] proven tails.
  """
  offsets, ops = relaxed.problem.group_ops
  work = relaxed.time_us + relaxed.gap_us
  return float(
    _busiest_group(offsets, ops, head, tail, work, relaxed.overhead_us)
  )


@allocating
def _busiest_group(
  offsets: np.ndarray,
  ops: np.ndarray,
  head: np.ndarray,
  tail: np.ndarray,
  work: np.ndarray,
  overhead: np.ndarray,
) -> float:
  best = 0.0
  for group in range(len(offsets) - 1):
    members = ops[offsets[group] : offsets[group + 1]]
    if len(members) < 2:
      continue
    least = np.inf
    for c in range(head.shape[1]):
      if work[members[0], c] < np.inf:
        alone = _in_series(members, head[:, c], tail[:, c], work[:, c])
        least = min(least, alone - overhead[c])
    if least < np.inf:
      best = max(best, least)
  return best


# Limit per group; the windows that are tried grow with its square.
_MAX_MEMBERS = 400


@allocating_helper
def _in_series(
  members: np.ndarray, head: np.ndarray, tail: np.ndarray, work: np.ndarray
) -> float:
  """Returns the maximum over h and t of h + work of members between + t."""
  order = members[np.argsort(-head[members])]
  best, total = 0.0, 0.0
  least = np.inf
  tries = order[: min(len(order), _MAX_MEMBERS)]
  for op in order:
    if work[op] > 0:
      total += work[op]
      least = min(least, tail[op])
      best = max(best, head[op] + total + least)
  for t in tail[tries]:
    total = 0.0
    for op in order:
      if tail[op] >= t and work[op] > 0:
        total += work[op]
        best = max(best, head[op] + total + t)
  return best
