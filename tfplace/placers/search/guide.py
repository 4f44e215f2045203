"""Rated moves that a chain draws from, besides its own.

A rater, such as a policy, rates moves of coarse groups for the placement of a
chain; rating all of them costs as much as a few simulations. The share of rated
moves is their share of the recent gain per move.
"""

import dataclasses
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


class Guide(NamedTuple):
  """Rated moves of one chain. A move moves a part to a device.

  Attributes:
    share: [1] float64 fraction of the moves to draw from here.
    total: [num_parts * num_devices] float64 cumulative weights.
    tries: [num_parts * num_devices] float64 how often each was drawn; it fades.
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


class Rater(Protocol):
  """Source of ratings; safe in several threads."""

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


@dataclasses.dataclass(frozen=True)
class GuideConfig:
  """Settings of rated moves; the defaults were hardly tuned.

  Attributes:
    first_share: Share of the moves while too few have been drawn to compare.
    least_share: Share of rated moves that gain nothing.
    most_share: Share where only rated moves gain.
    least_moves: Moves of each kind to compare.
    memory: Factor on the gains and numbers of moves with each rating.
    tried: Factor on the weight of a move for each time that it was drawn. Each
      rating of its set halves these counts.
    rating_share: Time spent on ratings, relative to that spent on rated moves.
  """

  first_share: float = 0.5
  least_share: float = 0.1
  most_share: float = 0.8
  least_moves: int = 20
  memory: float = 0.9
  tried: float = 0.7
  rating_share: float = 0.3


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
    self,
    rater: Rater,
    groups: GroupGraph,
    order: TimeOrder,
    config: GuideConfig,
  ) -> None:
    self._rater, self._groups, self._order = rater, groups, order
    self._config = config
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
    self.guide.tally[:] *= self._config.memory
    now = time.perf_counter()
    rated_s = (now - began) / self._config.rating_share
    self._next = now + rated_s / max(self._config.least_share, share)

  def _rate(self, number: int, base: np.ndarray) -> None:
    part = slice(self._ends[number], self._ends[number + 1])
    tries = self.guide.tries[part]
    rated = self._rater.rate(number, base).ravel() * self._config.tried**tries
    tries *= 0.5
    # Each set has the same weight, whatever the number of its parts.
    self._weight[part] = rated / max(float(rated.sum()), 1e-30)

  def _share(self) -> float:
    config, (gains, moves) = self._config, self.guide.tally.T
    if not self._weight.any():
      return 0.0
    if moves.min() < config.least_moves:
      return config.first_share
    rates = gains / moves
    share = rates[RATED] / max(rates.sum(), 1e-30)
    return min(config.most_share, max(config.least_share, share))


@helper
def draw(guide: Guide, state: SearchState, num_devices: int) -> None:
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
