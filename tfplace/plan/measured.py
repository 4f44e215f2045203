"""Search and measurement in turns, on devices that run.

A search goes where its simulator errs most. So the best few placements are
run, the costs are fitted again to everything that ran, and the search begins
anew from the fastest, until prediction and measurement agree or the seconds
are spent. What counts in the end is the measured step, and one device is among
what runs: no placement is chosen that is slower than it.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluation, Result
from tfplace.errors import MeasurementError
from tfplace.placers import registry
from tfplace.plan.planner import PlanConfig, PlanResult, Stages, make_plan
from tfplace.simulate import Simulator

# Runs placements; returns their evaluations, in order.
Measure = Callable[[Sequence[Placement]], list[Evaluation]]
# The problem, with costs fitted to placements that ran.
Refit = Callable[[Problem, Sequence[Placement], Sequence[Evaluation]], Problem]


@dataclasses.dataclass(frozen=True)
class MeasuredConfig:
  """How search and measurement take turns; the values are our choice.

  Attributes:
    measure_s: seconds of measuring after which no further round begins.
    candidates: placements that a round runs, beside the baselines of the first.
    tolerance: prediction and measurement of what a search ends with agree when
      they differ by at most this share of the measured step.
    max_rounds: searches at most; each has half the seconds of the one before.
  """

  measure_s: float = 120.0
  candidates: int = 4
  tolerance: float = 0.05
  max_rounds: int = 4


@dataclasses.dataclass(frozen=True)
class MeasuredPlan:
  """What ran, and the fastest of it.

  Attributes:
    problem: with the costs that were fitted last.
    results: what ran, in order, as these costs predict it.
    measured: the evaluation of each of `results` on the devices.
    best: index of what to apply: of `auto` and annealing, the fastest that
      fits; of any other strategy, which has no choice, its placement.
    last: the last search.
    rounds: searches that were made.
  """

  problem: Problem
  results: tuple[Result, ...]
  measured: tuple[Evaluation, ...]
  best: int
  last: PlanResult
  rounds: int


def make_measured_plan(
  problem: Problem,
  config: PlanConfig,
  measure: Measure,
  refit: Refit,
  measured_config: MeasuredConfig | None = None,
  stages: Stages | None = None,
) -> MeasuredPlan:
  """Places a problem on running devices.

  Args:
    problem: with costs measured on these devices.
    config: of the first search; a later one has half the seconds of the one
      before, and starts from the fastest placement so far.
    measure: runs placements.
    refit: fits costs to what ran.
    measured_config: how the two take turns.
    stages: shows and times what is done.

  Raises:
    InfeasibleError: nothing fits in memory.
    MeasurementError: none of the placements could be run.
  """
  limits = measured_config or MeasuredConfig()
  stage = Stages() if stages is None else stages
  searches = config.strategy in registry.SEARCHES
  runs, spent_s, rounds = _Runs(), 0.0, 0
  while rounds < limits.max_rounds:
    rounds += 1
    plan = make_plan(problem, config, stage)
    new = runs.new(plan, limits.candidates)
    began = time.monotonic()
    with stage("measuring", f" {len(new)} placements"):
      runs.add(new, measure)
    spent_s += time.monotonic() - began
    problem = plan.problem
    if len(runs.results) > 1:
      problem = refit(problem, runs.placements, runs.measured)
    best = runs.fastest()
    agree = runs.error(plan.best) <= limits.tolerance
    if not searches or not new or agree or spent_s >= limits.measure_s:
      break
    config = _next_config(config, problem, runs.results[best])
  return MeasuredPlan(
    problem,
    _predicted(problem, runs.results),
    tuple(runs.measured),
    best if searches else 0,
    plan,
    rounds,
  )


def _next_config(
  config: PlanConfig, problem: Problem, start: Result
) -> PlanConfig:
  """The next search: half as long, from what is fastest so far."""
  return dataclasses.replace(
    config,
    budget_s=config.budget_s / 2,
    init_placement=Placement(problem, start.placement.devices),
  )


def _predicted(
  problem: Problem, results: Sequence[Result]
) -> tuple[Result, ...]:
  """The results as the costs of `problem` predict them."""
  simulator = Simulator(problem)
  rows = [Placement(problem, r.placement.devices) for r in results]
  return tuple(
    dataclasses.replace(result, placement=row, evaluation=evaluation)
    for result, row, evaluation in zip(
      results, rows, simulator.evaluate(rows), strict=True
    )
  )


class _Runs:
  """Everything that ran, as it was predicted when it did, and measured."""

  def __init__(self) -> None:
    self.results: list[Result] = []
    self.measured: list[Evaluation] = []

  @property
  def placements(self) -> list[Placement]:
    """What ran, in order."""
    return [result.placement for result in self.results]

  def new(self, plan: PlanResult, count: int) -> list[Result]:
    """What to run after a search: the best by prediction that did not run.

    The first round also runs one device and the baselines.
    """
    others = sorted(
      plan.best.tried, key=lambda result: result.evaluation.step_time_us
    )
    wanted = [plan.best, *others]
    known = {_key(result) for result in self.results}
    chosen: list[Result] = []
    for result in wanted:
      if _key(result) not in known and len(chosen) < count:
        known.add(_key(result))
        chosen.append(result)
    if not self.results:
      alone = plan.single_device
      for result in (*([alone] if alone else []), *plan.baselines):
        if _key(result) not in known:
          known.add(_key(result))
          chosen.append(result)
    return chosen

  def add(self, results: Sequence[Result], measure: Measure) -> None:
    """Runs them.

    Raises:
      MeasurementError: nothing so far could be run.
    """
    self.results += results
    if results:
      self.measured += measure([result.placement for result in results])
    if not any(math.isfinite(e.step_time_us) for e in self.measured):
      why = self.measured[0].extra.get("error", "for an unknown reason")
      raise MeasurementError(f"no placement could be run: {why}")

  def fastest(self) -> int:
    """Index of the shortest measured step, of those that fit if any does."""
    return min(
      range(len(self.results)),
      key=lambda i: (
        not self.measured[i].feasible,
        self.measured[i].step_time_us,
      ),
    )

  def error(self, result: Result) -> float:
    """|predicted - measured| / measured, of what the search ended with."""
    index = [_key(each) for each in self.results].index(_key(result))
    took_us = self.measured[index].step_time_us
    return abs(result.evaluation.step_time_us / took_us - 1.0)


def _key(result: Result) -> bytes:
  return result.placement.devices.tobytes()
