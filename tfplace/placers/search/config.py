"""Search settings, temperature scale and rounds."""

import dataclasses
import time

from tfplace.core.argument_checks import make_fields_plain
from tfplace.core.evaluation import is_optimal
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.guide import GuideConfig


@dataclasses.dataclass(frozen=True)
class ProposalConfig:
  """Settings of `proposals.Proposals`; the defaults were not tuned.

  Attributes:
    trial_share: Share of a chain's time for proposals that gain less.
    memory: Share of the time so far over which gains are remembered.
  """

  trial_share: float = 0.05
  memory: float = 0.2


@dataclasses.dataclass(frozen=True)
class SearchConfig:
  """Settings of the search; all defaults were chosen by trial.

  A graph is large if `coarse_groups` or more of its groups can move.
  """

  # Chains and threads. The result depends on it.
  chains: int = 2
  # First temperature relative to the lower bound; at least the mean work of a
  # group, so that every move has a chance at first.
  hot: float = 0.01
  # The same for large graphs.
  large_hot: float = 0.006
  # Last temperature of a round, relative to the lower bound.
  cold: float = 3e-5
  # Penalty, in lower bounds, for exceeding the memory of a device by 100%.
  penalty: float = 5.0

  # Share of the budget after which no further classical placer starts. The
  # fastest run first, and the search compensates for the others.
  classical_share: float = 0.15
  # Share of the remaining seconds for a first packing if nothing fits yet.
  packing_share: float = 0.2
  # Seconds for a packing, whatever time is left.
  least_packing_s: float = 0.5
  # Setup seconds of the search per group, measured; without them it is skipped.
  setup_s: float = 8e-6
  # Further setup seconds per group and device, measured.
  setup_device_s: float = 0.6e-6

  proposals: ProposalConfig = dataclasses.field(default_factory=ProposalConfig)
  guide: GuideConfig = dataclasses.field(default_factory=GuideConfig)

  # Evaluations per round, group and chain.
  evaluations_per_group: float = 400.0
  # Rounds without improvement before the search ends.
  patience: int = 40
  # The same as a share of all rounds, but at least so many, if the budget has a
  # gap. A small graph then has at least `least_rounds`.
  patience_share: float = 1 / 3
  least_patience: int = 2
  least_rounds: int = 6
  # Evaluations between two checks of a budget of evaluations.
  chunk_evaluations: int = 500
  # Seconds between two checks of the clock.
  chunk_s: float = 0.1
  # Factor on the first temperature of a round from the best placement.
  warm: float = 0.4

  # Number of groups from which a graph is large. A round of a large graph first
  # moves coarse groups only.
  coarse_groups: int = 1000
  # Fraction of a large graph's round before single groups can move.
  coarse_share: float = 0.8
  # Fraction of the levels that a large graph's round from the best starts with.
  warm_levels: float = 0.5
  # Levels above the lowest that also move.
  window: int = 3
  # Fraction of a large graph's moves that move only those groups of a coarse
  # group that are on one device.
  part_share: float = 0.5
  # Fractions of a large graph's round at which the worst chain continues from
  # the placement of the best chain.
  meetings: tuple[float, ...] = (0.3, 0.6)

  # Fraction of the budget for the sweeps of a large graph.
  sweep_share: float = 0.5
  # Factor on the first temperature after the sweeps.
  swept: float = 0.1
  # Step time, relative to the best start, up to which a start is swept.
  near: float = 1.1
  # Numbers of coarse groups to merge down to for sweeps.
  sweep_sizes: tuple[int, ...] = (1024, 256, 96, 32, 8, 3)
  # Number of the first levels that are swept repeatedly.
  repeated_levels: int = 4
  # Fraction of the sweep budget for the repeated levels.
  repeated_share: float = 0.4
  # Coarse groups swept between two checks of the budget, at most.
  sweep_at_once: int = 8
  # Seconds between two checks of the clock, if one coarse group takes less.
  sweep_check_s: float = 0.2

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
    config: Settings of the search.
  """

  unit_us: float
  hot_us: float
  bound_us: float
  is_large: bool
  config: SearchConfig

  @property
  def cold_us(self) -> float:
    """Last temperature of a round."""
    return self.config.cold * self.unit_us

  @property
  def penalty_us(self) -> float:
    """Penalty for exceeding the memory of a device by 100%."""
    return self.config.penalty * self.unit_us

  @property
  def part_share(self) -> float:
    return self.config.part_share if self.is_large else 0.0

  @property
  def stages(self) -> tuple[float, ...]:
    """Fractions of a round at which chains exchange placements, and 1."""
    return (*self.config.meetings, 1.0) if self.is_large else (1.0,)

  def is_within(self, step_time_us: float, gap: float) -> bool:
    return is_optimal(step_time_us, self.bound_us * (1 + gap))

  def levels(self, top: int, progress: float, hot_us: float) -> tuple[int, int]:
    """Returns the lowest and the highest level of the moves.

    A small graph uses all levels. A large graph starts with a few large coarse
    groups, because single groups would scatter at high temperature.
    """
    if not self.is_large:
      return 0, top
    config = self.config
    coarse = max(0.0, 1.0 - progress / config.coarse_share)
    if hot_us < self.hot_us:
      coarse *= config.warm_levels
    lowest = round(max(0, top - config.window) * coarse)
    return lowest, min(top, lowest + config.window)


def scale_of(
  groups: GroupGraph,
  config: SearchConfig,
  num_movable: int,
  longest_us: float,
) -> Scale:
  """Computes the scale of a problem.

  Args:
    num_movable: Number of groups that can be on more than one device.
    longest_us: Longest path, including minimum waits.
  """
  problem = groups.problem
  # The minimum avoids a zero scale for graphs that are empty or take no time.
  unit_us = max(problem.simple_bound_us, 1e-9)
  work_us = float(groups.fastest_us.sum()) / max(groups.num_groups, 1)
  is_large = num_movable >= config.coarse_groups
  hot = config.large_hot if is_large else config.hot
  return Scale(
    unit_us,
    max(hot * unit_us, work_us),
    max(problem.lower_bound_us, longest_us),
    is_large,
    config,
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
    config: Settings of the search.
  """

  count: int
  quota: int | None
  began: float
  seconds: float
  config: SearchConfig

  def chunk(self, number: int, done: int, rate: float) -> int:
    """Returns the evaluations until the next check; 0 ends the round."""
    if self.quota is not None:
      return min(self.config.chunk_evaluations, self._share(number) - done)
    left_s = self._ends(number) - time.perf_counter()
    if left_s <= 0:
      return 0
    return max(1, int(rate * min(self.config.chunk_s, left_s)))

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
