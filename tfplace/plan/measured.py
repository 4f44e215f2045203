"""Search and measurement in turns, on devices that run.

A search goes where its simulator errs most. So the best few placements are
run, the costs are fitted again to everything that ran, and the search begins
anew from the fastest, until prediction and measurement agree or the seconds
are spent. What counts in the end is the measured step, and of steps that take
nearly the same the one that moves less. One device is among what runs: no
placement is chosen that is slower than it.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Sequence
from typing import Protocol, cast

from tfplace.core.evaluation import Evaluation, Result
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator
from tfplace.errors import MeasurementError
from tfplace.extraction import stages
from tfplace.extraction.microbatches import SplitConfig
from tfplace.placers import registry
from tfplace.plan.choice import SplitChoice, SplitTrial, in_words
from tfplace.plan.microbatches import make_auto_plan
from tfplace.plan.planner import PlanConfig, PlanResult, Stages, make_plan
from tfplace.plan.race import OpenSplit, SplitStep
from tfplace.simulate import Simulator


@dataclasses.dataclass(frozen=True)
class MeasuredConfig:
  """Alternation of search and measurement; the values are our choice.

  Attributes:
    candidates: placements that a round runs, beside the baselines of the first.
    tolerance: prediction and measurement of what a search ends with agree when
      they differ by at most this share of the measured step.
    max_rounds: searches at most; each takes half of the seconds that are left.
    close: placements within this share of the fastest run again before one is
      chosen: a step that runs twice differs by as much.
    close_alone: the same of one device, which is what others must beat.
    repeats: how often they do.
    repeat_share: of the seconds, kept for that.
    gain: a placement must run faster by this share than one that moves less:
      medians of several runs differ by as much.
  """

  candidates: int = 4
  tolerance: float = 0.05
  max_rounds: int = 4
  close: float = 0.08
  close_alone: float = 0.3
  repeats: int = 2
  repeat_share: float = 0.25
  gain: float = 0.02


class LiveDevices(Protocol):
  """Devices that can run placements of a step: `plan.clusters.LiveStep`."""

  @property
  def run_s(self) -> float:
    """Seconds of running placements."""

  def harness(
    self, problem: Problem, *, on_stage: stages.OnStage, measure_s: float
  ) -> Evaluator:
    """Runs placements."""

  def refitted(
    self,
    problem: Problem,
    placements: Sequence[Placement],
    measured: Sequence[Evaluation],
  ) -> Problem:
    """The problem with costs fitted to placements that ran."""


def make_measured_plan(
  problem: Problem,
  config: PlanConfig,
  live: LiveDevices,
  limits: MeasuredConfig | None = None,
  show: Stages | None = None,
) -> PlanResult:
  """Places a problem on running devices.

  Args:
    problem: with costs as profiled on the devices.
    config: how; a strategy that searches begins again after each measurement,
      from the fastest placement so far.
    live: the devices.
    limits: how the two take turns.
    show: shows and times what is done.

  Returns:
    What ran, in order, as the costs that were fitted last predict it, each with
    its measured evaluation. The best is the fastest that fits, or moves less
    and takes hardly longer; of a strategy that does not search, and so has no
    choice, its own placement.

  Raises:
    InfeasibleError: nothing fits in memory.
    MeasurementError: none of the placements could be run.
  """
  limits = limits or MeasuredConfig()
  stage = Stages() if show is None else show
  searches = registry.STRATEGIES[config.strategy].accepts_start
  runs, reason = _Runs(live, limits), ""
  for number in range(limits.max_rounds if searches else 1):
    is_last = not searches or number == limits.max_rounds - 1
    budget_s = config.budget_s if is_last else config.budget_s / 2
    search = dataclasses.replace(config, budget_s=budget_s)
    plan = make_plan(problem, search, stage)
    new = runs.new(plan, limits.candidates)
    with stage("measuring", f" {len(new)} placements") as on_stage:
      runs.add(plan.problem, new, on_stage)
    problem = live.refitted(plan.problem, runs.placements, runs.measured)
    agree = runs.error(plan.results[0]) <= limits.tolerance
    if not new or agree or runs.left_s <= 0:
      break
    fastest = runs.results[runs.fastest()].placement
    reason = reason or plan.order_reason
    config = dataclasses.replace(
      config,
      order=plan.best.order,  # once it is chosen
      budget_s=config.budget_s - budget_s or config.budget_s,
      init_placement=Placement(problem, fastest.devices) if searches else None,
    )
  if searches:
    with stage("measuring", " the fastest again") as on_stage:
      runs.repeat(problem, on_stage)
  results = runs.predicted(problem)
  best = results[runs.chosen() if searches else 0]
  return PlanResult(
    problem,
    results,
    best,
    plan.failures,
    runs.measured,
    order_reason=reason or plan.order_reason,
  )


def make_measured_auto_plan(
  open_split: OpenSplit,
  base: SplitConfig,
  config: PlanConfig,
  show: Stages | None = None,
) -> tuple[PlanResult, SplitStep]:
  """Chooses microbatches by measured costs, then measures the ones chosen.

  The placements of the split that the simulator likes best run as those of any
  step do. Beside them runs the whole step, at its best and on one device, or,
  where that is what the simulator likes best, the best split: the faster one of
  the two is taken. A strategy that does not search keeps its own placement of
  the split that is chosen.

  Args:
    open_split: extracts and profiles the step, split in one way.
    base: as of `make_auto_plan`, as the others.
    config: how to place.
    show: shows and times what is done.

  Returns:
    The plan with its `choice`, and the step that it is of.

  Raises:
    TfplaceError: as `make_auto_plan` and `make_measured_plan` do.
  """
  stage = Stages() if show is None else show
  opened: dict[SplitConfig, SplitStep] = {}

  def opening(split: SplitConfig) -> SplitStep:
    opened[split] = open_split(split)
    return opened[split]

  def finish(step: SplitStep, final: PlanConfig, stage: Stages) -> PlanResult:
    return make_measured_plan(step.problem, final, _live(step), show=stage)

  plan, step = make_auto_plan(opening, base, config, stage, finish)
  choice = cast(SplitChoice, plan.choice)
  choice = choice.with_measured(choice.split, plan.evaluation.step_time_us)
  plan = dataclasses.replace(plan, choice=choice)
  others = [t for t in choice.trials if t.best and t.split != choice.split]
  if not choice.split.is_whole:
    others = [trial for trial in others if trial.split.is_whole]
  if not others:
    return plan, step
  rival = min(others, key=lambda trial: trial.step_time_us)
  searches = registry.STRATEGIES[config.strategy].accepts_start
  return _faster(plan, step, rival, opened[rival.split], searches, stage)


def _faster(
  plan: PlanResult,
  step: SplitStep,
  rival: SplitTrial,
  other: SplitStep,
  searches: bool,
  show: Stages,
) -> tuple[PlanResult, SplitStep]:
  """The plan, or the rival of another split, whichever runs faster; of the
  rival's placements its own one, unless the strategy `searches`."""
  choice = cast(SplitChoice, plan.choice)
  wanted = [rival.best, choice.single if rival.split.is_whole else None]
  results = {_key(result): result for result in wanted if result is not None}
  runs = _Runs(_live(other), MeasuredConfig(repeat_share=0.0))
  problem = other.problem.in_order(rival.order)
  try:
    with show("measuring", f" the step {in_words(rival.split)}") as on_stage:
      runs.add(problem, list(results.values()), on_stage)
  except MeasurementError:
    return plan, step
  chosen = runs.chosen() if searches else 0
  ran = runs.measured[chosen]
  choice = choice.with_measured(rival.split, ran.step_time_us)
  own = plan.evaluation
  order = (not ran.feasible, ran.step_time_us)
  if order >= (not own.feasible, own.step_time_us):
    return dataclasses.replace(plan, choice=choice), step
  choice = dataclasses.replace(choice, split=rival.split)
  found = runs.predicted(problem)
  best = found[chosen]
  return (
    PlanResult(problem, found, best, {}, runs.measured, choice),
    other,
  )


