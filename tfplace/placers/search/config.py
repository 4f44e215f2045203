"""How a search spends its budget: its settings, its scale and its schedule."""

import dataclasses
import time

from tfplace.core.protocols import is_optimal
from tfplace.placers.groups import GroupGraph


@dataclasses.dataclass(frozen=True)
class SearchConfig:
  """How the search spends its budget; all values chosen by trial.

  Attributes:
    chains: chains, and threads; the result depends on it.
    hot: first temperature, as a share of the lower bound; the mean work of a
      group where that is more, so that every move has a chance at first.
    large_hot: the same for a large graph.
    sweep_share: of the budget, what the sweeps of a large graph may take.
    swept: share of the first temperature, where a large graph was swept.
    warm: share of the first temperature, where a round continues from the
      best placement.
    cold: last temperature of each round, as a share of the lower bound.
    penalty: what an excess of all of a device's memory costs, as a multiple
      of the lower bound.
    evaluations_per_group: evaluations of a round, per group and chain.
    patience: rounds without an improvement that end the search early.
    coarse_groups: from so many groups on a graph is large, and a round begins
      with clusters only.
    warm_levels: share of the levels that a round from the best begins with.
    coarse_share: share of a round after which single groups may move, too.
    part_share: share of a large graph's moves that take, of a cluster, only
      what is on one device.
    window: levels above the least that move, too, where there are many.
    meetings: shares of a large graph's round after which the chain that is
      worst off goes on from where the best one is.
    chunk_s: seconds between looks at the clock.
    chunk_evaluations: the same where evaluations are the budget.
  """

  chains: int = 2
  hot: float = 0.01
  large_hot: float = 0.006
  sweep_share: float = 0.5
  swept: float = 0.1
  warm: float = 0.4
  cold: float = 3e-5
  penalty: float = 5.0
  evaluations_per_group: float = 400.0
  patience: int = 40
  coarse_groups: int = 1000
  warm_levels: float = 0.5
  coarse_share: float = 0.8
  part_share: float = 0.5
  window: int = 3
  meetings: tuple[float, ...] = (0.3, 0.6)
  chunk_s: float = 0.1
  chunk_evaluations: int = 500


@dataclasses.dataclass(frozen=True)
class Scale:
  """What temperatures and moves go by, for one problem.

  Attributes:
    config: of the search.
    unit_us: what temperatures and penalties are shares of.
    hot_us: first temperature.
    bound_us: no step is faster.
    is_large: whether single groups wait until clusters have been placed.
  """

  config: SearchConfig
  unit_us: float
  hot_us: float
  bound_us: float
  is_large: bool

  @property
  def cold_us(self) -> float:
    """Last temperature of a round."""
    return self.config.cold * self.unit_us

  @property
  def penalty_us(self) -> float:
    """What an excess of all of a device's memory costs."""
    return self.config.penalty * self.unit_us

  @property
  def part_share(self) -> float:
    return self.config.part_share if self.is_large else 0.0

  @property
  def stages(self) -> tuple[float, ...]:
    """Shares of a round after which chains meet, and its end."""
    return (*self.config.meetings, 1.0) if self.is_large else (1.0,)

  def is_optimal(self, step_time_us: float) -> bool:
    return is_optimal(step_time_us, self.bound_us)

  def levels(self, top: int, progress: float, hot_us: float) -> tuple[int, int]:
    """Least and greatest level of the clusters to move.

    A small graph uses all levels all the time. A large one begins with few
    large clusters: single groups would scatter while it is hot.

    Args:
      top: the greatest level.
      progress: share of the round that is over.
      hot_us: first temperature of the round.
    """
    if not self.is_large:
      return 0, top
    coarse = max(0.0, 1.0 - progress / self.config.coarse_share)
    if hot_us < self.hot_us:
      coarse *= self.config.warm_levels
    lowest = round(max(0, top - self.config.window) * coarse)
    return lowest, min(top, lowest + self.config.window)


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
  hot = config.large_hot if is_large else config.hot
  return Scale(
    config,
    unit_us,
    max(hot * unit_us, work_us),
    max(problem.lower_bound_us, longest_us),
    is_large,
  )


@dataclasses.dataclass(frozen=True)
class Plan:
  """How the budget is divided; per chain.

  Attributes:
    rounds: of equal length.
    chains: number of chains.
    quota: evaluations of each chain in all, or None.
    began: when the rounds began, `time.perf_counter()`.
    seconds: for all rounds.
  """

  rounds: int
  chains: int
  quota: int | None
  began: float
  seconds: float

  def _share(self, number: int) -> int:
    """Evaluations of a chain in a round."""
    quota = self.quota or 0
    return quota * (number + 1) // self.rounds - quota * number // self.rounds

  def _ends(self, number: int) -> float:
    return self.began + self.seconds * (number + 1) / self.rounds

  def chunk(
    self, number: int, done: int, rate: float, config: SearchConfig
  ) -> int:
    """Evaluations until the next look at the clock; 0 at the end."""
    if self.quota is not None:
      return min(config.chunk_evaluations, self._share(number) - done)
    left_s = self._ends(number) - time.perf_counter()
    if left_s <= 0:
      return 0
    return max(1, int(rate * min(config.chunk_s, left_s)))

  def progress(self, number: int, done: int, rate: float, ahead: int) -> float:
    """Share of a round that is over after `ahead` more evaluations."""
    if self.quota is not None:
      return done / max(1, self._share(number))
    length = max(self.seconds / self.rounds, 1e-9)
    left_s = self._ends(number) - time.perf_counter() - ahead / rate
    return 1.0 - left_s / length
