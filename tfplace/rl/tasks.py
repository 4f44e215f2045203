"""From a problem to a training task: what to imitate, what to compare with."""

import numpy as np

from tfplace.placers.base import Evaluator
from tfplace.policies import symmetry
from tfplace.policies.decisions import Decisions
from tfplace.rl import teachers
from tfplace.rl.environment import Task, step_times


def make_task(
  decisions: Decisions,
  evaluator: Evaluator,
  teaching: teachers.Teaching | None = None,
  is_hinted: bool = False,
) -> Task:
  """The task of placing one problem, with the best teacher's placement.

  Teachers place the decisions, not the groups that are merged in them: what
  they show, the policy can say. They are compared in the simulator, whatever
  judges the policy: their best must be the same whenever the run goes on.

  Args:
    decisions: the problem and its units of decision.
    evaluator: judges its placements.
    teaching: where the target of imitation comes from.
    is_hinted: the policy sees the best placement that took no search among
      its features, and learns how a search changes it.

  Raises:
    InfeasibleError: no teacher found a placement that fits.
  """
  taught = teachers.ask(decisions, teaching or teachers.Teaching())
  classes = symmetry.device_classes(decisions.problem.cluster)
  hint = None
  if is_hinted:
    hint = symmetry.by_first_use(decisions.to_choices(taught.quick), classes)
  best = decisions.to_choices(taught.best)
  choices = symmetry.named(best, classes, hint)
  step_us = step_times(evaluator, decisions.to_devices(choices[None]))[0]
  known = bool(np.isfinite(step_us))
  if not known:
    baseline = step_times(evaluator, taught.best[None])[0]
  task = Task(
    decisions,
    evaluator,
    float(step_us if known else baseline),
    choices,
    hint=hint,
    clusterings=decisions.explorations,
    evaluations=taught.evaluations,
  )
  if known:
    task.best_us, task.best = float(step_us), choices
  return task
