"""Planning again from steps that were timed in training.

Costs are refitted to the placements that ran, and the search starts again from
the placement in force. The step variant stays the same, and with it the numbers
of the training.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np

from tfplace.cost.measured_costs import step_noise
from tfplace.errors import ApplyError
from tfplace.graph.argument_checks import AUTO
from tfplace.graph.microbatches import VariantConfig
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.graph.quantities import format_us
from tfplace.plan.config import PlanConfig
from tfplace.plan.plan import Plan
from tfplace.plan.planner import make_plan
from tfplace.plan.stages import Stages
from tfplace.plan.steps import Steps
from tfplace.plan.variants import StepVariant
from tfplace.simulate import Simulator

# Least relative gain of a change, predicted and measured, above the differences
# between medians of one step; and the same in standard errors of the compared
# medians. Our choice.
_GAIN, _NOISES = 0.03, 3.0


@dataclasses.dataclass(frozen=True, eq=False)
class LiveRun:
  """A placement and the [num_steps] times of the steps that ran on it."""

  placement: Placement
  step_us: Sequence[float]

  @property
  def median_us(self) -> float:
    return statistics.median(self.step_us)

  @property
  def key(self) -> bytes:
    return self.placement.devices.tobytes()


def is_faster(new: LiveRun, old: LiveRun) -> bool:
  """Returns whether steps are faster by more than gain and noise."""
  noise = math.hypot(step_noise(new.step_us), step_noise(old.step_us))
  return new.median_us < old.median_us * (1 - max(_GAIN, _NOISES * noise))


def check_replannable(plan: Plan) -> None:
  """Raises ApplyError if costs are unknown, or there is only one device."""
  why = ""
  if not plan.assignments:
    why = "there is only one device"
  elif plan.placement is None:
    why = (
      "its placement was given by names, without costs: give place_model what"
      " plan_model returned"
    )
  elif plan.placement.problem.cluster.num_devices == 1:
    why = "there is only one device"
  if why:
    raise ApplyError(f"model {plan.model!r} is not planned again: {why}")


def replan(
  plan: Plan,
  problem: Problem,
  runs: Sequence[LiveRun],
  *,
  budget_s: float,
  seed: int,
) -> Plan | None:
  """Plans a step again with costs refitted to steps that ran.

  Args:
    plan: plan in force, which `check_replannable` accepts.
    problem: problem with the costs before any refit.
    runs: placements of the step that ran in training, at least that of `plan`.
    budget_s: time limit of proof and search, in seconds. Training waits.
    seed: seed of the placer's random choices.

  Returns:
    A plan of the same step variant and order that is predicted to be faster, on
    a placement that did not run yet, or None if none was found.
  """
  assert plan.placement is not None  # `check_replannable`
  fitted = _refitted(problem, runs)
  start = Placement(fitted, plan.placement.devices)
  new_plan = make_plan(
    _RefittedStep(StepVariant(fitted, plan.step)),
    PlanConfig(
      strategy=AUTO,
      budget_s=budget_s,
      seed=seed,
      order=plan.order,
      variant=plan.variant,
      init_placement=start,
    ),
  )
  if new_plan.placement is None or new_plan.evaluation is None:
    return None
  ran = {run.key for run in runs}
  if new_plan.placement.devices.tobytes() in ran:
    return None
  (now,) = Simulator(new_plan.placement.problem).evaluate(
    start.devices[np.newaxis]
  )
  least_us = now.step_time_us * (1 - _GAIN)
  if new_plan.evaluation.step_time_us > least_us:
    return None
  count = f"{len(runs)} placement{'s' * (len(runs) > 1)}"
  note = (
    f"Planned again with costs fitted to {count} that ran in training, the last"
    f" at {format_us(runs[-1].median_us)} per step."
  )
  return dataclasses.replace(
    new_plan, model=plan.model, notes=(*new_plan.notes, note)
  )


def _refitted(problem: Problem, runs: Sequence[LiveRun]) -> Problem:
  from tfplace.measure.calibrate import calibration  # Loads TensorFlow.

  rows = np.stack([run.placement.devices for run in runs])
  measured = [
    dataclasses.replace(
      predicted,
      step_time_us=run.median_us,
      source="measured",
      extra={"step_times_us": [float(us) for us in run.step_us]},
    )
    for predicted, run in zip(
      Simulator(problem).evaluate(rows), runs, strict=True
    )
  ]
  return calibration.refitted(problem, rows, measured)


class _RefittedStep(Steps):
  """The step of a plan, with other costs."""

  training = True
  suggests_microbatches = False

  def __init__(self, step: StepVariant) -> None:
    self._step = step

  def open(self, variant: VariantConfig, show: Stages) -> StepVariant:
    """Returns the step; `variant` is that of the plan."""
    return self._step
