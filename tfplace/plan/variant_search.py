"""Joint choice of a step variant and its placement."""

import dataclasses

from tfplace.errors import MeasurementError
from tfplace.plan.config import PlanConfig
from tfplace.plan.measured import Runs, placement_key, search_measured
from tfplace.plan.search import Outcome, search
from tfplace.plan.stages import Stages
from tfplace.plan.steps import Steps
from tfplace.plan.successive_halving import SuccessiveHalving
from tfplace.plan.variants import StepVariant, VariantTrial, in_words


def choose_variant(
  steps: Steps, config: PlanConfig, show: Stages | None = None
) -> Outcome:
  """Places the requested step, or chooses its variant beside the placement.

  The number of microbatches and the number in flight are chosen, and what
  becomes of activations, as far as `config` leaves them open. All step variants
  share its budget.

  With `config.measure`, the variant with the best prediction is measured, and
  so is its best rival: the step as requested, or the best other variant if the
  step as requested has the best prediction. The faster one is chosen.

  Raises:
    InfeasibleError: no step variant fits in memory.
    MeasurementError: `config.measure` is set, and no placement could be run.
  """
  show = Stages() if show is None else show
  if not config.chooses_variant:
    return _placed(steps.open(config.variant, show), config, show)
  # Phase 1: choose a variant, and place it.
  variants = SuccessiveHalving(steps, config, show)
  winner = variants.run()
  outcome = _placed(winner.opened, variants.final_config(winner), show)
  winner.best = outcome.best
  winner.seconds += outcome.results[0].seconds
  choice = variants.choice(winner)
  outcome = dataclasses.replace(outcome, choice=choice)
  if config.measure and choice is not None:
    # Phase 2: measure its best rival, too.
    winner.measured_us = outcome.evaluation.step_time_us
    others = choice.trials[1:] if choice.is_first else choice.trials[:1]
    rivals = [trial for trial in others if trial.best and trial.step]
    if rivals:
      rival = min(rivals, key=lambda trial: trial.step_time_us)
      outcome = _faster(outcome, rival, config, show)
  for trial in variants.trials:
    trial.step = None  # It may hold a copy of the weights.
  return outcome


def _placed(step: StepVariant, config: PlanConfig, show: Stages) -> Outcome:
  """Places a step variant, with measurement if the request says so."""
  if not config.measure:
    outcome = search(step.problem, config, show)
  elif step.live is None:
    raise MeasurementError("the step is on no devices that run")
  else:
    outcome = search_measured(step.problem, config, step.live, show)
  return dataclasses.replace(outcome, step=step)


def _faster(
  outcome: Outcome, rival: VariantTrial, config: PlanConfig, show: Stages
) -> Outcome:
  """Measures the rival variant and returns the faster one of the two.

  Unless the strategy searches, the rival keeps its own placement.
  """
  choice, step = outcome.choice, rival.opened
  assert choice is not None and step.live is not None  # On the same devices.
  single = choice.single if rival is choice.trials[0] else None
  results = {placement_key(r): r for r in (rival.best, single) if r is not None}
  runs = Runs(step.live, repeats=False)
  problem = step.problem.in_order(rival.order)
  what = f" the step {in_words(rival.variant)}"
  try:
    with show("measuring", what) as on_stage:
      runs.add(problem, list(results.values()), on_stage)
  except MeasurementError:
    return outcome
  chosen = runs.chosen() if config.searches else 0
  ran, known = runs.measured[chosen], outcome.evaluation
  rival.measured_us = ran.step_time_us
  if (not ran.feasible, ran.step_time_us) >= (
    not known.feasible,
    known.step_time_us,
  ):
    return outcome
  results_of_rival = runs.predicted(problem)
  return Outcome(
    problem,
    results_of_rival,
    results_of_rival[chosen],
    measured=runs.measured,
    choice=dataclasses.replace(choice, variant=rival.variant),
    step=step,
  )
