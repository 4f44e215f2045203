"""Chooses how many microbatches a step is split into, with its placement.

Where nobody asks for that, a quick estimate says what a split would give.
"""

import dataclasses
from collections.abc import Callable

from tfplace import placers
from tfplace.errors import TfplaceError
from tfplace.extraction.microbatches import AUTO, SplitConfig
from tfplace.plan.choice import (
  SplitTrial,
  in_words,
  order_reason,
  would_take,
)
from tfplace.plan.planner import PlanConfig, PlanResult, Stages, make_plan
from tfplace.plan.race import (
  HalvingConfig,
  OpenSplit,
  Race,
  SplitStep,
  main_devices,
)

Finish = Callable[[SplitStep, PlanConfig, Stages], PlanResult]


def make_auto_plan(
  open_split: OpenSplit,
  base: SplitConfig,
  config: PlanConfig,
  show: Stages | None = None,
  finish: Finish | None = None,
  halving: HalvingConfig | None = None,
) -> tuple[PlanResult, SplitStep]:
  """Chooses microbatches and how many are in flight, and places that step.

  Args:
    open_split: extracts the step, split in one way; `base` says whether
      statistics over the batch are allowed, and may fix how many are in flight.
    base: what does not change; its number of microbatches does not count.
    config: how to place; its seconds are for all ways together. It begins from
      no placement.
    show: shows and times what is done.
    finish: the last search, of the way chosen; `make_plan` by default.
    halving: how the seconds are shared.

  Returns:
    The plan with its `choice`, and the step that it is of.

  Raises:
    InfeasibleError: nothing fits in memory, however the step is split.
    TfplaceError: as extraction of the whole step and the placer do.
  """
  stage = Stages() if show is None else show
  race = Race(open_split, base, config, stage, halving or HalvingConfig())
  race.explore()
  winner = race.halve()
  step = race.step_of(winner)
  final = race.final_config(winner)
  if finish is None:
    plan = make_plan(step.problem, final, stage)
  else:
    plan = finish(step, final, stage)
  winner.best = plan.best
  winner.seconds += plan.results[0].seconds
  plan = dataclasses.replace(
    plan,
    choice=race.choice(winner),
    order_reason=order_reason(plan.best.order, winner.other_order_us),
  )
  return plan, step


@dataclasses.dataclass(frozen=True)
class HintConfig:
  """When a plan says what a split would give; the values are our choice.

  Attributes:
    least_budget_s: of the whole search; of less, nothing is spent on it.
    search_s: of the estimate.
    most_ops: of the whole step; larger ones take long to extract.
    gain: of the placement over one device, from which nothing is said. Models
      whose layers follow one another gain 1.3 to 1.6 times on four devices.
    split_gain: of the split over the placement, below which nothing is said.
  """

  least_budget_s: float = 20.0
  search_s: float = 2.0
  most_ops: int = 4_000
  gain: float = 1.6
  split_gain: float = 1.1


def split_hint(
  open_split: OpenSplit,
  plan: PlanResult,
  config: PlanConfig,
  show: Stages,
  hint: HintConfig | None = None,
) -> str:
  """What a split would give where several devices gain little without.

  A quick estimate: as many microbatches as devices, searched for a moment.

  Args:
    open_split: extracts the step, split in one way.
    plan: of the whole step.
    config: how it was planned.
    show: shows and times what is done.
    hint: when to estimate.

  Returns:
    A part of a sentence; "" where there is nothing to say.
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
    split = SplitConfig(devices, allow_batch_statistics=allowed)
    try:
      with show("estimate", f" of the step {in_words(split)}", hint.search_s):
        problem = open_split(split).problem
        found = placers.place(
          problem, AUTO, budget_s=hint.search_s, seed=config.seed
        )
    except TfplaceError:
      continue
    if found.evaluation.step_time_us * hint.split_gain > best_us:
      return ""
    told = would_take(SplitTrial(split, found), best_us)
    with_what = " and allow_batch_statistics" if allowed else ""
    return f"{told} (a quick estimate): ask for microbatches={AUTO}{with_what}"
  return ""
