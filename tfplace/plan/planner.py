"""Planning facade: from a problem to a placement and its baselines.

`make_plan` proves a lower bound, compiles the placers, and runs the strategy
and the baselines. `plan.sources` extracts graphs, and `plan.measured` runs
placements on devices. This module applies and prints nothing.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from tfplace import bounds, placers
from tfplace.core import order as orders
from tfplace.core.argument_checks import check_count
from tfplace.core.budget import check_budget
from tfplace.core.evaluation import Evaluation, Result
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.units import format_us
from tfplace.cost.measured_costs import noise_of
from tfplace.errors import TfplaceError
from tfplace.extraction import stages
from tfplace.placers import registry
from tfplace.plan.choice import SplitChoice, order_reason

SINGLE = "single"
CHOOSING = "auto"  # The strategy that chooses among the others.
_SAME = 1.005  # Step times with a smaller ratio are reported as equal.
_BASELINE_BUDGET_S = 5.0  # none of them searches


@dataclasses.dataclass(frozen=True)
class PlanConfig:
  """Settings of the planner.

  Attributes:
    strategy: name of a placer.
    budget_s: time limit of the lower-bound proof and the placer, in seconds.
    seed: seed of the placer's random choices.
    policy: exported policy of a learned strategy. None selects the shipped
      policy.
    baselines: strategies to compare the placement with.
    init_placement: placement from which the search starts, see
      `tfplace.place`, or None.
    tolerance: share of the step time that `auto` may give up for less traffic.
      None selects the noise of measured costs (`measured_costs.step_noise`), or
      0 for estimated costs.
    max_evaluations: limit of the number of evaluations, so that a seed gives
      the same plan on every machine. None means a time limit only.
    order: order in which a device runs its ready ops, see `tfplace.place`.
      "auto" chooses it together with the placement.
    most_noise: upper limit of the tolerance that follows from the noise of
      measured costs; our choice.
  """

  strategy: str = "auto"
  budget_s: float = 30.0
  seed: int = 0
  policy: str | None = None
  baselines: tuple[str, ...] = (SINGLE,)
  init_placement: Placement | Mapping[str, str] | None = None
  tolerance: float | None = None
  max_evaluations: int | None = None
  order: str = orders.ARRIVAL
  most_noise: float = 0.02

  def tolerance_of(self, problem: Problem) -> float:
    """Returns the tolerance for the costs of a problem."""
    if self.tolerance is not None:
      return self.tolerance
    return min(noise_of(problem.graph), self.most_noise)

  def check(self) -> None:
    """Checks the values.

    Raises:
      TfplaceError: a strategy or order is unknown (the message lists the
        choices), or a budget or seed is invalid.
    """
    if self.strategy not in placers.STRATEGIES:
      raise TfplaceError(
        f"unknown strategy {self.strategy!r}; choose one of"
        f" {', '.join(placers.STRATEGIES)}"
      )
    if self.init_placement is not None:
      registry.check_accepts_start(self.strategy)
    check_budget(self.budget_s)
    check_count("seed", self.seed, 0)
    orders.check_order(self.order, (*orders.ORDERS, orders.AUTO))


class ShowStage(Protocol):
  """Callable that displays a stage of planning while it runs."""

  def __call__(
    self, stage: str, detail: str, seconds: float | None
  ) -> contextlib.AbstractContextManager[stages.OnStage]:
    """Returns a context for the stage, which yields a progress callback.

    Args:
      stage: name of the stage, such as "search".
      detail: text after the name, such as " by auto, for up to 30 s".
      seconds: time limit of the stage in seconds, or None.
    """


class Stages:
  """Display and timer of the stages of planning.

  Attributes:
    seconds: duration in seconds by stage.
  """

  def __init__(self, show: ShowStage | None = None) -> None:
    """Takes the display of stages; without `show`, stages are only timed."""
    self.seconds: dict[str, float] = {}
    self._show = show

  @contextlib.contextmanager
  def __call__(
    self, stage: str, detail: str = "", seconds: float | None = None
  ) -> Iterator[stages.OnStage]:
    """Displays and times a stage; see `ShowStage`."""
    began = time.monotonic()
    try:
      with (
        self._show(stage, detail, seconds)
        if self._show
        else contextlib.nullcontext(stages.ignore)
      ) as on_stage:
        yield on_stage
    finally:
      took_s = time.monotonic() - began
      self.seconds[stage] = self.seconds.get(stage, 0.0) + took_s


@dataclasses.dataclass(frozen=True)
class PlanResult:
  """Placement with the results that it is compared with.

  Attributes:
    problem: the given problem with the proven lower bound and the order of the
      plan. Its costs are measured if devices are open.
    results: results of the strategy, of the placers that `auto` tried, and of
      the remaining baselines.
    best: selected result.
    failures: reason by baseline without a result.
    measured: measured evaluations of `results`, if requested.
    choice: choice of microbatches, if they were chosen with the placement.
    order_reason: reason for the order, as part of a sentence; "" if the order
      was not chosen.
  """

  problem: Problem
  results: Sequence[Result]
  best: Result
  failures: Mapping[str, TfplaceError]
  measured: Sequence[Evaluation] | None = None
  choice: SplitChoice | None = None
  order_reason: str = ""

  @property
  def single_device(self) -> Result | None:
    """Result on the best single device, or None if no device has the memory.

    If microbatches were chosen, the result is of the whole step.
    """
    if self.choice is not None and not self.choice.split.is_whole:
      return self.choice.single
    return next((r for r in self.results if r.strategy == SINGLE), None)

  @property
  def evaluation(self) -> Evaluation:
    """Evaluation of `best`, measured and with the prediction if available."""
    predicted = self.best.evaluation
    if self.measured is None:
      return predicted
    number = next(i for i, r in enumerate(self.results) if r is self.best)
    return self.measured[number].with_extra(
      predicted_step_time_us=predicted.step_time_us
    )


def is_beaten(result: Result, single: Result | None) -> bool:
  """Returns whether one device is predicted to be as fast as `result`."""
  return single is not None and (
    result.evaluation.step_time_us >= single.evaluation.step_time_us
  )


def against_single(result: Result, single: Result) -> str:
  """Compares the step with that of one device, as part of a sentence."""
  alone_us = single.evaluation.step_time_us
  alone = f"{format_us(alone_us)} on one device"
  if not is_beaten(result, single):
    return f"against {alone}"
  ratio = result.evaluation.step_time_us / alone_us if alone_us else 1.0
  if ratio < _SAME:
    return f"no better than {alone}"
  digits = f"{ratio:.3g}" if ratio < 100 else f"{ratio:,.0f}"
  return f"{digits} times as long as {alone}"


def make_plan(
  problem: Problem,
  config: PlanConfig,
  show: Stages | None = None,
) -> PlanResult:
  """Places a problem and compares the placement with the baselines.

  Args:
    problem: problem to place.
    config: settings that pass `PlanConfig.check`.
    show: reports and times the stages.

  Raises:
    InfeasibleError: no placement fits in memory.
    TfplaceError: the placer fails.
  """
  stage = Stages() if show is None else show
  is_split = problem.graph.num_microbatches > 1
  compile_placers(problem, config, stage, is_split)
  with stage("proof", " of how fast a step can be at best"):
    problem, left_s = bounds.tightened_within(problem, config.budget_s)
  detail = f" by {config.strategy}, for up to {left_s:.0f} s"
  with stage("search", detail, left_s):
    best = placers.place(
      problem,
      strategy=config.strategy,
      budget_s=left_s,
      seed=config.seed,
      policy=config.policy,
      init_placement=config.init_placement,
      tolerance=config.tolerance_of(problem),
      max_evaluations=config.max_evaluations,
      order=config.order,
    )
  problem = best.placement.problem  # The baselines use its order, too.
  with stage("comparison", f" with {', '.join(config.baselines)}"):
    baselines, failures = _baselines(problem, best, config)
  results = [best, *best.tried, *baselines]
  reason = order_reason(best.order, best.other_order_us)
  return PlanResult(problem, results, best, failures, order_reason=reason)


def compile_placers(
  problem: Problem, config: PlanConfig, stage: Stages, is_split: bool
) -> None:
  """Compiles and loads the placers of a strategy outside its budget.

  With `is_split`, the code for microbatched steps is compiled, too.
  """
  with stage("compiling the placers", ", once per installation"):
    placers.warm_up(
      config.strategy,
      problem.cluster.has_message_costs,
      is_split,
    )


def _baselines(
  problem: Problem, best: Result, config: PlanConfig
) -> tuple[list[Result], dict[str, TfplaceError]]:
  """Runs the baselines without a result; also returns reasons of failures."""
  tried = {best.strategy, *best.skipped, *(r.strategy for r in best.tried)}
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
