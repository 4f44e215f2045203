"""Rated moves that a chain samples, besides its own.

A rater, such as a policy, rates moves of coarse groups for the placement of a
chain; rating all of them costs as much as a few simulations. The share of rated
moves is their share of the recent gain per move.
"""

import math
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tfplace.core.csr import csr
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.moves import uniform
from tfplace.placers.search.state import MOVED, SearchState, TimeOrder
from tfplace.simulate.jit import Index, helper

RATED, OWN = 0, 1  # Rows of `Guide.tally`.
# Share of rated moves: while too few have been tried to compare, where they
# gain nothing, and where only they gain. These constants were hardly tuned.
_FIRST_SHARE, _LEAST_SHARE, _MOST_SHARE = 0.5, 0.1, 0.8
_LEAST_MOVES = 20  # Moves of each kind to compare.
_MEMORY = 0.9  # Factor on the gains and numbers of moves with each rating.
# Factor on the weight of a move for each time that it was tried. Each rating of
# its set halves these counts.
_TRIED = 0.7
RATING_SHARE = 0.3  # Time of ratings, relative to that of rated moves.


class Guide(NamedTuple):
  """Rated moves of one chain. A move moves a part to a device.

  Attributes:
    share: [1] float64 fraction of the moves to sample from here.
    total: [num_parts * num_devices] float64 cumulative weights.
    tries: [num_parts * num_devices] float64 times that each was sampled; fades.
    offsets: [num_parts + 1] int64 offsets into `members`.
    members: [?] int32 groups of each part.
    tally: [2, 2] float64 gains (as logs of step times) and numbers of moves, of
      rated and own moves; they fade.
  """

  share: np.ndarray
  total: np.ndarray
  tries: np.ndarray
  offsets: np.ndarray
  members: np.ndarray
  tally: np.ndarray


class Proposer(Protocol):
  """Source of rated moves and changed placements; safe in several threads."""

  @property
  def labels(self) -> Sequence[np.ndarray]:
    """[num_ops] part of each op, from 0 on, for each set of moves."""
    ...

  def rate(self, number: int, devices: np.ndarray) -> np.ndarray:
    """Rates the moves of a set for a placement.

    Args:
      number: Number of the set.
      devices: [num_ops].

    Returns:
      [num_parts, num_devices] probabilities that the move is better than none.
    """
    ...

  def propose(
    self, devices: np.ndarray, number: int, rng: np.random.Generator
  ) -> np.ndarray:
    """Changes [num_ops] allowed devices.

    Args:
      number: Number of the proposal, from 0 on.
    """
    ...


def guide_of(labels: Sequence[np.ndarray], num_devices: int) -> Guide:
  """Returns a guide whose moves have no weight yet.

  Args:
    labels: [num_groups] part of each group, for each set of moves; () for none.
  """
  count, parts, groups = 0, [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
  for label in labels:
    parts.append(label.astype(np.int64) + count)
    groups.append(np.arange(len(label)))
    count += int(label.max()) + 1
  offsets, at = csr(np.concatenate(parts), count)
  return Guide(
    share=np.zeros(1),
    total=np.zeros(count * num_devices),
    tries=np.zeros(count * num_devices),
    offsets=offsets,
    members=np.concatenate(groups)[at].astype(np.int32),
    tally=np.zeros((2, 2)),
  )


class Guided:
  """Keeps the guide of one chain up to date.

  Args:
    order: Renumbering of the problem in the search.

  Attributes:
    guide: Rated moves in the numbering of the search.
  """

  def __init__(
    self, rater: Proposer, groups: GroupGraph, order: TimeOrder
  ) -> None:
    self._rater, self._groups, self._order = rater, groups, order
    labels = [label[groups.first_ops] for label in rater.labels]
    entered = [order.enter(label) for label in labels]
    self.guide = guide_of(entered, groups.num_devices)
    sizes = [int(label.max()) + 1 for label in labels]
    self._ends = np.cumsum([0, *sizes]) * groups.num_devices
    self._weight = np.zeros(self._ends[-1])
    self._turn = 0
    self._next = -math.inf  # Time of the next rating.

  def update(self, devices: np.ndarray) -> None:
    """Rates moves of [num_groups] devices if it is time; sets the share."""
    began = time.perf_counter()
    if not len(self.guide.total) or began < self._next:
      return
    sets = len(self._ends) - 1
    base = self._groups.expand(self._order.leave(devices))
    # The first call rates all sets, later calls one each.
    for _ in range(sets if self._turn == 0 else 1):
      self._rate(self._turn % sets, base)
      self._turn += 1
    np.cumsum(self._weight, out=self.guide.total)
    self.guide.share[0] = share = self._share()
    self.guide.tally[:] *= _MEMORY
    now = time.perf_counter()
    rated_s = (now - began) / RATING_SHARE
    self._next = now + rated_s / max(_LEAST_SHARE, share)

  def _rate(self, number: int, base: np.ndarray) -> None:
    part = slice(self._ends[number], self._ends[number + 1])
    tries = self.guide.tries[part]
    rated = self._rater.rate(number, base).ravel() * _TRIED**tries
    tries *= 0.5
    # Each set has the same weight, whatever the number of its parts.
    self._weight[part] = rated / max(float(rated.sum()), 1e-30)

  def _share(self) -> float:
    gains, moves = self.guide.tally.T
    if not self._weight.any():
      return 0.0
    if moves.min() < _LEAST_MOVES:
      return _FIRST_SHARE
    rates = gains / moves
    share = rates[RATED] / max(rates.sum(), 1e-30)
    return min(_MOST_SHARE, max(_LEAST_SHARE, share))


@helper
def sample_rated(guide: Guide, state: SearchState, num_devices: int) -> None:
  """Fills `moved` and `targets` with a rated move."""
  total = guide.total
  first: Index = np.int64(0)
  last: Index = np.int64(len(total) - 1)
  wanted = uniform(state) * total[last]
  while first < last:
    middle = (first + last) // 2
    if total[middle] <= wanted:
      first = middle + 1
    else:
      last = middle
  guide.tries[first] += 1.0
  begin, end = guide.offsets[first // num_devices : first // num_devices + 2]
  for i in range(begin, end):
    state.moved[i - begin] = guide.members[i]
    state.targets[i - begin] = first % num_devices
  state.counts[MOVED] = end - begin
