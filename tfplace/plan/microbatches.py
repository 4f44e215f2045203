"""Joint choice of microbatches and placement.

If the user does not request microbatches, a quick estimate reports their gain.
"""

import dataclasses
from collections.abc import Callable

from tfplace import placers
from tfplace.core.microbatches import AUTO, MicrobatchConfig
from tfplace.errors import TfplaceError
from tfplace.plan.planner import PlanConfig, PlanResult, Stages, make_plan
from tfplace.plan.successive_halving import (
  HalvingConfig,
  SuccessiveHalving,
  main_devices,
)
from tfplace.plan.variants import (
  OpenVariant,
  StepVariant,
  VariantTrial,
  in_words,
  order_reason,
  would_take,
)

Finish = Callable[[StepVariant, PlanConfig, Stages], PlanResult]


def make_auto_plan(
  open_variant: OpenVariant,
  base: MicrobatchConfig,
  config: PlanConfig,
  show: Stages | None = None,
  finish: Finish | None = None,
  limits: HalvingConfig | None = None,
) -> tuple[PlanResult, StepVariant]:
  """Chooses microbatches and the number in flight, and places the step.

  Args:
    open_variant: function that extracts a step variant.
    base: fixed settings of all step variants. They state whether a microbatch
      may use its own statistics, and may fix the number in flight. The number
      of microbatches in `base` is ignored.
    config: settings of the planner. The budget is shared by all step variants.
      `init_placement` must be None.
    show: reports and times the stages.
    finish: last search, of the chosen step variant; `make_plan` by default.
    limits: settings of successive halving.

  Returns:
    The plan with its `choice`, and the planned step variant.

  Raises:
    InfeasibleError: no step variant fits in memory.
    TfplaceError: extraction of the whole step fails, or the placer fails.
  """
  stage = Stages() if show is None else show
  halving = SuccessiveHalving(
    open_variant, base, config, stage, limits or HalvingConfig()
  )
  halving.explore()
  winner = halving.halve()
  step = winner.opened
  final = halving.final_config(winner)
  if finish is None:
    plan = make_plan(step.problem, final, stage)
  else:
    plan = finish(step, final, stage)
  winner.best = plan.best
  winner.seconds += plan.results[0].seconds
  plan = dataclasses.replace(
    plan,
    choice=halving.choice(winner),
    order_reason=order_reason(plan.best.order, winner.other_order_us),
  )
  return plan, step


@dataclasses.dataclass(frozen=True)
class HintConfig:
  """Conditions for suggesting microbatches; the values are our choice.

  Attributes:
    least_budget_s: least search budget with an estimate, in seconds.
    search_s: time limit of the estimate, in seconds.
    most_ops: largest number of ops of the whole step, because larger steps
      take long to extract.
    gain: speedup of the placement over one device from which no suggestion is
      made. Models of consecutive layers reach 1.3 to 1.6 on four devices.
    split_gain: least speedup of microbatches over the placement for a
      suggestion.
  """

  least_budget_s: float = 20.0
  search_s: float = 2.0
  most_ops: int = 4_000
  gain: float = 1.6
  split_gain: float = 1.1


def split_hint(
  open_variant: OpenVariant,
  plan: PlanResult,
  config: PlanConfig,
  show: Stages,
  hint: HintConfig | None = None,
) -> str:
  """Estimates the gain from microbatches if several devices gain little.

  The estimate is a short search with as many microbatches as devices.

  Args:
    open_variant: function that extracts a step variant.
    plan: plan of the whole step.
    config: settings of that plan.
    show: reports and times the stages.
    hint: conditions for the estimate.

  Returns:
    Part of a sentence; "" if there is nothing to suggest.
  """
  hint = hint or HintConfig()
  single, best_us = plan.single_device, plan.best.evaluation.step_time_us
  devices = main_devices(plan.problem)
  small = plan.problem.graph.num_ops <= hint.most_ops
  gains = single is None or (
    single.evaluation.step_time_us >= hint.gain * best_us
  )
  if devices == 1 or not small or gains or config.strategy != AUTO:
    return ""
  if config.budget_s < hint.least_budget_s:
    return ""
  for allowed in (False, True):
    microbatches = MicrobatchConfig(devices, allow_batch_statistics=allowed)
    try:
      with show(
        "estimate", f" of the step {in_words(microbatches)}", hint.search_s
      ):
        problem = open_variant(microbatches).problem
        found = placers.place(
          problem, AUTO, budget_s=hint.search_s, seed=config.seed
        )
    except TfplaceError:
      continue
    if found.evaluation.step_time_us * hint.split_gain > best_us:
      return ""
    told = would_take(VariantTrial(microbatches, found), best_us)
    with_what = " and allow_batch_statistics" if allowed else ""
    return f"{told} (a quick estimate): ask for microbatches={AUTO}{with_what}"
  return ""
