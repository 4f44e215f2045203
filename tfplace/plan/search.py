"""Search of a placement for one problem, with baselines."""

import dataclasses
from collections.abc import Mapping, Sequence

from tfplace import bounds, placers
from tfplace.cost.uncertainty import surest, with_intervals
from tfplace.errors import TfplaceError
from tfplace.graph.evaluation import Evaluation, Result
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.placers.idle_devices import without_idle_devices
from tfplace.plan.config import SINGLE, PlanConfig
from tfplace.plan.stages import Stages
from tfplace.plan.variants import StepVariant, VariantChoice, order_reason
from tfplace.simulate import Simulator

_BASELINE_BUDGET_S = 5.0  # No baseline searches.


@dataclasses.dataclass(frozen=True)
class Outcome:
  """Outcome of a search: the best placement and what it is compared with.

  Attributes:
    problem: the given problem with the proven lower bound and the order of the
      plan. Its costs are measured if devices are open.
    results: results of the strategy, of the placers that `auto` tried, and of
      the remaining baselines.
    best: selected result.
    failures: reason by baseline without a result.
    measured: measured evaluations of `results`, if requested.
    choice: choice of the step variant, if others were tried.
    order_reason: reason for the order, as part of a sentence; "" if the order
      was not chosen.
    alternatives: further step variants on one device, see `reference`.
    step: extracted step, or None where a problem was given.
  """

  problem: Problem
  results: Sequence[Result]
  best: Result
  failures: Mapping[str, TfplaceError] = dataclasses.field(default_factory=dict)
  measured: Sequence[Evaluation] | None = None
  choice: VariantChoice | None = None
  order_reason: str = ""
  alternatives: Sequence[Result] = ()
  step: StepVariant | None = None

  @property
  def single_device(self) -> Result | None:
    """Result on the best single device, or None if no device has the memory.

    If another step variant was chosen, the result is of the requested one.
    """
    if self.choice is not None and not self.choice.is_first:
      return self.choice.single
    return single_of(self.results)

  @property
  def reference(self) -> Result | None:
    """Fastest step on one device, whole or in microbatches; None if none fits.

    A CPU counts only where no other device holds any of these steps.
    """
    known = [self.single_device, single_of(self.results), *self.alternatives]
    if self.choice is not None:
      known += [self.choice.single, *(t.single for t in self.choice.trials)]
    results = [result for result in known if result is not None]
    return min(
      results,
      key=lambda r: (is_on_cpus(r), self.evaluation_of(r).step_time_us),
      default=None,
    )

  @property
  def evaluation(self) -> Evaluation:
    """Evaluation of `best`, measured and with the prediction if available."""
    predicted = self.best.evaluation
    if self.measured is None:
      return predicted
    return self.evaluation_of(self.best).with_extra(
      predicted_step_time_us=predicted.step_time_us
    )

  def evaluation_of(self, result: Result) -> Evaluation:
    """Returns the measured evaluation of a result, or else its own."""
    for known, measured in zip(self.results, self.measured or (), strict=False):
      if known is result:
        return measured
    return result.evaluation


def on_one_device(problem: Problem, seed: int) -> Result | None:
  """Places the step on the best single device, if it fits in memory."""
  try:
    return placers.place(problem, SINGLE, seed=seed)
  except TfplaceError:
    return None


def single_of(results: Sequence[Result]) -> Result | None:
  """Returns the result on one device, if there is one."""
  return next((r for r in results if r.strategy == SINGLE), None)


def is_on_cpus(result: Result) -> bool:
  """Returns whether CPUs do all the work although there are other devices."""
  is_cpu = result.placement.problem.cluster.is_cpu
  return not is_cpu.all() and bool(is_cpu[result.placement.devices].all())


def search(
  problem: Problem, config: PlanConfig, show: Stages | None = None
) -> Outcome:
  """Places a problem and compares the placement with the baselines.

  Raises:
    InfeasibleError: no placement fits in memory.
  """
  stage = Stages() if show is None else show
  compile_placers(problem, config, stage)
  with stage("proof", " of how fast a step can be at best"):
    problem, left_s = bounds.tightened_within(problem, config.budget_s)
  detail = f" by {config.strategy}, for up to {left_s:.0f} s"
  with stage("search", detail, left_s):
    best = find_placement(
      problem,
      config,
      left_s,
      start=config.init_placement,
      max_evaluations=config.max_evaluations,
      tolerance=config.tolerance_of(problem),
    )
    if config.searches:
      judge = Simulator(best.placement.problem)
      best = surest(without_idle_devices(best, judge))
  problem = best.placement.problem  # The baselines use its order, too.
  with stage("comparison", f" with {', '.join(config.baselines)}"):
    baselines, failures = _baselines(problem, best, config)
  results = with_intervals([best, *best.tried, *baselines])
  reason = order_reason(best.order, best.other_order_us)
  return Outcome(problem, results, results[0], failures, order_reason=reason)


def find_placement(
  problem: Problem,
  config: PlanConfig,
  seconds: float,
  *,
  start: Placement | Mapping[str, str] | None,
  max_evaluations: int | None,
  tolerance: float = 0.0,
) -> Result:
  """Searches a placement by the strategy of `config`, on its workers if any."""
  return placers.place(
    problem,
    config.strategy,
    budget_s=seconds,
    seed=config.seed,
    policy=config.policy,
    max_evaluations=max_evaluations,
    init_placement=start,
    tolerance=tolerance,
    order=config.order,
    gap=config.gap,
    dask=config.workers,
  )


def compile_placers(
  problem: Problem, config: PlanConfig, stage: Stages
) -> None:
  """Compiles and loads the placers of a strategy outside its budget.

  Workers did so when they started.
  """
  if config.workers is not None:
    return
  with stage.loading_placers():
    placers.warm_up(config.strategy, problem.cluster.has_message_costs)
    bounds.warm_up()


def _baselines(
  problem: Problem, best: Result, config: PlanConfig
) -> tuple[list[Result], dict[str, TfplaceError]]:
  """Runs the baselines without a result; also returns reasons of failures."""
  tried = {best.strategy, *best.skipped, *(r.strategy for r in best.tried)}
  if single_of(best.tried) is None and best.strategy != SINGLE:
    tried.discard(SINGLE)  # Beside GPUs, `auto` does not try CPUs.
  results: list[Result] = []
  failures: dict[str, TfplaceError] = {}
  for strategy in config.baselines:
    if strategy not in tried:
      try:
        results.append(
          placers.place(
            problem, strategy, budget_s=_BASELINE_BUDGET_S, seed=config.seed
          )
        )
      except TfplaceError as error:
        failures[strategy] = error
  return results, failures
