"""Successive halving among step variants (Jamieson and Talwalkar, 2016).

Each step variant is a problem with its own graph. All variants get a short
search. The better half gets a longer one that starts from its best placement,
and so on; the winner gets the rest of the budget. The number of microbatches
grows while that helps, so most variants are never extracted. If a variant does
not fit in memory, fewer microbatches in flight are tried. Where memory is
short, activations are recomputed or wait on other devices, as far as the
request leaves that open. Where devices differ, microbatches of unequal size
follow (`size_proposals`).
"""

import collections
import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tfplace.core.evaluation import Result
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.core.order import AUTO, LEAST_GAIN, RANK
from tfplace.core.problem import Problem
from tfplace.core.recompute import RecomputeConfig, recompute_of, segment_of
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.placers import groups
from tfplace.plan.arms import Arm, Arms
from tfplace.plan.config import PlanConfig, Stages
from tfplace.plan.search import compile_placers, on_one_device
from tfplace.plan.size_proposals import proposed_sizes
from tfplace.plan.variants import (
  OpenVariant,
  VariantChoice,
  VariantTrial,
)


@dataclasses.dataclass(frozen=True)
class HalvingConfig:
  """Division of the budget among step variants; the values are our choice.

  Attributes:
    most: largest number of microbatches.
    most_per_device: largest number of microbatches per device that works.
    rung_share: share of the budget for each rung before the last.
    least_share: least share of the budget for one search.
    rungs: largest number of rungs before the final search.
    close: ratio of step time to the best one up to which a variant stays until
      the last rung.
    worse: ratio of step time to the best one from which more microbatches are
      not tried, if there are at least as many microbatches as devices.
    far_worse: the same ratio for fewer microbatches than devices. The next
      number tried is then the number of devices.
    gain: share of the step time that each doubling of the number must gain,
      and each way to save memory, because costs omit some overheads.
    short: share of the memory of a main device from which memory is short.
    most_hint_ops: largest number of ops of the whole step for which a variant
      is extracted only to tell its gain, because larger steps take long.
    trims: largest number of trials with fewer recomputed segments.
    trim_share: share of the budget for each of them.
  """

  most: int = 16
  most_per_device: int = 4
  rung_share: float = 0.2
  least_share: float = 0.01
  rungs: int = 3
  close: float = 1.1
  worse: float = 1.05
  far_worse: float = 1.3
  gain: float = 0.01
  short: float = 0.85
  most_hint_ops: int = 4_000
  trims: int = 4
  trim_share: float = 0.05


