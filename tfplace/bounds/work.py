"""Work that must be done somewhere: the bound that knows each kind's speed.

Every group of ops may be split between devices at will, and order and
communication cost nothing: a linear program (HiGHS, through SciPy).
"""

import math

import numpy as np

from tfplace.bounds.relaxed import Relaxed


def work_prices(
  relaxed: Relaxed, ops: np.ndarray | None = None, limit_s: float = math.inf
) -> tuple[float, np.ndarray]:
  """The divisible work of some ops, and what an hour of each device is worth.

  Proof. A device of overhead o that runs the ops J has an idle gap after each
  but its last, so sum(time + gap) <= T + o by rule 2 (o is 0 on the right
  where J is empty, which only helps). Weigh this by a price p >= 0 per device,
  the prices of all devices adding up to 1, and add: T >= sum over groups of
  the least, over the classes, of price times the group's time there, less
  sum(p o). This holds for any prices, so the prices that the linear program's
  solver finds need not be exact; a memory price m adds m times the group's
  persistent bytes, less m times the memory, by rule 6 in the same way.

  Args:
    relaxed: of the problem.
    ops: [some] positions; None is all of them.
    limit_s: seconds for the solver; prices without it prove less.

  Returns:
    The bound in microseconds, and [num_classes] the price of one device.
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
  """[num_ops] least priced work of each op, and what is to be taken off once.

  For any set S of ops, the devices need at least sum(priced work of S) less
  the second value (see `work_prices`, without memory).
  """
  closed = np.isinf(relaxed.time_us)
  cost = np.where(closed, 0.0, relaxed.time_us) + relaxed.gap_us
  work = np.where(closed, np.inf, cost * price).min(axis=1, initial=np.inf)
  return work, float((relaxed.size * price * relaxed.overhead_us).sum())


def _values(
  spent: np.ndarray, held: np.ndarray, price: np.ndarray, rent: np.ndarray
) -> np.ndarray:
  """[groups] the least that each costs at these prices."""
  closed = np.isinf(spent)
  cost = np.where(closed, 0.0, spent) * price + held[:, np.newaxis] * rent
  return np.where(closed, np.inf, cost).min(axis=1, initial=np.inf)


def _group_costs(
  relaxed: Relaxed, ops: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
  """Time with gaps [groups, classes], inf where disallowed, and bytes kept.

  Groups without time or bytes are left out.
  """
  problem = relaxed.problem
  chosen = np.arange(problem.graph.num_ops) if ops is None else ops
  spent = np.zeros((problem.num_groups, len(relaxed.size)))
  cost = relaxed.time_us[chosen] + relaxed.gap_us[chosen]
  np.add.at(spent, problem.group_of[chosen], cost)
  held = np.bincount(
    problem.group_of, problem.graph.persistent_bytes, problem.num_groups
  )
  # Groups keep their bytes where they are, whether or not they are counted.
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
  """The best prices of two classes: the bound is concave in the first."""

  def prices(first: float) -> np.ndarray:
    return np.array([first, (1 - first * relaxed.size[0]) / relaxed.size[1]])

  def bound(first: float) -> float:
    price = prices(first)
    free = float((relaxed.size * price * relaxed.overhead_us).sum())
    return float(_values(spent, held, price, np.zeros(2)).sum()) - free

  low, high = 0.0, 1 / float(relaxed.size[0])
  for _ in range(60):  # thirds: the interval shrinks below 1e-10
    third = (high - low) / 3
    if bound(low + third) < bound(high - third):
      low += third
    else:
      high -= third
  middle = (low + high) / 2
  return prices(max((0.0, middle, 1 / float(relaxed.size[0])), key=bound))


def _dual(
  relaxed: Relaxed,
  spent: np.ndarray,
  held: np.ndarray,
  with_memory: bool,
  limit_s: float,
) -> tuple[np.ndarray, np.ndarray]:
  """Prices per device and rents per byte that make the bound large.

  Maximises the bound itself, a linear program in one variable per group, one
  price per class and one rent per class of limited memory.
  """
  from scipy.optimize import linprog  # slow to import
  from scipy.sparse import coo_matrix

  groups, classes = spent.shape
  fallback = np.full(classes, 1 / relaxed.size.sum()), np.zeros(classes)
  if not groups or (classes == 1 and not with_memory):
    return fallback
  group, column = np.nonzero(np.isfinite(spent))
  rows = np.arange(len(group))
  memory = relaxed.memory_bytes if with_memory else np.full(classes, np.inf)
  limited = np.isfinite(memory)
  unit = max(1.0, float(held.max(initial=1.0)))
  scale = max(1e-9, float(spent[np.isfinite(spent)].max(initial=0.0)))
  # value_g <= price_c * spent_gc + rent_c * held_g, for every open class.
  entries = np.concatenate(
    (
      np.ones(len(rows)),
      -spent[group, column] / scale,
      -np.where(limited[column], held[group] / unit, 0.0),
    )
  )
  at = np.concatenate((group, groups + column, groups + classes + column))
  table = coo_matrix(
    (entries, (np.tile(rows, 3), at)), (len(rows), groups + 2 * classes)
  )
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
    b_ub=np.zeros(len(rows)),
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
