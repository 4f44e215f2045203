"""Successive halving among step variants (Jamieson and Talwalkar, 2016).

Each step variant is a problem with its own graph. All variants get a short
search. The better half gets a longer one that starts from its best placement,
and so on; the winner gets the rest of the budget. The number of microbatches
grows while that helps, so most variants are never extracted. If a variant does
not fit in memory, fewer microbatches in flight are tried. Where memory is
short, activations are recomputed, as far as the request leaves that open. Where
devices differ, microbatches of unequal size follow (`proposals`).
"""

import dataclasses
import math
import time
from collections.abc import Sequence

from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.graph.argument_checks import AUTO
from tfplace.graph.evaluation import Result
from tfplace.graph.microbatches import VariantConfig
from tfplace.graph.order import LEAST_GAIN, RANK
from tfplace.graph.quantities import format_us
from tfplace.graph.recompute import RecomputeConfig, recompute_of
from tfplace.plan.config import PlanConfig
from tfplace.plan.proposals import (
  MOST,
  counts_to_try,
  is_short_of_memory,
  num_working_devices,
  proposed_sizes,
  segments_by_worth,
  variables_exceed_memory,
)
from tfplace.plan.search import (
  compile_placers,
  find_placement,
  on_one_device,
  single_of,
)
from tfplace.plan.stages import Stages
from tfplace.plan.steps import Steps
from tfplace.plan.variants import VariantChoice, VariantTrial, in_words

# The values below are our choice.
_RUNGS = 3  # Largest number of rungs before the final search.
_RUNG_SHARE = 0.2  # Share of the budget for each rung before the last.
_LEAST_SHARE = 0.01  # Least share of the budget for one search.
# Ratio of step time to the best one up to which a variant stays until the last
# rung.
_CLOSE = 1.1
# Ratio of step time to the best one from which more microbatches are not tried,
# if there are at least as many microbatches as devices. For fewer microbatches,
# from the second ratio on, the next number tried is the number of devices.
_WORSE, _FAR_WORSE = 1.05, 1.3
# Share of the step time that each doubling of the number must gain, and each
# way to save memory, because costs omit some overheads.
_GAIN = 0.01
# Largest number of trials with fewer recomputed segments, and their share.
_TRIMS, _TRIM_SHARE = 4, 0.05