class SuccessiveHalving:
  """Choice of a step variant by successive halving."""

  def __init__(
    self,
    open_variant: OpenVariant,
    config: PlanConfig,
    show: Stages,
    halving: HalvingConfig | None = None,
  ) -> None:
    """Takes the arguments of `plan.microbatches.choose_variant`."""
    self._halving = halving = halving or HalvingConfig()
    self._arms = Arms(open_variant, config, show, halving.least_share)
    self._single: Result | None = None
    self._refused = ""
    self._allowed: VariantTrial | None = None
    self._hints = True  # Whether to estimate what else would be possible.
    self._whole_error: TfplaceError | None = None
    self._open = open_variant
    self._base = config.microbatches
    self._config = config
    self._show = show
    self._share = halving.rung_share

  @property
  def arms(self) -> list[Arm]:
    """Arms in order of their beginning; the first is the requested step."""
    return self._arms.all

  def close(self) -> None:
    """Forgets searches that have not begun on workers."""
    self._arms.close()

  def explore(self) -> None:
    """Runs the first rung: a short search per step variant.

    Raises:
      TfplaceError: the requested step cannot be extracted.
    """
    halving, chooses = self._halving, self._config.chooses_microbatches
    whole = Arm(self._microbatches(1 if chooses else self._base.count))
    whole.variant = self._open(whole.microbatches)
    self.arms.append(whole)
    problem = whole.variant.problem
    compile_placers(problem, self._config, self._show)
    self._single = on_one_device(problem, self._config.seed)
    self._hints = problem.graph.num_ops <= halving.most_hint_ops
    devices = num_working_devices(problem)
    counts, proposals = [self._base.count], []
    if chooses:
      counts, proposals = _counts(devices, halving), proposed_sizes(problem)
      proposals = [sizes for sizes in proposals if len(sizes) <= halving.most]
    recomputes = self._config.chooses_recomputation
    arms = len(counts) * (1 + recomputes) + len(proposals)
    self._share = halving.rung_share / arms
    self._arms.search(whole, self._share)
    if recomputes or devices == 1 or _variables_exceed_memory(problem):
      self._settle_until(whole)
      if whole.best is None and _variables_exceed_memory(problem):
        return
      self._save_memory(whole)
      if devices == 1 and whole.best is not None and not self._is_short(whole):
        return
    self._explore_counts(counts, devices)
    for sizes in proposals:
      if self._refused or self._arms.is_late:
        break
      flight = self._base.max_in_flight
      if flight is not None and flight >= len(sizes):
        flight = None
      self._begin(
        dataclasses.replace(
          self._base, count=len(sizes), max_in_flight=flight, sizes=sizes
        )
      )
    self._settle_until(self.arms[-1])

  def _explore_counts(self, counts: Sequence[int], devices: int) -> None:
    """Tries numbers of equal microbatches, in order, while they help.

    With workers, the next numbers begin before the result of one is known.
    """
    halving, least = self._halving, 2
    begun: collections.deque[Arm] = collections.deque()
    left = collections.deque(counts[1:])
    while left or begun:
      if left and len(begun) < self._arms.num_workers:
        count = left.popleft()
        if count >= least:
          begun.append(self._begin(self._microbatches(count)))
        continue
      arm = begun.popleft()
      count, ratio = arm.microbatches.count, self._judge(arm, devices)
      if ratio > halving.worse and count >= devices:
        return
      if ratio > halving.far_worse:
        least = devices
      if self._arms.is_late or math.isinf(ratio):
        return

  def _settle_until(self, last: Arm) -> None:
    """Settles the arms up to one, in order, and names the first one's error."""
    for arm in self.arms[: self.arms.index(last) + 1]:
      self._arms.settle(arm)
    whole = self.arms[0]
    if whole.error is not None:  # Some strategies require microbatches.
      self._whole_error = whole.error
      whole.why = f"is not placed by {self._config.strategy}"

  def _begin(self, microbatches: MicrobatchConfig) -> Arm:
    return self._arms.begin(microbatches, self._share)

  def _attempt(
    self, microbatches: MicrobatchConfig, start: Arm | None = None
  ) -> Arm:
    share = self._halving.trim_share if start else self._share
    return self._arms.attempt(microbatches, share, start)

  def _judge(self, arm: Arm, devices: int) -> float:
    """Compares an arm with those before it, and tries to save its memory.

    Returns:
      The ratio of its step time to the best one so far: infinity without a
      placement, and 0 if it is the first one with a placement.
    """
    self._settle_until(arm)
    before = self.arms[: self.arms.index(arm)]
    before_us = min(other.step_time_us for other in before)
    if arm.bound_us >= before_us:
      return arm.bound_us / before_us
    if arm.variant is None:
      if all(other.microbatches.count == 1 for other in before):
        # No number of microbatches is possible.
        self.arms[:] = before
        self._refused = arm.why
        self._allowed = self._with_batch_statistics(devices)
      return math.inf
    found_us = arm.step_time_us
    if arm.best is None and self._base.max_in_flight is None:
      found_us = self._try_in_flight(arm.microbatches.count)
    found_us = min(found_us, self._save_memory(arm))
    if math.isinf(before_us):
      return 0.0
    return found_us / before_us

  def _try_in_flight(self, count: int) -> float:
    """Tries 1, 2, 4, ... in flight while it helps; returns the best time."""
    best_us, flight = math.inf, 1
    while flight < count:
      arm = self._attempt(self._microbatches(count, flight))
      if arm.step_time_us >= best_us or arm.best is None:
        break
      best_us, flight = arm.step_time_us, 2 * flight
    return best_us

  def _save_memory(self, kept: Arm) -> float:
    """Recomputes all layers if memory is short; returns the best time."""
    if not self._config.chooses_recomputation or not self._is_short(kept):
      return math.inf
    if self._arms.is_late:
      return math.inf
    everything = RecomputeConfig(everything=True)
    arm = self._attempt(
      dataclasses.replace(kept.microbatches, recompute=everything)
    )
    is_open = self._config.chooses_microbatches and (
      self._base.max_in_flight is None and not arm.microbatches.is_whole
    )
    if arm.failure and is_open:
      arm = self._attempt(
        dataclasses.replace(arm.microbatches, max_in_flight=1)
      )
    return arm.step_time_us

  def _is_short(self, arm: Arm) -> bool:
    """Returns whether a main device is nearly full, or cannot be used."""
    if arm.best is None:
      return arm.failure is not None
    problem = arm.opened.problem
    peaks = arm.best.evaluation.peak_memory_bytes
    main = groups.main_devices(groups.GroupGraph(problem))
    devices = [problem.cluster.devices[i] for i in main]
    shares = [
      peaks.get(d.name, 0.0) / max(d.memory_bytes, 1.0) for d in devices
    ]
    unused = not np.isin(arm.best.placement.devices, main).any()
    return unused or max(shares) > self._halving.short

  def trimmed(self, winner: Arm) -> Arm:
    """Recomputes only those segments of the winner that are worth most.

    Bisects the number of segments, by bytes freed per microsecond.
    """
    chosen = winner.microbatches.recompute
    if not (self._config.chooses_recomputation and chosen.everything):
      return winner
    problem = winner.opened.problem
    segments = recompute_of(problem.graph.names).ops
    ranked = _by_worth(problem)
    low, high = 0, len(ranked)
    for _ in range(self._halving.trims):
      middle = (low + high) // 2
      if middle == low or self._arms.left_s <= 0:
        break
      best = set(ranked[:middle])
      ops = tuple(
        names if i in best else () for i, names in enumerate(segments)
      )
      arm = self._attempt(
        dataclasses.replace(
          winner.microbatches, recompute=RecomputeConfig(ops=ops)
        ),
        winner,
      )
      if arm.step_time_us >= winner.step_time_us:
        arm.variant, low = None, middle
        continue
      winner.variant, winner, high = None, arm, middle
    return winner

  def _with_batch_statistics(self, devices: int) -> VariantTrial | None:
    """Estimates the step with batch statistics allowed, if that is possible."""
    if self._base.allow_batch_statistics or not self._hints:
      return None
    microbatches = dataclasses.replace(
      self._microbatches(max(2, devices)), allow_batch_statistics=True
    )
    arm = self._attempt(microbatches)
    self.arms.remove(arm)
    return None if arm.best is None else arm.trial

  def halve(self) -> Arm:
    """Runs the remaining rungs and returns the winner.

    Raises:
      InfeasibleError: no variant fits in memory.
      TfplaceError: the placer rejects all variants.
    """
    self._settle_until(self.arms[-1])
    alive = sorted((arm for arm in self.arms if arm.best), key=self._rank)
    if not alive:
      if self._whole_error and self._refused:
        raise TfplaceError(self._refused)
      raise self._whole_error or self._none_fits()
    searches = self._config.searches
    for _ in range(1, self._halving.rungs if searches else 1):
      alive = self._kept(alive)
      if len(alive) == 1:
        break
      self._arms.search_all(alive, self._rung_share(len(alive)))
      alive.sort(key=self._rank)
    return alive[0]

  def _rung_share(self, alive: int) -> float:
    """Returns the share of the budget for each of the arms of a rung.

    Workers search several arms in the time of one.
    """
    turns = math.ceil(alive / self._arms.num_workers)
    return self._halving.rung_share / turns

  def _kept(self, alive: Sequence[Arm]) -> list[Arm]:
    """Returns the better half and all arms close to the best one."""
    half = (len(alive) + 1) // 2
    best_us = alive[0].step_time_us
    kept = []
    for i, arm in enumerate(alive):
      is_close = arm.step_time_us <= self._halving.close * best_us
      may_win = i == 0 or arm.bound_us < best_us
      if may_win and (i < half or is_close):
        kept.append(arm)
      else:
        arm.variant = None
    return kept

  def _rank(self, arm: Arm) -> tuple[float, int, int]:
    """Sorts by step time, with a least gain for whatever is done to a step."""
    count, first = arm.microbatches.count, self.arms[0].microbatches
    is_changed = arm.microbatches.recompute != first.recompute
    rate = 1 + self._halving.gain * (math.log2(count) + is_changed)
    flight = arm.microbatches.max_in_flight or count
    if self._config.order == AUTO and arm.trial.order == RANK:
      rate /= 1 - LEAST_GAIN
    return arm.step_time_us * rate, count, flight

  def final_config(self, winner: Arm) -> PlanConfig:
    """Returns the settings of the final search from the best placement."""
    config, arms, start = self._config, self._arms, None
    if winner.best is not None and config.searches:
      start = winner.best.placement
    evaluations, share = arms.left_evaluations, self._halving.least_share
    return dataclasses.replace(
      config,
      budget_s=max(arms.left_s, share * config.budget_s),
      max_evaluations=None if evaluations is None else max(1, evaluations),
      init_placement=start,
      order=winner.trial.order or config.order,
    )

  def choice(self, winner: Arm) -> VariantChoice | None:
    """Describes the variants tried and the choice, if there was one."""
    if len(self.arms) == 1 and not self._config.chooses_microbatches:
      return None
    return VariantChoice(
      [arm.trial for arm in self.arms],
      winner.microbatches,
      self._single,
      [arm.single for arm in self.arms if arm.single is not None],
      self._refused,
      self._allowed,
    )

  def _microbatches(
    self, count: int, flight: int | None = None
  ) -> MicrobatchConfig:
    flight = flight or self._base.max_in_flight
    if flight is not None and flight >= count:
      flight = None
    sizes = None if self._config.chooses_microbatches else self._base.sizes
    return dataclasses.replace(
      self._base, count=count, max_in_flight=flight, sizes=sizes
    )

  def _none_fits(self) -> InfeasibleError:
    """Returns the error of the whole step, with the largest number tried."""
    tried = [arm.microbatches for arm in self.arms if arm.failure]
    error = self.arms[0].failure or InfeasibleError("nothing fits")
    if len(tried) <= 1:
      return error
    most = max(microbatches.count for microbatches in tried)
    ways = [f"in up to {most} microbatches"] if most > 1 else []
    if any(m.recompute != self._base.recompute for m in tried):
      ways.append("if all layers are recomputed")
    return InfeasibleError(
      f"{error}; nor does the step fit {' or '.join(ways)}",
      op=error.op,
      device=error.device,
      num_bytes=error.num_bytes,
      evaluation=error.evaluation,
    )


