"""One-shot placers: functions that propose placements of groups."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import numpy as np

from tfplace.graph.budget import Budget
from tfplace.graph.evaluation import HistoryPoint, Result
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.graph.protocols import Evaluator, Placer
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_all_repaired, offer_repaired
from tfplace.placers.tracker import Tracker
from tfplace.simulate import Simulator

# Batches of [num_groups] allowed devices. A further batch is asked for only if
# no placement so far fits in memory.
Batches = Iterator[Iterable[np.ndarray]]
# Function of the groups, the seed, and the budget if it limits itself.
Propose = Callable[[GroupGraph, int, Budget], Batches]
Repair = Literal["each", "fastest", "none"]


@dataclasses.dataclass
class OneShotPlacer:
  """Placer that evaluates the proposals of a function and keeps the best.

  Attributes:
    name: name of the strategy.
    propose: the function.
    repair: placements to repair if they exceed a memory: each one, only the
      fastest of a batch of which none fits, or none.
  """

  name: str
  propose: Propose
  repair: Repair = "each"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Returns the best placement; raises InfeasibleError if nothing fits.

    Once the seconds of the budget are over, a placement that fits suffices.
    """
    tracker = Tracker(self.name, problem, evaluator, budget)
    groups = GroupGraph.of(problem)
    for rows in self.propose(groups, seed, budget):
      if self.repair == "fastest":
        offer_all_repaired(tracker, groups, rows)
      else:
        self._offer_each(tracker, groups, rows)
      if tracker.best is not None:
        break
    return tracker.result()

  def _offer_each(
    self, tracker: Tracker, groups: GroupGraph, rows: Iterable[np.ndarray]
  ) -> None:
    for row in rows:
      if self.repair == "none":
        tracker.offer(groups.expand(row))
        continue
      offer_repaired(tracker, groups, row)
      if tracker.best is not None and tracker.budget.left_s <= 0:
        break


def placed_once(
  rule: Placer,
  problem: Problem,
  evaluator: Evaluator,
  budget: Budget,
  seed: int,
) -> Result:
  """Runs a rule, or returns at once what it found of the problem before.

  A search of seconds asks the same rules again and again. Nothing is kept if
  time was over, or if anything but the simulator of the problem judges.
  """
  own = type(evaluator) is Simulator and evaluator.problem is problem
  if not (own and budget.is_timed):
    return rule.place(problem, evaluator, budget, seed)
  key = (placed_once, rule.name, seed, problem.key)
  known: Result | None = problem.memo.get(key)
  if known is None:
    result = rule.place(problem, evaluator, budget, seed)
    if budget.left_s > 0:
      problem.memo[key] = result
    return result
  us = known.evaluation.step_time_us
  return dataclasses.replace(
    known,
    placement=Placement(problem, known.placement.devices),
    history=(HistoryPoint(0.0, 0, us, rule.name),),
    seconds=0.0,
    evaluations=0,
  )
