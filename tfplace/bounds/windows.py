"""Work between a head and a tail: what no number of devices can avoid.

The argument of Carlier (1982) and of Fernandez and Bussell (1973): ops that
cannot start before h, and that leave t to do after them, have only the time
between for all their work.
"""

import numpy as np

from tfplace.bounds.relaxed import Relaxed
from tfplace.simulate.jit import allocating, allocating_helper


def busiest_window(
  head: np.ndarray, tail: np.ndarray, work: np.ndarray, free: float
) -> tuple[float, np.ndarray]:
  """The largest head + work + tail over all pairs of thresholds.

  Proof. Let S be the ops with head >= h and tail >= t. From h to t before the
  end the devices do all of S, so step time >= h + divisible work(S) + t.

  Args:
    head: [num_ops] proven heads.
    tail: [num_ops] proven tails.
    work: [num_ops] from `priced_work`.
    free: from `priced_work`.

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
  """Adds ops by descending head to a tree over the levels of tails.

  A node holds what is added to all its leaves, and the largest leaf below it
  with the leaf's number. The leaf of level t holds t + work of tails >= t.
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
    if top[at] == -np.inf:  # the first of its tail: now S may end there
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
  """Adds `value` to the leaves 0 .. last."""
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
  """The largest head + work + tail of a colocation group.

  Proof. The group is on one device, of some class: there its ops run one
  after another with their gaps but the last (rule 2). So among those with
  head >= h and tail >= t, step time >= h + times and gaps - overhead + t.

  Args:
    relaxed: of the problem.
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


_MAX_MEMBERS = 400  # of a group whose every window is tried: their square


@allocating_helper
def _in_series(
  members: np.ndarray, head: np.ndarray, tail: np.ndarray, work: np.ndarray
) -> float:
  """max over h and t of h + work of the members between + t."""
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
