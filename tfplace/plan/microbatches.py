"""Joint choice of a step variant and its placement.

If the user does not request microbatches, a quick estimate reports their gain.
"""

import dataclasses
from typing import cast

from tfplace import placers
from tfplace.core.microbatches import VariantConfig
from tfplace.errors import MeasurementError, TfplaceError
from tfplace.placers.idle_devices import idle_reason
from tfplace.plan.config import AUTO, PlanConfig, Stages
from tfplace.plan.measured import (
  Runs,
  placement_key,
  search_variant,
)
from tfplace.plan.proposals import num_working_devices
from tfplace.plan.search import PlanReport, is_on_cpus, on_one_device
from tfplace.plan.successive_halving import MOST_HINT_OPS, SuccessiveHalving
from tfplace.plan.variants import (
  OpenVariant,
  StepVariant,
  VariantChoice,
  VariantTrial,
  in_words,
  order_reason,
  would_take,
)


def choose_placement(
  open_variant: OpenVariant, config: PlanConfig, show: Stages
) -> tuple[PlanReport, StepVariant]:
  """Places the configured step, or chooses its variant beside it.

  The arguments and errors are those of `choose_variant`.
  """
  if config.chooses_variant:
    return choose_variant(open_variant, config, show)
  variant = open_variant(config.microbatches)
  return search_variant(variant, config, show), variant


def choose_variant(
  open_variant: OpenVariant, config: PlanConfig, show: Stages | None = None
) -> tuple[PlanReport, StepVariant]:
  """Chooses a step variant and places the step.

  The number of microbatches and the number in flight are chosen, and what
  becomes of activations, as far as `config` leaves them open.

  With `config.measure`, the variant with the best prediction is measured, and
  so is its best rival: the step as requested, or the best other variant if the
  step as requested has the best prediction. The faster one is chosen.

  Args:
    open_variant: function that extracts a step variant.
    config: settings. The budget is shared by all step variants, and
      `config.microbatches` holds what they have in common. `init_placement`
      must be None.
    show: reports and times the stages.

  Returns:
    The report with its `choice` (None if no other variant was tried, since
    memory is not short), and the chosen step variant.

  Raises:
    InfeasibleError: no step variant fits in memory.
    MeasurementError: `config.measure` is set, and no placement could be run.
    TfplaceError: extraction of the whole step fails, or the placer fails.
  """
  stage = Stages() if show is None else show
  opened: dict[VariantConfig, StepVariant] = {}

  def opening(microbatches: VariantConfig) -> StepVariant:
    variant = open_variant(microbatches)
    if config.measure:
      opened[microbatches] = variant
    return variant

  # Phase 1: choose a variant by successive halving, and place it.
  halving = SuccessiveHalving(opening, config, stage)
  winner = halving.run()
  variant = winner.opened
  report = search_variant(variant, halving.final_config(winner), stage)
  winner.best = report.best
  winner.seconds += report.results[0].seconds
  choice = halving.choice(winner)
  reason = order_reason(report.best.order, winner.other_order_us)
  report = dataclasses.replace(report, choice=choice, order_reason=reason)
  if not config.measure or choice is None:
    return report, variant
  # Phase 2: measure its best rival, too.
  winner.measured_us = report.evaluation.step_time_us
  others = choice.trials[1:] if choice.is_first else choice.trials[:1]
  rivals = [trial for trial in others if trial.best]
  if not rivals:
    return report, variant
  rival = min(rivals, key=lambda trial: trial.step_time_us)
  return _faster(
    report,
    variant,
    rival=rival,
    other=opened[rival.microbatches],
    searches=config.searches,
    show=stage,
  )


def _faster(
  report: PlanReport,
  variant: StepVariant,
  *,
  rival: VariantTrial,
  other: StepVariant,
  searches: bool,
  show: Stages,
) -> tuple[PlanReport, StepVariant]:
  """Measures the rival variant and returns the faster one of the two.

  Unless the strategy `searches`, the rival keeps its own placement.
  """
  choice = cast(VariantChoice, report.choice)
  is_first = rival is choice.trials[0]
  wanted = [rival.best, choice.single if is_first else None]
  results = {placement_key(r): r for r in wanted if r is not None}
  assert other.live is not None  # All variants are on the same devices.
  runs = Runs(other.live, repeats=False)
  problem = other.problem.in_order(rival.order)
  what = f" the step {in_words(rival.microbatches)}"
  try:
    with show("measuring", what) as on_stage:
      runs.add(problem, list(results.values()), on_stage)
  except MeasurementError:
    return report, variant
  chosen = runs.chosen() if searches else 0
  ran, own = runs.measured[chosen], report.evaluation
  rival.measured_us = ran.step_time_us
  own_order = (not own.feasible, own.step_time_us)
  if (not ran.feasible, ran.step_time_us) >= own_order:
    return report, variant
  choice = dataclasses.replace(choice, microbatches=rival.microbatches)
  found = runs.predicted(problem)
  best = found[chosen]
  report = PlanReport(problem, found, best, {}, runs.measured, choice)
  return report, other


