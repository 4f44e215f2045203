"""Search settings, temperature scale and rounds; constants by trial."""

import dataclasses
import time

from tfplace.core.argument_checks import make_fields_plain
from tfplace.core.evaluation import is_optimal
from tfplace.placers.groups import GroupGraph

# First temperature relative to the lower bound, of small and of large graphs;
# at least the mean work of a group, so that every move has a chance at first.
_HOT, _LARGE_HOT = 0.01, 0.006
# Last temperature of a round, relative to the lower bound.
_COLD = 3e-5
# Penalty, in lower bounds, for exceeding the memory of a device by 100%.
_PENALTY = 5.0
# Fraction of a large graph's round before single groups can move.
_COARSE_SHARE = 0.8
# Fraction of the levels that a large graph's round from the best starts with.
_WARM_LEVELS = 0.5
# Levels above the lowest that also move.
_WINDOW = 3
# Fraction of a large graph's moves that move only those groups of a coarse
# group that are on one device.
_PART_SHARE = 0.5
# Fractions of a large graph's round at which the worst chain continues from the
# placement of the best chain.
_MEETINGS = (0.3, 0.6)
# Evaluations, or seconds, between two checks of a budget.
_CHUNK_EVALUATIONS, _CHUNK_S = 500, 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig:
  """Settings of the search; defaults are by trial.

  Attributes:
    chains: chains and threads. The result depends on it.
    patience: rounds without improvement before the search ends.
    coarse_groups: number of movable groups from which a graph is large. A round
      of a large graph first moves coarse groups only.
  """

  chains: int = 2
  patience: int = 40
  coarse_groups: int = 1000

  def __post_init__(self) -> None:
    make_fields_plain(self)


@dataclasses.dataclass(frozen=True)
class Scale:
  """Temperatures and penalties of one problem.

  Attributes:
    unit_us: Reference time for temperatures and penalties.
    hot_us: First temperature.
    bound_us: Lower bound on the step time.
    is_large: True if single groups move only after coarse groups.
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
    """Penalty for exceeding the memory of a device by 100%."""
    return _PENALTY * self.unit_us

  @property
  def part_share(self) -> float:
    return _PART_SHARE if self.is_large else 0.0

  @property
  def stages(self) -> tuple[float, ...]:
    """Fractions of a round at which chains exchange placements, and 1."""
    return (*_MEETINGS, 1.0) if self.is_large else (1.0,)

  def is_within(self, step_time_us: float, gap: float) -> bool:
    return is_optimal(step_time_us, self.bound_us * (1 + gap))

  def levels(self, top: int, progress: float, hot_us: float) -> tuple[int, int]:
    """Returns the lowest and the highest level of the moves.

    A small graph uses all levels. A large graph starts with a few large coarse
    groups, because single groups would scatter at high temperature.
    """
    if not self.is_large:
      return 0, top
    coarse = max(0.0, 1.0 - progress / _COARSE_SHARE)
    if hot_us < self.hot_us:
      coarse *= _WARM_LEVELS
    lowest = round(max(0, top - _WINDOW) * coarse)
    return lowest, min(top, lowest + _WINDOW)


def scale_of(groups: GroupGraph, is_large: bool, longest_us: float) -> Scale:
  """Computes the scale of a problem.

  Args:
    longest_us: Longest path, including minimum waits.
  """
  problem = groups.problem
  # The minimum avoids a zero scale for graphs that are empty or take no time.
  unit_us = max(problem.simple_bound_us, 1e-9)
  work_us = float(groups.fastest_us.sum()) / max(groups.num_groups, 1)
  hot = _LARGE_HOT if is_large else _HOT
  return Scale(
    unit_us,
    max(hot * unit_us, work_us),
    max(problem.lower_bound_us, longest_us),
    is_large,
  )


@dataclasses.dataclass(frozen=True)
class Rounds:
  """Division of the budget into rounds of equal length.

  Attributes:
    count: Number of rounds.
    quota: Evaluations per chain over all rounds. None if seconds are the
      budget.
    began: `time.perf_counter()` at the start of the first round.
    seconds: Time for all rounds.
  """

  count: int
  quota: int | None
  began: float
  seconds: float

  def chunk(self, number: int, done: int, rate: float) -> int:
    """Returns the evaluations until the next check; 0 ends the round."""
    if self.quota is not None:
      return min(_CHUNK_EVALUATIONS, self._share(number) - done)
    left_s = self._ends(number) - time.perf_counter()
    if left_s <= 0:
      return 0
    return max(1, int(rate * min(_CHUNK_S, left_s)))

  def progress(self, number: int, done: int, rate: float, ahead: int) -> float:
    """Returns the completed fraction after `ahead` more evaluations."""
    if self.quota is not None:
      return done / max(1, self._share(number))
    length = max(self.seconds / self.count, 1e-9)
    left_s = self._ends(number) - time.perf_counter() - ahead / rate
    return 1.0 - left_s / length

  def _share(self, number: int) -> int:
    quota = self.quota or 0
    return quota * (number + 1) // self.count - quota * number // self.count

  def _ends(self, number: int) -> float:
    return self.began + self.seconds * (number + 1) / self.count