class SuccessiveHalving:
  """Search for the best variant of a step.

  Attributes:
    trials: trials in order of their beginning; the first is the requested step.
  """

  def __init__(self, steps: Steps, config: PlanConfig, show: Stages) -> None:
    self.trials: list[VariantTrial] = []
    self._steps = steps
    self._asked = config.variant
    self._config = config
    self._show = show
    self._left_s = config.budget_s
    self._left_evaluations = config.max_evaluations
    self._is_timed = config.max_evaluations is None
    self._share = _RUNG_SHARE
    self._single: Result | None = None
    self._refused = ""

  def run(self) -> VariantTrial:
    """Returns the winner, whose best placement starts the final search.

    Raises:
      InfeasibleError: no variant fits in memory.
      TfplaceError: the requested step cannot be extracted, or the placer
        rejects all variants.
    """
    self._explore()
    placed = [trial for trial in self.trials if trial.best]
    if not placed:
      raise self._why_none()
    alive = sorted(placed, key=self._rank)
    return self._trimmed(self._halve(alive))

  def final_config(self, winner: VariantTrial) -> PlanConfig:
    """Returns the settings of the final search from the best placement."""
    config, evaluations, start = self._config, self._left_evaluations, None
    if winner.best is not None and config.searches:
      start = winner.best.placement
    return dataclasses.replace(
      config,
      chooses_microbatches=False,
      chooses_recomputation=False,
      budget_s=max(self._left_s, _LEAST_SHARE * config.budget_s),
      max_evaluations=None if evaluations is None else max(1, evaluations),
      init_placement=start,
    )

  def choice(self, winner: VariantTrial) -> VariantChoice | None:
    """Describes the variants tried and the choice, if there was one."""
    if len(self.trials) == 1 and not self._config.chooses_microbatches:
      return None
    return VariantChoice(
      self.trials, winner.variant, self._single, self._refused
    )

  def _explore(self) -> None:
    """Runs the first rung: a short search per step variant."""
    chooses = self._config.chooses_microbatches
    whole = VariantTrial(self._variant(1 if chooses else self._asked.count))
    whole.step = self._steps.open(whole.variant, self._show)
    self.trials.append(whole)
    problem = whole.step.problem
    compile_placers(problem, self._config, self._show)
    self._single = on_one_device(problem, self._config.seed)
    devices = num_working_devices(problem)
    counts, proposals = [self._asked.count], []
    if chooses:
      counts, proposals = counts_to_try(devices), proposed_sizes(problem)
      proposals = [sizes for sizes in proposals if len(sizes) <= MOST]
    recomputes = self._config.chooses_recomputation
    self._share /= len(counts) * (1 + recomputes) + len(proposals)
    self._search(whole, self._share)
    if whole.is_refused:  # Some strategies require microbatches.
      whole.why = f"is not placed by {self._config.strategy}"
    exceeds = variables_exceed_memory(problem)
    if whole.best is None and exceeds:
      return
    if recomputes or devices == 1 or exceeds:
      self._save_memory(whole)
      if devices == 1 and whole.best and not is_short_of_memory(whole):
        return
    self._explore_counts(counts[1:], devices)
    for sizes in proposals:
      if not (self._refused or self._is_late):
        variant = self._variant(len(sizes))
        self._try(dataclasses.replace(variant, sizes=sizes))

  def _explore_counts(self, counts: Sequence[int], devices: int) -> None:
    """Tries numbers of equal microbatches, in order, while they help."""
    least = 2
    for count in counts:
      if count < least:
        continue
      best_us = self._best_us
      first, *others = self._try_count(count)
      if first.is_refused:
        if all(trial.variant.is_whole for trial in self.trials[:-1]):
          self._refused = self.trials.pop().why
        return
      reached_us = min([first.least_us, *(t.step_time_us for t in others)])
      ratio = reached_us / best_us if math.isfinite(best_us) else 0.0
      if ratio > _WORSE and count >= devices:
        return
      if ratio > _FAR_WORSE:
        least = devices
      if self._is_late or math.isinf(ratio):
        return

  def _try_count(self, count: int) -> list[VariantTrial]:
    """Tries a number of microbatches, and to save its memory."""
    trial = self._try(self._variant(count))
    if trial.step is None:
      return [trial]
    fewer: list[VariantTrial] = []
    if trial.best is None and self._asked.max_in_flight is None:
      fewer = self._try_in_flight(count)
    return [trial, *fewer, *self._save_memory(trial)]

  def _try_in_flight(self, count: int) -> list[VariantTrial]:
    """Tries 1, 2, 4, ... in flight while it helps."""
    tried: list[VariantTrial] = []
    best_us, flight = math.inf, 1
    while flight < count:
      tried.append(self._try(self._variant(count, flight)))
      if tried[-1].step_time_us >= best_us:
        break
      best_us, flight = tried[-1].step_time_us, 2 * flight
    return tried

  def _save_memory(self, kept: VariantTrial) -> list[VariantTrial]:
    """Recomputes all layers if memory is short."""
    recomputes = self._config.chooses_recomputation and is_short_of_memory(kept)
    if not recomputes or self._is_late:
      return []
    everything = RecomputeConfig(everything=True)
    trial = self._try(dataclasses.replace(kept.variant, recompute=everything))
    is_open = self._config.chooses_microbatches and (
      self._asked.max_in_flight is None and not trial.variant.is_whole
    )
    if not (trial.exceeds_memory and is_open):
      return [trial]
    return [self._try(dataclasses.replace(trial.variant, max_in_flight=1))]

  def _halve(self, alive: list[VariantTrial]) -> VariantTrial:
    """Runs the remaining rungs on sorted trials, and returns the winner.

    The better half stays, and so do all trials close to the best one.
    """
    for rung in range(1, _RUNGS if self._config.searches else 1):
      half, best_us = (len(alive) + 1) // 2, alive[0].step_time_us
      alive = [
        trial
        for i, trial in enumerate(alive)
        if (i == 0 or trial.bound_us < best_us)
        and (i < half or trial.step_time_us <= _CLOSE * best_us)
      ]
      for trial in self.trials:
        if trial not in alive and not self._config.measure:
          trial.step = None  # It may hold a copy of the weights.
      if len(alive) == 1:
        break
      share = _RUNG_SHARE * self._rest(1 - rung * _RUNG_SHARE) / len(alive)
      for trial in alive:
        self._search(trial, share)
      alive.sort(key=self._rank)
    return alive[0]

  def _rank(self, trial: VariantTrial) -> tuple[float, int, int]:
    """Sorts by step time, with a least gain for whatever is done to a step."""
    count, first = trial.variant.count, self.trials[0].variant
    is_changed = trial.variant.recompute != first.recompute
    rate = 1 + _GAIN * (math.log2(count) + is_changed)
    if self._config.order == AUTO and trial.order == RANK:
      rate /= 1 - LEAST_GAIN
    return trial.step_time_us * rate, count, trial.variant.in_flight

  def _trimmed(self, winner: VariantTrial) -> VariantTrial:
    """Returns the winner, recomputing only the segments that help most.

    Bisects the number of segments, by bytes freed per microsecond.
    """
    chosen = winner.variant.recompute
    if not (self._config.chooses_recomputation and chosen.everything):
      return winner
    problem = winner.opened.problem
    segments = recompute_of(problem.graph.traced_names).ops
    ranked = segments_by_worth(problem)
    low, high = 0, len(ranked)
    for _ in range(_TRIMS):
      middle = (low + high) // 2
      if middle == low or (self._is_timed and self._left_s <= 0):
        break
      best = set(ranked[:middle])
      ops = tuple(
        names if i in best else () for i, names in enumerate(segments)
      )
      fewer = RecomputeConfig(ops=ops)
      trial = self._try(
        dataclasses.replace(winner.variant, recompute=fewer), winner
      )
      if trial.step_time_us >= winner.step_time_us:
        trial.step, low = None, middle
      else:
        winner.step, winner, high = None, trial, middle
    return winner

  # Trials, and the budget that their searches share.

  @property
  def _best_us(self) -> float:
    return min(trial.step_time_us for trial in self.trials)

  @property
  def _is_late(self) -> bool:
    """Returns whether the rest of the budget goes to variants already tried."""
    return self._is_timed and self._left_s < self._config.budget_s / 2

  def _rest(self, planned: float) -> float:
    """Returns what is left for later searches, relative to a planned share."""
    left = self._left_s / max(self._config.budget_s, 1e-9)
    return min(1.0, left / planned) if self._is_timed else 1.0

  def _variant(self, count: int, flight: int | None = None) -> VariantConfig:
    flight = flight or self._asked.max_in_flight
    if flight is not None and flight >= count:
      flight = None
    sizes = None if self._config.chooses_microbatches else self._asked.sizes
    return dataclasses.replace(
      self._asked, count=count, max_in_flight=flight, sizes=sizes
    )

  def _try(
    self, variant: VariantConfig, like: VariantTrial | None = None
  ) -> VariantTrial:
    """Extracts and searches a variant, or records why it is of no use.

    The search may start from the placement of a trial `like` it.
    """
    trial, best_us = VariantTrial(variant), self._best_us
    self.trials.append(trial)
    try:
      step = self._steps.open(variant, self._show)
    except TfplaceError as error:
      trial.why, trial.error = str(error), error
      return trial
    if step.live is None:  # Measured costs may err and prove nothing.
      trial.bound_us = step.problem.lower_bound_us
    if trial.bound_us >= best_us:
      trial.why = f"takes at least {format_us(trial.bound_us)}"
      return trial
    trial.step = step
    self._search(trial, _TRIM_SHARE if like else self._share, like)
    return trial

  def _search(
    self, trial: VariantTrial, share: float, like: VariantTrial | None = None
  ) -> None:
    """Searches for a share of the budget from the best placement.

    A trial without one may start `like` another.
    """
    config, is_first = self._config, trial.best is None
    seconds = max(share, _LEAST_SHARE) * config.budget_s
    start = trial.best or (like.best if like and config.searches else None)
    what = f" of the step {in_words(trial.variant)}, for up to {seconds:.1f} s"
    began = time.perf_counter()
    try:
      with self._show("search", what, seconds):
        trial.best = find_placement(
          trial.opened.problem,
          config,
          seconds,
          start=None if start is None else start.placement,
          max_evaluations=self._spend_evaluations(share),
        )
    except InfeasibleError as error:
      trial.why, trial.error = "does not fit in memory", error
    except TfplaceError as error:  # Some strategies reject large graphs.
      trial.step, trial.why, trial.error = None, str(error), error
    took_s = time.perf_counter() - began
    trial.seconds += took_s
    self._left_s -= took_s
    if trial.best is not None and is_first:
      trial.single = single_of(trial.best.tried)

  def _spend_evaluations(self, share: float) -> int | None:
    most = self._config.max_evaluations
    if most is None or self._left_evaluations is None:
      return None
    spent = max(1, int(share * most))
    self._left_evaluations -= spent
    return spent

  def _why_none(self) -> TfplaceError:
    """Returns the error of the first step, with the largest number tried."""
    error = self.trials[0].error
    if self.trials[0].is_refused and error is not None:
      return TfplaceError(self._refused) if self._refused else error
    tried = [trial.variant for trial in self.trials if trial.exceeds_memory]
    if not isinstance(error, InfeasibleError):
      error = InfeasibleError("nothing fits")
    if len(tried) <= 1:
      return error
    most = max(variant.count for variant in tried)
    ways = [f"in up to {most} microbatches"] if most > 1 else []
    if any(v.recompute != self._asked.recompute for v in tried):
      ways.append("if all layers are recomputed")
    return InfeasibleError(
      f"{error}; nor does the step fit {' or '.join(ways)}",
      op=error.op,
      device=error.device,
      num_bytes=error.num_bytes,
      evaluation=error.evaluation,
    )
