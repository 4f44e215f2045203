"""The facade of planning: from a problem to a placement and its baselines.

`make_plan` proves a lower bound, compiles the placers, places, and places
by the baselines. It does not extract graphs (`plan.sources`), runs nothing
(`plan.measured`), and it applies and prints nothing.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from tfplace import bounds, placers
from tfplace.core import order as orders
from tfplace.core import protocols
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluation, Result
from tfplace.cost.profile import noise_of
from tfplace.errors import TfplaceError
from tfplace.extraction import stages
from tfplace.placers import registry
from tfplace.plan.choice import SplitChoice, order_reason, shown_us

SINGLE = "single"
CHOOSING = "auto"  # chooses among strategies; any other one is named by a user
_SAME = 1.005  # ratio of step times below which nobody would call one longer
_BASELINE_BUDGET_S = 5.0  # none of them searches


@dataclasses.dataclass(frozen=True)
class PlanConfig:
  """How to plan.

  Attributes:
    strategy: name of a placer.
    budget_s: seconds for the proof of a lower bound and the placer.
    seed: fixes the random choices of the placer.
    policy: exported policy of a learned strategy; None takes the shipped one.
    baselines: strategies that the placement is compared with.
    init_placement: to start the search from, as `tfplace.place` takes it; None
      for none.
    tolerance: share of the step time that `auto` may give up for less traffic.
      None: the noise of measured costs (`cost.profile.step_noise`), and 0 where
      costs are described.
    max_evaluations: bounds the search by placements, so that the same seed
      gives the same plan on any machine; None for seconds alone.
    order: in which devices take their ready ops, as `tfplace.place` has it;
      "auto" chooses it with the placement.
    most_noise: of measured costs, what counts as a tolerance at most; our
      choice.
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
    """The tolerance for the costs of this problem."""
    if self.tolerance is not None:
      return self.tolerance
    return min(noise_of(problem.graph), self.most_noise)

  def check(self) -> None:
    """Checks the values.

    Raises:
      TfplaceError: an unknown strategy or order (lists the choices), or a
        budget or seed that makes no sense.
    """
    if self.strategy not in placers.STRATEGIES:
      raise TfplaceError(
        f"unknown strategy {self.strategy!r}; choose one of"
        f" {', '.join(placers.STRATEGIES)}"
      )
    if self.init_placement is not None:
      registry.check_searches(self.strategy)
    protocols.check_budget(self.budget_s)
    protocols.check_count("seed", self.seed, 0)
    orders.check_order(self.order, (*orders.ORDERS, orders.AUTO))


class ShowStage(Protocol):
  """Shows a stage of planning for as long as it lasts."""

  def __call__(
    self, stage: str, detail: str, seconds: float | None
  ) -> contextlib.AbstractContextManager[stages.OnStage]:
    """A context to be open meanwhile; yields what is told of parts of it.

    Args:
      stage: such as "search".
      detail: goes on from there, such as " by auto, for up to 30 s".
      seconds: that the stage takes at most, where that is known.
    """


class Stages:
  """The stages of planning: each is shown while it lasts, and timed.

  Attributes:
    seconds: stage -> seconds that it took.
  """

  def __init__(self, show: ShowStage | None = None) -> None:
    """Without `show`, they are only timed."""
    self.seconds: dict[str, float] = {}
    self._show = show

  @contextlib.contextmanager
  def __call__(
    self, stage: str, detail: str = "", seconds: float | None = None
  ) -> Iterator[stages.OnStage]:
    """A stage; the arguments and what is yielded are `ShowStage`'s."""
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
  """A placement, and what it is compared with.

  Attributes:
    problem: the one given, with measured costs where devices are open, with
      the lower bound that was proven, and in the order of the plan.
    results: of the strategy, of what `auto` tried for it, and of the baselines
      that were not among these.
    best: the one to take.
    failures: baseline -> why it has no result.
    measured: what each of `results` took, where that was asked for.
    choice: how the step is split, where that was chosen with the placement.
    order_reason: why devices take ops in the order of the plan, as a part of a
      sentence; "" where it was not chosen.
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
    """The best single device; None where none has the memory.

    Of the whole step, where it was chosen to split it.
    """
    if self.choice is not None and not self.choice.split.is_whole:
      return self.choice.single
    return next((r for r in self.results if r.strategy == SINGLE), None)

  @property
  def evaluation(self) -> Evaluation:
    """Of `best`: measured, where it was, and then with the prediction."""
    predicted = self.best.evaluation
    if self.measured is None:
      return predicted
    number = next(i for i, r in enumerate(self.results) if r is self.best)
    return self.measured[number].with_extra(
      predicted_step_time_us=predicted.step_time_us
    )


def is_beaten(result: Result, single: Result | None) -> bool:
  """Whether one device alone is predicted to be as fast as `result`."""
  return single is not None and (
    result.evaluation.step_time_us >= single.evaluation.step_time_us
  )


def against_single(result: Result, single: Result) -> str:
  """The step compared with that of one device, as a part of a sentence."""
  alone_us = single.evaluation.step_time_us
  alone = f"{shown_us(alone_us)} on one device"
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
  """Places a problem, and compares the placement with the baselines.

  Args:
    problem: what to place.
    config: how; as `PlanConfig.check` wants it.
    show: shows and times what is done.

  Raises:
    InfeasibleError: nothing fits in memory.
    TfplaceError: as the placer does.
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
  problem = best.placement.problem  # the baselines are in its order, too
  with stage("comparison", f" with {', '.join(config.baselines)}"):
    baselines, failures = _baselines(problem, best, config)
  results = [best, *best.tried, *baselines]
  reason = order_reason(best.order, best.other_order_us)
  return PlanResult(problem, results, best, failures, order_reason=reason)


def compile_placers(
  problem: Problem, config: PlanConfig, stage: Stages, is_split: bool
) -> None:
  """Compiles, and loads, what a strategy needs, which no budget is for;
  `is_split` for steps in microbatches, too."""
  with stage("compiling the placers", ", once per installation"):
    placers.warm_up(
      config.strategy,
      problem.cluster.has_message_costs,
      is_split,
    )


def _baselines(
  problem: Problem, best: Result, config: PlanConfig
) -> tuple[list[Result], dict[str, TfplaceError]]:
  """Results of the baselines that were not tried, and why some have none."""
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
