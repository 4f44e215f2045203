"""Alternating search and measurement on running devices.

A search exploits the errors of its simulator. So the best few placements run,
the costs are fitted to all measurements, and the search starts again from the
fastest placement, until prediction and measurement agree or the time is spent.
The measured step time decides; among near ties, the placement with less traffic
wins. One device is always measured, too, and never slower than the choice.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tfplace.errors import MeasurementError
from tfplace.graph.evaluation import Evaluation, Result
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.graph.progress import Progress
from tfplace.plan.config import PlanConfig
from tfplace.plan.search import Outcome, search
from tfplace.plan.stages import Stages
from tfplace.simulate import Simulator

if TYPE_CHECKING:
  from tfplace.measure.cluster import LiveStep


# The values below are our choice.
# Placements measured per round, besides the baselines of the first round.
_CANDIDATES = 4
# Relative error of the prediction for the last placement of a search up to
# which prediction and measurement agree.
_TOLERANCE = 0.05
_MAX_ROUNDS = 4  # Largest number of searches; each takes half of the time left.
# Placements within this share of the fastest run again, because two
# measurements of one step differ by as much; the second share is for placements
# on one device, which others have to beat.
_CLOSE, _CLOSE_ALONE = 0.08, 0.3
_REPEATS = 2  # Number of further measurements of close placements.
_REPEAT_SHARE = 0.25  # Share of the measuring time reserved for them.
# Least relative gain over a placement with less traffic, because medians of
# several measurements differ by as much.
_GAIN = 0.02


def search_measured(
  problem: Problem,
  config: PlanConfig,
  live: "LiveStep",
  show: Stages | None = None,
) -> Outcome:
  """Places a problem, with profiled costs, on running devices.

  A strategy that searches continues from the fastest placement after each round
  of measurements.

  Returns:
    All measured placements in order, predicted by the costs fitted last, with
    their measured evaluations. The best one is the fastest that fits in memory,
    or one with less traffic that is nearly as fast. A strategy that does not
    search keeps its own placement.

  Raises:
    InfeasibleError: no placement fits in memory.
    MeasurementError: no placement could be run.
  """
  stage = Stages() if show is None else show
  runs, searched = Runs(live), list[Outcome]()
  for settings in _rounds(config):
    start = settings
    if searched:  # Continue from the fastest placement, with fitted costs.
      fastest = runs.placements[runs.fastest()]
      start = dataclasses.replace(
        settings,
        order=searched[-1].best.order,
        init_placement=Placement(problem, fastest.devices),
      )
    outcome = search(problem, start, stage)
    searched.append(outcome)
    new = runs.new(outcome, _CANDIDATES)
    with stage("measuring", f" {len(new)} placements") as on_stage:
      runs.add(outcome.problem, new, on_stage)
    problem = live.refitted(outcome.problem, runs.placements, runs.measured)
    agree = runs.error(outcome.results[0]) <= _TOLERANCE
    if not new or agree or runs.left_s <= 0:
      break
  if config.searches:
    with stage("measuring", " the fastest again") as on_stage:
      runs.repeat(problem, on_stage)
  results = runs.predicted(problem)
  reasons = (outcome.order_reason for outcome in searched)
  return Outcome(
    problem,
    results,
    results[runs.chosen() if config.searches else 0],
    searched[-1].failures,
    runs.measured,
    order_reason=next(filter(None, reasons), ""),
  )


def _rounds(config: PlanConfig) -> Iterator[PlanConfig]:
  """Yields the settings of each search, which takes half of the time left.

  The last one takes all of it. A strategy that does not search has one round.
  """
  left_s, count = config.budget_s, _MAX_ROUNDS if config.searches else 1
  for number in range(count):
    budget_s = left_s if number == count - 1 else left_s / 2
    yield dataclasses.replace(config, budget_s=budget_s)
    left_s = left_s - budget_s or left_s


class Runs:
  """Measured placements, with their predictions.

  Attributes:
    results: placements as predicted before they ran, in order.
    measured: their measured evaluations.
    left_s: remaining measuring time, in seconds.
  """

  def __init__(self, live: "LiveStep", repeats: bool = True) -> None:
    """Reserves a share of the measuring time if close placements `repeat`."""
    self.results: list[Result] = []
    self.measured: list[Evaluation] = []
    self.left_s = live.run_s * (1 - _REPEAT_SHARE * repeats)
    self._live = live

  @property
  def placements(self) -> list[Placement]:
    """Measured placements, in order."""
    return [result.placement for result in self.results]

  def new(self, plan: Outcome, count: int) -> list[Result]:
    """Returns the best predicted placements that have not run yet.

    The strategy's own comes first. The first round also runs one device and
    the other baselines.
    """
    best = plan.results[0]
    others = sorted(
      best.tried, key=lambda result: result.evaluation.step_time_us
    )
    chosen = _new([best, *others], self.results)[:count]
    if not self.results:
      baselines = [plan.single_device, *plan.results[1 + len(best.tried) :]]
      chosen += _new(filter(None, baselines), chosen)
    return chosen

  def add(
    self, problem: Problem, results: Sequence[Result], on_stage: Progress
  ) -> None:
    """Measures placements; raises MeasurementError if none so far ran."""
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

  def repeat(self, problem: Problem, on_stage: Progress) -> None:
    """Measures placements close to the fastest again and keeps medians."""
    fastest_us = self.measured[self.fastest()].step_time_us
    close = [
      i
      for i, evaluation in enumerate(self.measured)
      if evaluation.feasible
      and evaluation.step_time_us <= (1 + self._close(i)) * fastest_us
    ]
    left_s = max(0.0, self.left_s) + self._live.run_s * _REPEAT_SHARE
    if len(close) < 2 or left_s <= 0:
      return
    harness = self._live.harness(problem, on_stage=on_stage, measure_s=left_s)
    turns = close * _REPEATS
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
    return _CLOSE if moves else _CLOSE_ALONE

  def fastest(self) -> int:
    """Returns the index of the fastest placement, if possible one that fits."""
    return min(
      range(len(self.results)),
      key=lambda i: (
        not self.measured[i].feasible,
        self.measured[i].step_time_us,
      ),
    )

  def chosen(self) -> int:
    """Returns the index of the least traffic among the nearly fastest."""
    fastest = self.measured[self.fastest()]
    close_us = fastest.step_time_us / (1 - _GAIN)
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
    """Returns |predicted - measured| / measured of a measured placement."""
    keys = [placement_key(each) for each in self.results]
    took_us = self.measured[keys.index(placement_key(result))].step_time_us
    return abs(result.evaluation.step_time_us / took_us - 1.0)

  def predicted(self, problem: Problem) -> list[Result]:
    """Returns the measured placements with the costs of `problem`."""
    rows = [Placement(problem, r.placement.devices) for r in self.results]
    evaluations = Simulator(problem).evaluate(rows)
    return [
      dataclasses.replace(result, placement=row, evaluation=evaluation)
      for result, row, evaluation in zip(
        self.results, rows, evaluations, strict=True
      )
    ]


def _new(results: Iterable[Result], known: Sequence[Result]) -> list[Result]:
  """Returns the first result of each placement that is not among the known."""
  ran = set(map(placement_key, known))
  first: dict[bytes, Result] = {}
  for result in results:
    first.setdefault(placement_key(result), result)
  return [result for key, result in first.items() if key not in ran]


def placement_key(result: Result) -> bytes:
  """Returns a key that is equal for equal placements."""
  return result.placement.devices.tobytes()