def _by_worth(problem: Problem) -> list[int]:
  """Returns recomputed segments by bytes freed per microsecond, best first."""
  graph = problem.graph
  freed: dict[int, float] = {}
  spent_us: dict[int, float] = {}
  for op, name in enumerate(graph.names):
    segment = segment_of(name)
    if segment is not None:
      freed[segment] = freed.get(segment, 0.0) + graph.op_output_bytes[op]
      spent_us[segment] = spent_us.get(segment, 0.0) + problem.fastest_us[op]
  worth = {i: freed[i] / max(spent_us[i], 1e-3) for i in freed}
  return sorted(worth, key=lambda segment: -worth[segment])


def _variables_exceed_memory(problem: Problem) -> bool:
  """Returns True if the devices together cannot hold the variables."""
  held = problem.graph.persistent_bytes.sum()
  return bool(held > sum(d.memory_bytes for d in problem.cluster.devices))


def num_working_devices(problem: Problem) -> int:
  """Returns the number of devices that a step can be divided among."""
  return len(groups.working_devices(groups.GroupGraph(problem)))


def _counts(devices: int, halving: HalvingConfig) -> list[int]:
  """Returns the numbers of microbatches to try: powers of two and devices.

  On one device, microbatches only save memory, so all numbers are tried.
  """
  most = halving.most
  if devices > 1:
    most = min(most, halving.most_per_device * devices)
  powers = [1 << i for i in range(most.bit_length())]
  wanted = {*powers, devices, 2 * devices}
  return sorted(count for count in wanted if count <= most)
