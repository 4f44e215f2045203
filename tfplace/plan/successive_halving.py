"""Successive halving among step variants (Jamieson and Talwalkar, 2016).

Each step variant is a problem with its own graph. All variants get a short
search. The better half gets a longer one that starts from its best placement,
and so on; the winner gets the rest of the budget. The number of microbatches
grows while that helps, so most variants are never extracted. If a variant does
not fit in memory, fewer microbatches in flight are tried. Where memory is
short, activations are recomputed, as far as the request leaves that open. Where
devices differ, microbatches of unequal size follow (`proposals`).
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Sequence

from tfplace.core.evaluation import Result
from tfplace.core.microbatches import VariantConfig
from tfplace.core.order import AUTO, LEAST_GAIN, RANK
from tfplace.core.recompute import RecomputeConfig, recompute_of
from tfplace.core.units import format_us
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.plan.config import PlanConfig, Stages
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
from tfplace.plan.variants import (
  OpenVariant,
  VariantChoice,
  VariantTrial,
  in_words,
)

# Largest whole step, in ops, of which a variant is extracted only to tell its
# gain, because larger steps take long.
MOST_HINT_OPS = 4_000

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
  """Choice of a step variant by successive halving.

  Attributes:
    trials: trials in order of their beginning; the first is the requested step.
  """

  def __init__(
    self, open_variant: OpenVariant, config: PlanConfig, show: Stages
  ) -> None:
    """Takes the arguments of `plan.microbatches.choose_variant`."""
    self.trials: list[VariantTrial] = []
    self._open = open_variant
    self._base = config.microbatches
    self._config = config
    self._show = show
    self._left_s = config.budget_s
    self._left_evaluations = config.max_evaluations
    self._share = _RUNG_SHARE
    self._single: Result | None = None
    self._refused = ""
    self._allowed: VariantTrial | None = None
    self._hints = True  # Whether to estimate what else would be possible.

  def run(self) -> VariantTrial:
    """Returns the winner, whose best placement starts the final search.

    Raises:
      InfeasibleError: no variant fits in memory.
      TfplaceError: the requested step cannot be extracted, or the placer
        rejects all variants.
    """
    self._explore()
    return self._trimmed(self._halve())

  def _explore(self) -> None:
    """Runs the first rung: a short search per step variant."""
    chooses = self._config.chooses_microbatches
    whole = VariantTrial(self._microbatches(1 if chooses else self._base.count))
    whole.variant = self._open(whole.microbatches)
    self.trials.append(whole)
    problem = whole.variant.problem
    compile_placers(problem, self._config, self._show)
    self._single = on_one_device(problem, self._config.seed)
    self._hints = problem.graph.num_ops <= MOST_HINT_OPS
    devices = num_working_devices(problem)
    counts, proposals = [self._base.count], []
    if chooses:
      counts, proposals = counts_to_try(devices), proposed_sizes(problem)
      proposals = [sizes for sizes in proposals if len(sizes) <= MOST]
    recomputes = self._config.chooses_recomputation
    arms = len(counts) * (1 + recomputes) + len(proposals)
    self._share = _RUNG_SHARE / arms
    self._search(whole, self._share)
    if whole.error is not None and not whole.exceeds_memory:
      # Some strategies require microbatches.
      whole.why = f"is not placed by {self._config.strategy}"
    exceeds = variables_exceed_memory(problem)
    if whole.best is None and exceeds:
      return
    if recomputes or devices == 1 or exceeds:
      self._save_memory(whole)
      if (
        devices == 1
        and whole.best is not None
        and not is_short_of_memory(whole)
      ):
        return
    self._explore_counts(counts[1:], devices)
    for sizes in proposals:
      if self._refused or self._is_late:
        break
      self._try(
        dataclasses.replace(self._microbatches(len(sizes)), sizes=sizes)
      )

  def _explore_counts(self, counts: Sequence[int], devices: int) -> None:
    """Tries numbers of equal microbatches, in order, while they help."""
    least = 2
    for count in counts:
      if count < least:
        continue
      best_us = self._best_us
      found_us = self._try_count(count)
      if found_us is None:
        if all(trial.microbatches.count == 1 for trial in self.trials[:-1]):
          self._refused = self.trials.pop().why
          self._allowed = self._with_batch_statistics(devices)
        return
      ratio = found_us / best_us if math.isfinite(best_us) else 0.0
      if ratio > _WORSE and count >= devices:
        return
      if ratio > _FAR_WORSE:
        least = devices
      if self._is_late or math.isinf(ratio):
        return

  def _try_count(self, count: int) -> float | None:
    """Tries a number of microbatches, and to save its memory.

    Returns:
      The best step time, or the bound of a step that was not searched, or None
      if the step cannot be split or placed this way.
    """
    best_us = self._best_us
    trial = self._try(self._microbatches(count))
    if trial.bound_us >= best_us:
      return trial.bound_us
    if trial.variant is None:
      return None
    found_us = trial.step_time_us
    if trial.best is None and self._base.max_in_flight is None:
      found_us = self._try_in_flight(count)
    return min(found_us, self._save_memory(trial))

  def _try_in_flight(self, count: int) -> float:
    """Tries 1, 2, 4, ... in flight while it helps; returns the best time."""
    best_us, flight = math.inf, 1
    while flight < count:
      trial = self._try(self._microbatches(count, flight))
      if trial.step_time_us >= best_us or trial.best is None:
        break
      best_us, flight = trial.step_time_us, 2 * flight
    return best_us

  def _save_memory(self, kept: VariantTrial) -> float:
    """Recomputes all layers if memory is short; returns the best time."""
    recomputes = self._config.chooses_recomputation and is_short_of_memory(kept)
    if not recomputes or self._is_late:
      return math.inf
    everything = RecomputeConfig(everything=True)
    trial = self._try(
      dataclasses.replace(kept.microbatches, recompute=everything)
    )
    is_open = self._config.chooses_microbatches and (
      self._base.max_in_flight is None and not trial.microbatches.is_whole
    )
    if trial.exceeds_memory and is_open:
      trial = self._try(
        dataclasses.replace(trial.microbatches, max_in_flight=1)
      )
    return trial.step_time_us

  def _with_batch_statistics(self, devices: int) -> VariantTrial | None:
    """Estimates the step with batch statistics allowed, if that is possible."""
    if self._base.allow_batch_statistics or not self._hints:
      return None
    self._try(
      dataclasses.replace(
        self._microbatches(max(2, devices)), allow_batch_statistics=True
      )
    )
    trial = self.trials.pop()
    return None if trial.best is None else trial

  def _halve(self) -> VariantTrial:
    """Runs the remaining rungs and returns the winner."""
    alive = sorted((t for t in self.trials if t.best), key=self._rank)
    if not alive:
      error = self.trials[0].error
      if error is not None and not self.trials[0].exceeds_memory:
        raise TfplaceError(self._refused) if self._refused else error
      raise self._none_fits()
    for _ in range(1, _RUNGS if self._config.searches else 1):
      alive = _kept(alive)
      if len(alive) == 1:
        break
      for trial in alive:
        self._search(trial, _RUNG_SHARE / len(alive))
      alive.sort(key=self._rank)
    return alive[0]

  def _rank(self, trial: VariantTrial) -> tuple[float, int, int]:
    """Sorts by step time, with a least gain for whatever is done to a step."""
    count, first = trial.microbatches.count, self.trials[0].microbatches
    is_changed = trial.microbatches.recompute != first.recompute
    rate = 1 + _GAIN * (math.log2(count) + is_changed)
    flight = trial.microbatches.max_in_flight or count
    if self._config.order == AUTO and trial.order == RANK:
      rate /= 1 - LEAST_GAIN
    return trial.step_time_us * rate, count, flight

  def _trimmed(self, winner: VariantTrial) -> VariantTrial:
    """Returns the winner, recomputing only the segments that help most.

    Bisects the number of segments, by bytes freed per microsecond.
    """
    chosen = winner.microbatches.recompute
    if not (self._config.chooses_recomputation and chosen.everything):
      return winner
    problem = winner.opened.problem
    segments = recompute_of(problem.graph.traced_names).ops
    ranked = segments_by_worth(problem)
    low, high = 0, len(ranked)
    for _ in range(_TRIMS):
      middle = (low + high) // 2
      if middle == low or self._left_s <= 0:
        break
      best = set(ranked[:middle])
      ops = tuple(
        names if i in best else () for i, names in enumerate(segments)
      )
      fewer = RecomputeConfig(ops=ops)
      trial = self._try(
        dataclasses.replace(winner.microbatches, recompute=fewer), winner
      )
      if trial.step_time_us >= winner.step_time_us:
        trial.variant, low = None, middle
        continue
      winner.variant, winner, high = None, trial, middle
    return winner

  def final_config(self, winner: VariantTrial) -> PlanConfig:
    """Returns the settings of the final search from the best placement."""
    config, evaluations, start = self._config, self._left_evaluations, None
    if winner.best is not None and config.searches:
      start = winner.best.placement
    return dataclasses.replace(
      config,
      budget_s=max(self._left_s, _LEAST_SHARE * config.budget_s),
      max_evaluations=None if evaluations is None else max(1, evaluations),
      init_placement=start,
      order=winner.order or config.order,
    )

  def choice(self, winner: VariantTrial) -> VariantChoice | None:
    """Describes the variants tried and the choice, if there was one."""
    if len(self.trials) == 1 and not self._config.chooses_microbatches:
      return None
    for trial in self.trials:
      trial.variant = None
    return VariantChoice(
      self.trials,
      winner.microbatches,
      self._single,
      self._refused,
      self._allowed,
    )

  # Trials, and the budget that their searches share.

  @property
  def _best_us(self) -> float:
    return min(trial.step_time_us for trial in self.trials)

  @property
  def _is_late(self) -> bool:
    """Returns whether the rest of the budget goes to variants already tried."""
    by_time = self._config.max_evaluations is None
    return by_time and self._left_s < self._config.budget_s / 2

  def _try(
    self, microbatches: VariantConfig, like: VariantTrial | None = None
  ) -> VariantTrial:
    """Extracts and searches a variant, or records why it is of no use.

    Args:
      like: trial from whose placement the search starts.
    """
    trial, best_us = VariantTrial(microbatches), self._best_us
    self.trials.append(trial)
    try:
      variant = self._open(microbatches)
    except TfplaceError as error:
      trial.why = str(error)
      return trial
    if variant.live is None:  # Measured costs may err and prove nothing.
      trial.bound_us = variant.problem.lower_bound_us
    if trial.bound_us >= best_us:
      trial.why = f"takes at least {format_us(trial.bound_us)}"
      return trial
    trial.variant = variant
    self._search(trial, _TRIM_SHARE if like else self._share, like)
    return trial

  def _search(
    self,
    trial: VariantTrial,
    share: float,
    like: VariantTrial | None = None,
  ) -> None:
    """Searches for a share of the budget from the best placement.

    A trial without one may start `like` another.
    """
    config, is_first = self._config, trial.best is None
    seconds = max(share, _LEAST_SHARE) * config.budget_s
    known = trial.best or (like.best if like and config.searches else None)
    try:
      with self._charged(trial, seconds):
        trial.best = find_placement(
          trial.opened.problem,
          config,
          seconds,
          start=None if known is None else known.placement,
          order=trial.order or config.order,
          max_evaluations=self._spend_evaluations(share),
        )
    except InfeasibleError as error:
      trial.why, trial.error = "does not fit in memory", error
    except TfplaceError as error:  # Some strategies reject large graphs.
      trial.variant, trial.why, trial.error = None, str(error), error
    if trial.best is not None and is_first:
      trial.other_order_us = trial.best.other_order_us
      trial.single = single_of(trial.best.tried)

  @contextlib.contextmanager
  def _charged(self, trial: VariantTrial, seconds: float) -> Iterator[None]:
    """Shows a search and charges it to the budget."""
    how = in_words(trial.microbatches)
    what = f" of the step {how}, for up to {seconds:.1f} s"
    with self._show("search", what, seconds):
      began = time.perf_counter()
      try:
        yield
      finally:
        took_s = time.perf_counter() - began
        self._left_s -= took_s
        trial.seconds += took_s

  def _spend_evaluations(self, share: float) -> int | None:
    most = self._config.max_evaluations
    if most is None or self._left_evaluations is None:
      return None
    spent = max(1, int(share * most))
    self._left_evaluations -= spent
    return spent

  def _microbatches(
    self, count: int, flight: int | None = None
  ) -> VariantConfig:
    flight = flight or self._base.max_in_flight
    if flight is not None and flight >= count:
      flight = None
    sizes = None if self._config.chooses_microbatches else self._base.sizes
    return dataclasses.replace(
      self._base, count=count, max_in_flight=flight, sizes=sizes
    )

  def _none_fits(self) -> InfeasibleError:
    """Returns the error of the whole step, with the largest number tried."""
    tried = [
      trial.microbatches for trial in self.trials if trial.exceeds_memory
    ]
    error = self.trials[0].error
    if not isinstance(error, InfeasibleError):
      error = InfeasibleError("nothing fits")
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


def _kept(alive: Sequence[VariantTrial]) -> list[VariantTrial]:
  """Returns the better half and all trials close to the best one."""
  half = (len(alive) + 1) // 2
  best_us = alive[0].step_time_us
  kept = []
  for i, trial in enumerate(alive):
    is_close = trial.step_time_us <= _CLOSE * best_us
    may_win = i == 0 or trial.bound_us < best_us
    if may_win and (i < half or is_close):
      kept.append(trial)
    else:
      trial.variant = None
  return kept
