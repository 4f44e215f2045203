"""Choice between keeping and recomputing activations."""

import dataclasses

from tfplace.core.microbatches import microbatches_of, name_in_whole
from tfplace.core.problem import Problem
from tfplace.core.recompute import SCOPE, RecomputeConfig, recompute_of
from tfplace.core.units import format_us
from tfplace.errors import InfeasibleError
from tfplace.plan.config import PlanConfig, Stages
from tfplace.plan.microbatches import choose_placement
from tfplace.plan.search import PlanReport
from tfplace.plan.variants import OpenVariant, StepVariant

_SHARE = 0.5  # Share of the budget for the step that recomputes all layers.
_TRIM_SHARE = 0.1  # Share for each of the steps that recompute less.
_TRIMS = 4  # Number of these steps.


def choose(
  open_variant: OpenVariant, config: PlanConfig, show: Stages
) -> tuple[PlanReport, StepVariant, str]:
  """Recomputes activations where the step does not fit or is faster so.

  The step that keeps all activations gets the whole budget if it fits whole.
  Otherwise, all layers are recomputed, then only those segments that free the
  most bytes per microsecond, as few as fit. The fastest step is chosen.

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
  recomputed = _trimmed(open_variant, half, recomputed, show)
  if kept is None:
    return *recomputed, _reason(recomputed[0], "does not fit in memory")
  kept_us = kept[0].evaluation.step_time_us
  if kept_us <= recomputed[0].evaluation.step_time_us:
    return *kept, ""
  return *recomputed, _reason(recomputed[0], f"takes {format_us(kept_us)}")


def _trimmed(
  open_variant: OpenVariant,
  config: PlanConfig,
  found: tuple[PlanReport, StepVariant],
  show: Stages,
) -> tuple[PlanReport, StepVariant]:
  """Bisects the number of segments, and returns the fastest step that fits."""
  graph = found[0].problem.graph
  step = microbatches_of(graph.names)
  ranked = _by_worth(found[0].problem, step.recompute)
  low, high = 0, len(ranked)
  for _ in range(_TRIMS):
    middle = (low + high) // 2
    if middle == low:
      break
    chosen = set(ranked[:middle])
    ops = tuple(
      names if i in chosen else () for i, names in enumerate(step.recompute.ops)
    )
    trial = dataclasses.replace(
      config,
      budget_s=config.budget_s * _TRIM_SHARE / _SHARE,
      chooses_microbatches=False,
      microbatches=dataclasses.replace(
        step,
        allow_batch_statistics=config.microbatches.allow_batch_statistics,
        recompute=RecomputeConfig(ops=ops),
      ),
    )
    try:
      less = choose_placement(open_variant, trial, show)
    except InfeasibleError:
      low = middle
      continue
    high = middle
    if less[0].evaluation.step_time_us < found[0].evaluation.step_time_us:
      choice = found[0].choice
      found = dataclasses.replace(less[0], choice=choice), less[1]
  return found


def _by_worth(problem: Problem, recompute: RecomputeConfig) -> list[int]:
  """Returns the segments by bytes freed per microsecond, best first."""
  graph = problem.graph
  worth: dict[int, float] = {}
  for number, names in enumerate(recompute.ops):
    clones = [
      op
      for op, name in enumerate(graph.names)
      if name_in_whole(name).startswith(f"{SCOPE}{number}/")
    ]
    if not names:
      continue
    spent_us = problem.fastest_us[clones].sum()
    freed = graph.op_output_bytes[clones].sum()
    worth[number] = freed / max(float(spent_us), 1e-3)
  return sorted(worth, key=lambda number: -worth[number])


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
