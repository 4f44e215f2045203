"""m-SCT: small communication time under memory limits.

Jeon et al., "Baechi: Fast Device Placement of Machine Learning Graphs" (SoCC
2020), after Hanen and Munier (1995): a linear program gives each op at most
one favourite child (`favourites`); then ops are scheduled as by m-ETF, but a
device waits for the favourite child of its last op where that can start
nowhere sooner (`earliest_start`). The program has a time limit, past which
favourites are chosen greedily. As m-ETF, it is tried with and without
co-placement, and the best is kept.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from tfplace.graph.problem import Problem
from tfplace.placers.base import Budget, Evaluator, Result
from tfplace.placers.co_placement import GROUPINGS, offer_groupings
from tfplace.placers.favourites import favourite_children
from tfplace.placers.groups import GroupGraph
from tfplace.placers.list_tables import list_tables
from tfplace.placers.m_etf import schedule
from tfplace.placers.tracker import Tracker


@dataclasses.dataclass(frozen=True)
class MSctPlacer:
  """Baechi's m-SCT.

  Attributes:
    groupings: of `GROUPINGS`, those to try.
    time_limit_s: seconds for the linear program, and an eighth of what is
      left of the budget at most (50,000 ops take it about 6 s). Not limited
      where the budget counts evaluations.
  """

  groupings: tuple[str, ...] = tuple(GROUPINGS)
  time_limit_s: float = 30.0
  name: ClassVar[str] = "m_sct"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Finds the favourites once, then schedules for each grouping."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    limit_s = min(self.time_limit_s, max(0.1, budget.left_s / 8))
    if budget.max_evaluations is not None:
      limit_s = np.inf  # so that the same seed gives the same on any machine
    tables = list_tables(GroupGraph(problem))
    favourites = favourite_children(
      problem.graph, problem.fastest_us, tables, limit_s
    )

    def scheduled(groups: GroupGraph) -> np.ndarray:
      return schedule(groups, favourites)

    offer_groupings(tracker, self.groupings, scheduled)
    return tracker.result()