def _live(step: SplitStep) -> LiveDevices:
  if step.live is None:
    raise MeasurementError("the step is on no devices that run")
  return step.live


class _Runs:
  """Everything that ran, as it was predicted then, and measured."""

  def __init__(self, live: LiveDevices, limits: MeasuredConfig) -> None:
    self.results: list[Result] = []
    self.measured: list[Evaluation] = []
    self.left_s = live.run_s * (1 - limits.repeat_share)
    self._live = live
    self._limits = limits

  @property
  def placements(self) -> list[Placement]:
    """Measured placements, in order."""
    return [result.placement for result in self.results]

  def new(self, plan: PlanResult, count: int) -> list[Result]:
    """Returns the best predicted placements that have not run yet.

    The strategy's own comes first. The first round also runs one device and
    the other baselines.
    """
    own = plan.results[0]
    others = sorted(
      own.tried, key=lambda result: result.evaluation.step_time_us
    )
    wanted = [own, *others]
    baselines = plan.results[1 + len(own.tried) :]
    if plan.single_device is not None:
      baselines = [plan.single_device, *baselines]
    chosen = self._not_run(wanted, [])[:count]
    if not self.results:
      chosen += self._not_run(baselines, chosen)
    return chosen

  def _not_run(
    self, results: Sequence[Result], chosen: Sequence[Result]
  ) -> list[Result]:
    """Those of different placements that did not run and are not chosen."""
    known = {_key(result) for result in (*self.results, *chosen)}
    found: dict[bytes, Result] = {}
    for result in results:
      if _key(result) not in known:
        found.setdefault(_key(result), result)
    return list(found.values())

  def add(
    self, problem: Problem, results: Sequence[Result], on_stage: stages.OnStage
  ) -> None:
    """Runs them.

    Raises:
      MeasurementError: nothing so far could be run.
    """
    began = time.monotonic()
    if results:
      harness = self._live.harness(
        problem, on_stage=on_stage, measure_s=self.left_s
      )
      self.measured += harness.evaluate([r.placement for r in results])
      self.results += results
    self.left_s -= time.monotonic() - began
    if not any(math.isfinite(e.step_time_us) for e in self.measured):
      why = self.measured[0].extra.get("error", "for an unknown reason")
      raise MeasurementError(f"no placement could be run: {why}")

  def repeat(self, problem: Problem, on_stage: stages.OnStage) -> None:
    """Runs what is close to the fastest again, in turns; medians count."""
    limits = self._limits
    fastest_us = self.measured[self.fastest()].step_time_us
    close = [
      i
      for i, evaluation in enumerate(self.measured)
      if evaluation.feasible
      and evaluation.step_time_us <= (1 + self._close(i)) * fastest_us
    ]
    left_s = max(0.0, self.left_s) + self._live.run_s * limits.repeat_share
    if len(close) < 2 or left_s <= 0:
      return
    harness = self._live.harness(problem, on_stage=on_stage, measure_s=left_s)
    turns = close * limits.repeats
    rows = [Placement(problem, self.placements[i].devices) for i in turns]
    took_us = {i: [self.measured[i].step_time_us] for i in close}
    for i, evaluation in zip(turns, harness.evaluate(rows), strict=True):
      if math.isfinite(evaluation.step_time_us):
        took_us[i].append(evaluation.step_time_us)
    for i, times in took_us.items():
      self.measured[i] = dataclasses.replace(
        self.measured[i], step_time_us=statistics.median(times)
      )

  def _close(self, index: int) -> float:
    moves = self.results[index].evaluation.bytes_moved > 0
    return self._limits.close if moves else self._limits.close_alone

  def fastest(self) -> int:
    """Index of the shortest measured step, of those that fit if any does."""
    return min(
      range(len(self.results)),
      key=lambda i: (
        not self.measured[i].feasible,
        self.measured[i].step_time_us,
      ),
    )

  def chosen(self) -> int:
    """Index of what moves least, of what runs nearly as fast as the fastest."""
    fastest = self.measured[self.fastest()]
    close_us = fastest.step_time_us / (1 - self._limits.gain)
    close = [
      i
      for i, evaluation in enumerate(self.measured)
      if evaluation.feasible == fastest.feasible
      and evaluation.step_time_us <= close_us
    ]
    return min(
      close,
      key=lambda i: (
        self.results[i].evaluation.bytes_moved,
        self.measured[i].step_time_us,
      ),
    )

  def error(self, result: Result) -> float:
    """|predicted - measured| / measured, of what the search ended with."""
    index = [_key(each) for each in self.results].index(_key(result))
    took_us = self.measured[index].step_time_us
    return abs(result.evaluation.step_time_us / took_us - 1.0)

  def predicted(self, problem: Problem) -> list[Result]:
    """Measured placements as predicted by the costs of `problem`."""
    rows = [Placement(problem, r.placement.devices) for r in self.results]
    evaluations = Simulator(problem).evaluate(rows)
    return [
      dataclasses.replace(result, placement=row, evaluation=evaluation)
      for result, row, evaluation in zip(
        self.results, rows, evaluations, strict=True
      )
    ]


def _key(result: Result) -> bytes:
  return result.placement.devices.tobytes()
