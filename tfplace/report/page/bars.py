"""Bars of a timeline, few enough for a browser.

Long intervals have a bar of their own. Runs of short ones share a bar, whose
height is the part of its length that is busy, so that the area of ink stays
true however much is merged.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Bars:
  """Bars of one row, in order of time, none over another.

  Attributes:
    start_us: [num_bars] float64.
    end_us: [num_bars] float64.
    busy: [num_bars] float64 in 0 to 1, the part of the bar that is busy.
    count: [num_bars] int64 of what is merged into each.
    kind: [num_bars] int64, of the kind that takes longest in it.
    item: [num_bars] int64, of the longest in it.
  """

  start_us: np.ndarray
  end_us: np.ndarray
  busy: np.ndarray
  count: np.ndarray
  kind: np.ndarray
  item: np.ndarray

  def __len__(self) -> int:
    return len(self.start_us)


def make_bars(
  start_us: np.ndarray,
  end_us: np.ndarray,
  kind: np.ndarray,
  limit: int,
  span_us: float,
) -> Bars:
  """At most `limit` bars for the intervals of one row.

  Args:
    start_us: [n] float64 of intervals that do not overlap.
    end_us: [n] float64; those of no length are left out.
    kind: [n] small integers.
    limit: at least 3.
    span_us: the length of the whole row.
  """
  items = np.flatnonzero(end_us > start_us)
  items = items[np.argsort(start_us[items], kind="stable")]
  start, end = start_us[items], end_us[items]
  run = np.arange(len(items))
  if len(items) > limit:
    run = _runs(start, end, 3 * span_us / limit)
  return _merge(start, end, kind[items], items, run)


def _runs(start: np.ndarray, end: np.ndarray, unit_us: float) -> np.ndarray:
  """[n] numbers of runs, ascending.

  A run is one interval longer than the unit, or shorter ones of one cell of
  that length. There are fewer long ones than units, and a long one cuts a cell
  into two runs: three runs a unit at most.
  """
  is_long = end - start > unit_us
  cell = (start / unit_us).astype(np.int64)
  is_first = np.ones(len(start), bool)
  is_first[1:] = is_long[1:] | is_long[:-1] | (np.diff(cell) > 0)
  return np.cumsum(is_first) - 1


def _merge(
  start: np.ndarray,
  end: np.ndarray,
  kind: np.ndarray,
  items: np.ndarray,
  run: np.ndarray,
) -> Bars:
  count = np.bincount(run)
  first = np.concatenate(([0], np.cumsum(count)))[:-1].astype(np.int64)
  time = end - start
  length = np.maximum.reduceat(end, first) - start[first] if len(run) else time
  busy = np.bincount(run, time) / np.maximum(length, 1e-300)
  by_time = np.lexsort((time, run))
  longest = by_time[np.cumsum(count) - 1]
  return Bars(
    start[first],
    start[first] + length,
    np.minimum(busy, 1.0),
    count,
    _main_kind(run, kind, time, len(count)),
    items[longest],
  )


def _main_kind(
  run: np.ndarray, kind: np.ndarray, time: np.ndarray, num_runs: int
) -> np.ndarray:
  """[num_runs] the kind with most time in each."""
  if not len(run):
    return np.zeros(0, np.int64)
  pairs, inverse = np.unique(np.stack((run, kind)), axis=1, return_inverse=True)
  total = np.bincount(inverse.reshape(-1), time)
  order = np.lexsort((total, pairs[0]))
  last = np.cumsum(np.bincount(pairs[0], minlength=num_runs)) - 1
  return pairs[1][order[last]]


def thin_steps(
  time: np.ndarray, value: np.ndarray, limit: int, span: float
) -> tuple[np.ndarray, np.ndarray]:
  """A step function with at most `limit` steps that keeps every peak.

  Args:
    time: [n] ascending.
    value: [n] from `time[i]` on.
    limit: at least 3.
    span: the length of the whole.

  Returns:
    Times and values; in each cell of about `2 * span / limit`, its largest
    value from its first time on, and its last from its last time on.
  """
  if len(time) <= limit or span <= 0:
    return time, value
  unit = 2 * span / (limit - 2)
  cell = (time / unit).astype(np.int64)
  first = np.flatnonzero(np.concatenate(([True], np.diff(cell) > 0)))
  last = np.append(first[1:], len(time)) - 1
  at = np.concatenate((time[first], time[last]))
  values = np.concatenate((np.maximum.reduceat(value, first), value[last]))
  order = np.argsort(at, kind="stable")
  return at[order], values[order]
