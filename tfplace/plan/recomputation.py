"""Choice between keeping and recomputing activations."""

import dataclasses

from tfplace.core.recompute import RecomputeConfig, recompute_of
from tfplace.core.units import format_us
from tfplace.errors import InfeasibleError
from tfplace.plan.config import PlanConfig, Stages
from tfplace.plan.microbatches import choose_placement
from tfplace.plan.search import PlanReport
from tfplace.plan.variants import OpenVariant, StepVariant

_SHARE = 0.5  # Share of the budget for each of the two kinds of steps.


def choose(
  open_variant: OpenVariant, config: PlanConfig, show: Stages
) -> tuple[PlanReport, StepVariant, str]:
  """Recomputes activations where the step does not fit or is faster so.

  The step that keeps all activations gets the whole budget if it fits whole.
  Otherwise, it shares the budget with the step that recomputes all layers, and
  the faster one of those that fit is chosen.

  Returns:
    The report, the step variant, and the reason as part of a sentence; "" if
    nothing is recomputed.

  Raises:
    InfeasibleError: neither fits in memory.
  """
  kept, failure = None, None
  try:
    kept = choose_placement(open_variant, config, show)
    if _fits_whole(kept[0]):
      return *kept, ""
  except InfeasibleError as error:
    failure = error
  half = dataclasses.replace(
    config,
    budget_s=config.budget_s * _SHARE,
    microbatches=dataclasses.replace(
      config.microbatches, recompute=RecomputeConfig(everything=True)
    ),
  )
  try:
    recomputed = choose_placement(open_variant, half, show)
  except InfeasibleError as error:
    if kept is None:
      raise InfeasibleError(
        f"{error}; nor does it fit if all layers are recomputed",
        op=error.op,
        device=error.device,
        num_bytes=error.num_bytes,
        evaluation=error.evaluation,
      ) from failure
    return *kept, ""
  if kept is None:
    return *recomputed, _reason(recomputed[0], "does not fit in memory")
  kept_us = kept[0].evaluation.step_time_us
  if kept_us <= recomputed[0].evaluation.step_time_us:
    return *kept, ""
  return *recomputed, _reason(recomputed[0], f"takes {format_us(kept_us)}")


def _fits_whole(report: PlanReport) -> bool:
  """Returns whether the whole step was placed without recomputation."""
  choice = report.choice
  return choice is None or choice.trials[0].best is not None


def _reason(report: PlanReport, without: str) -> str:
  ops = recompute_of(report.problem.graph.names).ops
  segments = sum(map(bool, ops))
  return (
    f"activations are recomputed in {segments} segments, since the step that"
    f" keeps them {without}"
  )
