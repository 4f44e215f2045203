"""How a search spends its budget: its settings, its scale and its rounds."""

import dataclasses
import time

from tfplace.core.protocols import is_optimal
from tfplace.placers.groups import GroupGraph

# All values chosen by trial.
SWEEP_SHARE = 0.5  # of the budget, what the sweeps of a large graph may take
SWEPT = 0.1  # share of the first temperature, where a large graph was swept
WARM = 0.4  # share of it, where a round continues from the best placement
EVALUATIONS_PER_GROUP = 400.0  # of a round, per group and chain
PATIENCE = 40  # rounds without an improvement that end the search early
CHUNK_EVALUATIONS = 500  # between looks at the clock, where they are the budget
_CHUNK_S = 0.1  # between looks at the clock, where seconds are
_LARGE_HOT = 0.006  # `SearchConfig.hot` of a large graph
_COLD = 3e-5  # last temperature of a round, as a share of the lower bound
# What an excess of all of a device's memory costs, in lower bounds.
_PENALTY = 5.0
_WARM_LEVELS = 0.5  # share of the levels that a round from the best begins with
_COARSE_SHARE = 0.8  # share of a round after which single groups may move, too
# Share of a large graph's moves that take, of a unit, only what is on one
# device.
_PART_SHARE = 0.5
_WINDOW = 3  # levels above the least that move, too, where there are many
# Shares of a large graph's round after which the chain that is worst off goes
# on from where the best one is.
_MEETINGS = (0.3, 0.6)


@dataclasses.dataclass(frozen=True)
class SearchConfig:
  """What may be set of a search; defaults chosen by trial.

  Attributes:
    chains: chains, and threads; the result depends on it.
    hot: first temperature, as a share of the lower bound; the mean work of a
      group where that is more, so that every move has a chance at first.
    coarse_groups: from so many groups on a graph is large, and a round begins
      with units of them only.
  """

  chains: int = 2
  hot: float = 0.01
  coarse_groups: int = 1000


@dataclasses.dataclass(frozen=True)
class Scale:
  """What temperatures and moves go by, for one problem.

  Attributes:
    unit_us: what temperatures and penalties are shares of.
    hot_us: first temperature.
    bound_us: no step is faster.
    is_large: whether single groups wait until units have been placed.
  """

  unit_us: float
  hot_us: float
  bound_us: float
  is_large: bool

  @property
  def cold_us(self) -> float:
    """Last temperature of a round."""
    return _COLD * self.unit_us

  @property
  def penalty_us(self) -> float:
    """What an excess of all of a device's memory costs."""
    return _PENALTY * self.unit_us

  @property
  def part_share(self) -> float:
    return _PART_SHARE if self.is_large else 0.0

  @property
  def stages(self) -> tuple[float, ...]:
    """Shares of a round after which chains meet, and its end."""
    return (*_MEETINGS, 1.0) if self.is_large else (1.0,)

  def is_optimal(self, step_time_us: float) -> bool:
    return is_optimal(step_time_us, self.bound_us)

  def levels(self, top: int, progress: float, hot_us: float) -> tuple[int, int]:
    """Least and greatest level of the units to move.

    A small graph uses all levels all the time. A large one begins with few
    large units: single groups would scatter while it is hot.

    Args:
      top: the greatest level.
      progress: share of the round that is over.
      hot_us: first temperature of the round.
    """
    if not self.is_large:
      return 0, top
    coarse = max(0.0, 1.0 - progress / _COARSE_SHARE)
    if hot_us < self.hot_us:
      coarse *= _WARM_LEVELS
    lowest = round(max(0, top - _WINDOW) * coarse)
    return lowest, min(top, lowest + _WINDOW)


def scale_of(
  groups: GroupGraph,
  config: SearchConfig,
  num_movable: int,
  longest_us: float,
) -> Scale:
  """The scale of a problem.

  Args:
    groups: of the problem.
    config: of the search.
    num_movable: groups that may be on more than one device.
    longest_us: the longest path, with its least waits.
  """
  problem = groups.problem
  # An empty or free graph has nothing to search.
  unit_us = max(problem.simple_bound_us, 1e-9)
  work_us = float(groups.fastest_us.sum()) / max(groups.num_groups, 1)
  is_large = num_movable >= config.coarse_groups
  hot = _LARGE_HOT if is_large else config.hot
  return Scale(
    unit_us,
    max(hot * unit_us, work_us),
    max(problem.lower_bound_us, longest_us),
    is_large,
  )


@dataclasses.dataclass(frozen=True)
class Rounds:
  """How the budget is divided into rounds of equal length.

  Attributes:
    count: of rounds.
    quota: evaluations of each chain in all, or None where seconds count.
    began: when the rounds began, `time.perf_counter()`.
    seconds: for all rounds.
  """

  count: int
  quota: int | None
  began: float
  seconds: float

  def chunk(self, number: int, done: int, rate: float) -> int:
    """Evaluations until the next look at the clock; 0 at the round's end."""
    if self.quota is not None:
      return min(CHUNK_EVALUATIONS, self._share(number) - done)
    left_s = self._ends(number) - time.perf_counter()
    if left_s <= 0:
      return 0
    return max(1, int(rate * min(_CHUNK_S, left_s)))

  def progress(self, number: int, done: int, rate: float, ahead: int) -> float:
    """Share of a round that is over after `ahead` more evaluations."""
    if self.quota is not None:
      return done / max(1, self._share(number))
    length = max(self.seconds / self.count, 1e-9)
    left_s = self._ends(number) - time.perf_counter() - ahead / rate
    return 1.0 - left_s / length

  def _share(self, number: int) -> int:
    """Evaluations of a chain in a round."""
    quota = self.quota or 0
    return quota * (number + 1) // self.count - quota * number // self.count

  def _ends(self, number: int) -> float:
    return self.began + self.seconds * (number + 1) / self.count