def with_alternatives(
  open_variant: OpenVariant,
  report: PlanReport,
  config: PlanConfig,
  show: Stages,
  can_split: bool,
) -> PlanReport:
  """Adds variants on one device that may be the fairer reference.

  These are the whole step if microbatches were requested, and otherwise the
  first number of microbatches that one device holds, if it does not hold the
  whole step. Large steps take long to extract; they and measured ones are left
  out.

  Args:
    can_split: whether microbatches are possible.
  """
  reference, problem = report.reference, report.problem
  is_measured = problem.graph.extra.get("costs") == "measured"
  if is_measured or problem.graph.num_ops > MOST_HINT_OPS:
    return report
  counts: list[int] = []
  if not config.microbatches.is_whole and not config.chooses_variant:
    counts = [1]
  elif can_split and (reference is None or is_on_cpus(reference)):
    held = float(problem.graph.persistent_bytes.sum())
    devices = problem.cluster.devices
    cpus_count = all(device.is_cpu for device in devices)
    if any(
      d.memory_bytes > held for d in devices if cpus_count or not d.is_cpu
    ):
      tried = [] if report.choice is None else report.choice.trials
      known = {
        trial.microbatches.count
        for trial in tried
        if trial.microbatches.max_in_flight == 1
      }
      counts = [c for c in (2, 4, 8, 16) if c not in known]
  for count in counts:
    microbatches = dataclasses.replace(
      config.microbatches,
      count=count,
      max_in_flight=1 if count > 1 else None,
      sizes=None,
    )
    what = f" of one device with the step {in_words(microbatches)}"
    try:
      with show("estimate", what):
        other = open_variant(microbatches).problem
        found = on_one_device(other, config.seed)
    except TfplaceError:
      break
    if found is not None and not is_on_cpus(found):
      return dataclasses.replace(report, alternatives=(found,))
  return report


# Least budget with an estimate of microbatches, and its time limit, in seconds;
# our choice, as the next two.
_LEAST_BUDGET_S, _HINT_S = 10.0, 2.0
# Speedup of the placement over one device from which no suggestion is made if
# all devices work. Models of consecutive layers reach 1.3 to 1.6 on four.
_ENOUGH_GAIN = 1.6
_LEAST_HINT_GAIN = 1.1  # Least speedup by microbatches for a suggestion.
_STATISTICS = (
  "by which each microbatch of BatchNormalization uses its own statistics, and"
  " losses change slightly"
)


def microbatch_hint(
  open_variant: OpenVariant,
  report: PlanReport,
  config: PlanConfig,
  show: Stages,
) -> str:
  """Suggests microbatches if several devices gain little or some do no work.

  Their gain is estimated by a short search with as many microbatches as
  devices, unless the step is large or the budget small.

  Args:
    open_variant: function that extracts a step variant.
    report: report of planning the whole step.
    config: settings of that plan.
    show: reports and times the stages.

  Returns:
    Part of a sentence; "" if there is nothing to suggest.
  """
  single, best_us = report.reference, report.best.evaluation.step_time_us
  devices = num_working_devices(report.problem)
  small = report.problem.graph.num_ops <= MOST_HINT_OPS
  gains = single is None or (
    single.evaluation.step_time_us >= _ENOUGH_GAIN * best_us
  )
  all_work = not idle_reason(report.best.placement)
  if devices == 1 or (gains and all_work) or config.strategy != AUTO:
    return ""
  if not small or config.budget_s < _LEAST_BUDGET_S:
    told = f"planning with microbatches={AUTO!r} may keep more devices busy"
    if any(name.endswith("moving_mean") for name in report.problem.graph.names):
      told += f", with allow_batch_statistics=True, {_STATISTICS}"
    return told
  for allowed in (False, True):
    microbatches = VariantConfig(devices, allow_batch_statistics=allowed)
    what = f" of the step {in_words(microbatches)}"
    try:
      with show("estimate", what, _HINT_S):
        problem = open_variant(microbatches).problem
        found = placers.place(
          problem,
          AUTO,
          budget_s=_HINT_S,
          seed=config.seed,
          order=config.order,
        )
    except TfplaceError:
      continue
    if found.evaluation.step_time_us * _LEAST_HINT_GAIN > best_us:
      return ""
    told = would_take(VariantTrial(microbatches, found), best_us)
    told += f" (a quick estimate): plan with microbatches={AUTO!r}"
    if not allowed:
      return told
    return f"{told} and allow_batch_statistics=True, {_STATISTICS}"
  return ""
