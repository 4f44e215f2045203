"""Bounds from the work of the whole step.

Every group may be divided between devices at will; order and communication are
ignored. This is a linear program, solved by HiGHS through SciPy.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from tfplace.bounds.relaxed import Relaxed

if TYPE_CHECKING:
  from scipy import sparse


def work_prices(
  relaxed: Relaxed, limit_s: float = math.inf
) -> tuple[float, np.ndarray]:
  """Bounds the divisible work of all ops by pricing device time.

  Proof. A device of overhead o that runs the ops J idles after each op but its
  last, so sum(time + gap) <= T + o by rule 2 (device) of docs/simulation.md. If
  J is empty, o may be 0, which only helps. Multiply each device's inequality by
  a price p >= 0, with prices that sum to 1, and add them up: T >= sum over
  groups of the minimum, over the classes, of price times the group's time
  there, minus sum(p o). Any prices give a valid bound, so the prices of the
  linear program need not be exact. By rule 6 (memory), a price m per byte
  likewise adds m times the group's persistent bytes minus m times the memory.

  Args:
    limit_s: time limit of the solver in seconds; prices found without it prove
      less.

  Returns:
    The bound in microseconds, and the [num_classes] price of one device.
  """
  spent, held = _group_costs(relaxed)
  with_memory = bool(held.sum() > 0.5 * relaxed.memory_bytes.min())
  if len(relaxed.size) == 2 and not with_memory:
    price, rent = _two_prices(relaxed, spent), np.zeros(2)
  else:
    price, rent = _dual(
      relaxed, spent, held, with_memory=with_memory, limit_s=limit_s
    )
  best = _values(spent, price, held[:, np.newaxis] * rent).sum()
  free = _last_gaps_us(relaxed, price)
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
  work = _values(relaxed.time_us + relaxed.gap_us, price)
  return work, _last_gaps_us(relaxed, price)


def _last_gaps_us(relaxed: Relaxed, price: np.ndarray) -> float:
  """Returns the priced gaps after the last op of each device."""
  return float((relaxed.size * price * relaxed.overhead_us).sum())


def _values(
  spent: np.ndarray, price: np.ndarray, rents: np.ndarray | float = 0.0
) -> np.ndarray:
  """Returns the least cost of each row of `spent` at the prices, and rents."""
  closed = np.isinf(spent)
  cost = np.where(closed, 0.0, spent) * price + rents
  return np.where(closed, np.inf, cost).min(axis=1, initial=np.inf)


def _group_costs(relaxed: Relaxed) -> tuple[np.ndarray, np.ndarray]:
  """Returns time with gaps and persistent bytes of each group.

  The time has shape [num_priced_groups, num_classes] and is inf where the group
  cannot run. Groups without time or bytes are dropped.
  """
  problem = relaxed.problem
  spent = np.zeros((problem.num_groups, len(relaxed.size)))
  np.add.at(spent, problem.group_of, relaxed.time_us + relaxed.gap_us)
  held = problem.group_persistent_bytes
  used = (np.where(np.isfinite(spent), spent, 0).sum(axis=1) > 0) | (held > 0)
  return spent[used], held[used]


def _two_prices(relaxed: Relaxed, spent: np.ndarray) -> np.ndarray:
  """Finds the best prices of two classes; the bound is concave in the first."""

  def prices(first: float) -> np.ndarray:
    return np.array([first, (1 - first * relaxed.size[0]) / relaxed.size[1]])

  def bound(first: float) -> float:
    price = prices(first)
    return float(_values(spent, price).sum()) - _last_gaps_us(relaxed, price)

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
  *,
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
      return _two_prices(relaxed, spent), np.zeros(2)
    return fallback
  price = np.maximum(solved.x[groups : groups + classes], 0.0)
  price = price / float((relaxed.size * price).sum())
  rent = np.maximum(solved.x[groups + classes :], 0.0) * scale / unit
  return price, np.where(limited, rent, 0.0)
