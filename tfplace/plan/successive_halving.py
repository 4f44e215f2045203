"""Successive halving among step variants (Jamieson and Talwalkar, 2016).

Each step variant is a problem with its own graph. All variants get a short
search. The better half gets a longer one that starts from its best placement,
and so on; the winner gets the rest of the budget. The number of microbatches
grows while that helps, so most variants are never extracted. If a variant does
not fit in memory, fewer microbatches in flight are tried. Where devices differ,
microbatches of unequal size follow (`size_proposals`).
"""

import dataclasses
import math
import time
from collections.abc import Sequence

from tfplace import placers
from tfplace.core.evaluation import Result
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.core.order import AUTO, LEAST_GAIN, RANK
from tfplace.core.problem import Problem
from tfplace.core.units import format_us
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.placers import groups
from tfplace.plan.config import SINGLE, PlanConfig, Stages
from tfplace.plan.search import compile_placers
from tfplace.plan.size_proposals import proposed_sizes
from tfplace.plan.variants import (
  OpenVariant,
  StepVariant,
  VariantChoice,
  VariantTrial,
  in_words,
)


@dataclasses.dataclass(frozen=True)
class HalvingConfig:
  """Division of the budget among step variants; the values are our choice.

  Attributes:
    most: largest number of microbatches.
    most_per_device: largest number of microbatches per main device.
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
      because costs omit some overheads.
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


@dataclasses.dataclass(eq=False)
class Arm:
  """Step variant that competes for the budget.

  Attributes:
    microbatches: microbatches of the variant.
    variant: the extracted variant, or None after its last search, because it
      may hold a copy of the weights.
    best: best placement found, or None.
    seconds: search time in seconds.
    why: reason why there is no placement.
    failure: error if nothing fits in memory.
    other_order_us: step time in the order that the first search rejected.
    bound_us: proven lower bound of the step time, or 0 for measured costs. A
      variant with a bound above the best step time is not searched.
  """

  microbatches: MicrobatchConfig
  variant: StepVariant | None = None
  best: Result | None = None
  seconds: float = 0.0
  why: str = ""
  failure: InfeasibleError | None = None
  other_order_us: float | None = None
  bound_us: float = 0.0

  @property
  def step_time_us(self) -> float:
    """Step time of the best placement, or infinity."""
    return self.trial.step_time_us

  @property
  def trial(self) -> VariantTrial:
    """Record of the trial."""
    return VariantTrial(self.microbatches, self.best, self.seconds, self.why)

  @property
  def opened(self) -> StepVariant:
    """The variant, which an arm has while it may win."""
    if self.variant is None:
      raise TfplaceError(f"the step {in_words(self.microbatches)} is not open")
    return self.variant


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
    self.arms: list[Arm] = []
    self._single: Result | None = None
    self._refused = ""
    self._allowed: VariantTrial | None = None
    self._whole_error: TfplaceError | None = None
    self._open = open_variant
    self._base = config.microbatches
    self._config = config
    self._show = show
    self._halving = halving or HalvingConfig()
    self._left_s = config.budget_s
    self._left_evaluations = config.max_evaluations
    self._share = self._halving.rung_share

  def explore(self) -> None:
    """Runs the first rung: a short search per number of microbatches.

    Raises:
      TfplaceError: the whole step cannot be extracted.
    """
    halving = self._halving
    whole = Arm(self._microbatches(1))
    whole.variant = self._open(whole.microbatches)
    self.arms.append(whole)
    problem = whole.variant.problem
    compile_placers(problem, self._config, self._show, is_divided=True)
    self._single = _on_one_device(problem, self._config.seed)
    devices = main_devices(problem)
    counts = _counts(devices, halving)
    proposals = proposed_sizes(problem)
    self._share = halving.rung_share / (len(counts) + len(proposals))
    try:
      self._search(whole, self._share)
    except TfplaceError as error:  # Some strategies require microbatches.
      whole.variant, self._whole_error = None, error
      whole.why = f"is not placed by {self._config.strategy}"
    if whole.best is None and _variables_exceed_memory(problem):
      return
    if whole.best is not None and devices == 1:
      return
    self._explore_counts(counts, devices)
    for sizes in proposals:
      if self._refused or self._is_late:
        return
      flight = self._base.max_in_flight
      if flight is not None and flight >= len(sizes):
        flight = None
      self._attempt(
        dataclasses.replace(
          self._base, count=len(sizes), max_in_flight=flight, sizes=sizes
        )
      )

  def _explore_counts(self, counts: Sequence[int], devices: int) -> None:
    """Tries numbers of equal microbatches, in order, while they help."""
    halving, least = self._halving, 2
    for count in counts[1:]:
      if count < least:
        continue
      ratio = self._try(count, devices)
      if ratio > halving.worse and count >= devices:
        return
      if ratio > halving.far_worse:
        least = devices
      if self._is_late or math.isinf(ratio):
        return

  @property
  def _is_late(self) -> bool:
    """Returns whether the rest of the budget goes to variants already tried."""
    by_time = self._config.max_evaluations is None
    return by_time and self._left_s < self._config.budget_s / 2

  @property
  def _best_us(self) -> float:
    return min(arm.step_time_us for arm in self.arms)

  def _try(self, count: int, devices: int) -> float:
    """Tries a number of microbatches.

    Returns:
      The ratio of its step time to the best one so far: infinity without a
      placement, and 0 if it is the first one with a placement.
    """
    before_us = self._best_us
    arm = self._attempt(self._microbatches(count))
    if arm.bound_us >= before_us:
      return arm.bound_us / before_us
    if arm.variant is None:
      if len(self.arms) == 2:  # No number of microbatches is possible.
        self.arms.pop()
        self._refused = arm.why
        self._allowed = self._with_batch_statistics(devices)
      return math.inf
    found_us = arm.step_time_us
    if arm.best is None and self._base.max_in_flight is None:
      found_us = self._try_in_flight(count)
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

  def _with_batch_statistics(self, devices: int) -> VariantTrial | None:
    """Estimates the step with batch statistics allowed, if that is possible."""
    if self._base.allow_batch_statistics:
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
      for arm in alive:
        self._search(arm, self._halving.rung_share / len(alive))
      alive.sort(key=self._rank)
    return alive[0]

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
    """Sorts by step time, with a least gain for microbatches and for rank."""
    count = arm.microbatches.count
    rate = 1 + self._halving.gain * math.log2(count)
    flight = arm.microbatches.max_in_flight or count
    if self._config.order == AUTO and arm.trial.order == RANK:
      rate /= 1 - LEAST_GAIN
    return arm.step_time_us * rate, count, flight

  def final_config(self, winner: Arm) -> PlanConfig:
    """Returns the settings of the final search from the best placement."""
    config, start = self._config, None
    if winner.best is not None and config.searches:
      start = winner.best.placement
    evaluations, share = self._left_evaluations, self._halving.least_share
    return dataclasses.replace(
      config,
      budget_s=max(self._left_s, share * config.budget_s),
      max_evaluations=None if evaluations is None else max(1, evaluations),
      init_placement=start,
      order=winner.trial.order or config.order,
    )

  def choice(self, winner: Arm) -> VariantChoice:
    """Describes the variants tried and the choice."""
    return VariantChoice(
      [arm.trial for arm in self.arms],
      winner.microbatches,
      self._single,
      self._refused,
      self._allowed,
    )

  def _microbatches(
    self, count: int, flight: int | None = None
  ) -> MicrobatchConfig:
    flight = flight or self._base.max_in_flight
    if flight is not None and flight >= count:
      flight = None
    return dataclasses.replace(
      self._base, count=count, max_in_flight=flight, sizes=None
    )

  def _attempt(self, microbatches: MicrobatchConfig) -> Arm:
    """Extracts and searches a variant, or records why it is of no use."""
    arm = Arm(microbatches)
    self.arms.append(arm)
    try:
      arm.variant = self._open(microbatches)
      if arm.variant.live is None:  # Measured costs may err and prove nothing.
        arm.bound_us = arm.variant.problem.lower_bound_us
      if arm.bound_us < self._best_us:
        self._search(arm, self._share)
      else:
        arm.variant = None
        arm.why = f"takes at least {format_us(arm.bound_us)}"
    except TfplaceError as error:  # Some strategies reject large graphs.
      arm.variant, arm.why = None, str(error)
    return arm

  def _search(self, arm: Arm, share: float) -> None:
    """Searches for a share of the budget from the arm's best placement."""
    config, variant = self._config, arm.opened
    seconds = max(share, self._halving.least_share) * config.budget_s
    start = None if arm.best is None else arm.best.placement
    what = f" of the step {in_words(arm.microbatches)}"
    with self._show("search", f"{what}, for up to {seconds:.1f} s", seconds):
      began = time.perf_counter()
      try:
        arm.best = placers.place(
          variant.problem,
          config.strategy,
          seconds,
          config.seed,
          policy=config.policy,
          max_evaluations=self._spend_evaluations(share),
          init_placement=start,
          order=arm.trial.order or config.order,
        )
        if start is None:
          arm.other_order_us = arm.best.other_order_us
      except InfeasibleError as error:
        arm.why, arm.failure = "does not fit in memory", error
      took_s = time.perf_counter() - began
    arm.seconds += took_s
    self._left_s -= took_s

  def _spend_evaluations(self, share: float) -> int | None:
    most = self._config.max_evaluations
    if most is None or self._left_evaluations is None:
      return None
    spent = max(1, int(share * most))
    self._left_evaluations -= spent
    return spent

  def _none_fits(self) -> InfeasibleError:
    """Returns the error of the whole step, with the largest number tried."""
    tried = [arm.microbatches.count for arm in self.arms if arm.failure]
    error = self.arms[0].failure or InfeasibleError("nothing fits")
    if tried[-1:] == [1]:
      return error
    return InfeasibleError(
      f"{error}; nor does the step fit in up to {tried[-1]} microbatches",
      op=error.op,
      device=error.device,
      num_bytes=error.num_bytes,
      evaluation=error.evaluation,
    )


def main_devices(problem: Problem) -> int:
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


def _variables_exceed_memory(problem: Problem) -> bool:
  held = problem.graph.persistent_bytes.sum()
  return bool(held > sum(d.memory_bytes for d in problem.cluster.devices))


def _on_one_device(problem: Problem, seed: int) -> Result | None:
  """Places the step on the best single device, if it fits in memory."""
  try:
    return placers.place(problem, SINGLE, seed=seed)
  except TfplaceError:
    return None
