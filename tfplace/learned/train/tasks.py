"""What a placement is worth to a learner, as a number.

Two scales, both relative to a step time of the graph: PPO's logarithm, and the
papers' negative root. A placement that fits always has a reward of its own,
however slow it is: with a lower bound on rewards, a policy that begins with
random weights, and so with a third of the work on a CPU that is 25 times as
slow, sees the same reward everywhere and learns nothing.

From a problem to a training task: what to imitate, what to compare with."""

import numpy as np

from tfplace.core import symmetry
from tfplace.core.protocols import Evaluator
from tfplace.learned.decisions import Decisions
from tfplace.learned.gdp.environment import Task, step_times
from tfplace.learned.train import demonstrations


def log_rewards(
  step_us: np.ndarray, baseline_us: float, infeasible: float
) -> np.ndarray:
  """[B] float32 log(baseline / step time).

  Args:
    step_us: [B], infinite where a placement does not fit or cannot run.
    baseline_us: step time whose reward is 0; 10% faster is worth 0.1.
    infeasible: reward of what does not fit; less if anything that fits does
      not have more.
  """
  with np.errstate(divide="ignore"):
    return _below(np.log(baseline_us / step_us), step_us, infeasible)


def root_rewards(
  step_us: np.ndarray, baseline_us: float, infeasible: float
) -> np.ndarray:
  """[B] float32 -sqrt(step time / baseline), as `log_rewards`.

  HDP has -sqrt(seconds), and -10 for what does not fit; GDP the same.
  """
  return _below(-np.sqrt(step_us / baseline_us), step_us, infeasible)


def _below(
  reward: np.ndarray, step_us: np.ndarray, infeasible: float
) -> np.ndarray:
  """`reward` where it fits; elsewhere `infeasible`, or the worst of those."""
  fits = np.isfinite(step_us)
  worst = min(infeasible, float(reward[fits].min(initial=infeasible)))
  return np.where(fits, reward, worst).astype(np.float32)


def make_task(
  decisions: Decisions,
  evaluator: Evaluator,
  teaching: demonstrations.Teaching | None = None,
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
  taught = demonstrations.ask(decisions, teaching or demonstrations.Teaching())
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
