"""HEFT: list scheduling by upward rank, with insertion.

Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task
scheduling for heterogeneous computing" (2002): ops in decreasing order of the
longest path to the end (mean times, mean communication), each to the device
where it finishes first. A colocation group goes where its first op goes. It
is tried on the ops and, as Baechi's placers, on co-placed groups of them
(`co_placement`), and the best is kept.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from tfplace.core.paths import upward_ranks
from tfplace.core.problem import Problem
from tfplace.core.protocols import Budget, Evaluator, Result
from tfplace.placers.groups import GroupGraph
from tfplace.placers.list_scheduling.co_placement import (
  GROUPINGS,
  offer_groupings,
)
from tfplace.placers.list_scheduling.costs import (
  ListTables,
  list_tables,
  mean_times,
  rank_order,
)
from tfplace.placers.list_scheduling.kernels import earliest_finish
from tfplace.placers.tracker import Tracker
from tfplace.simulate.links import mean_transfer


@dataclasses.dataclass(frozen=True)
class HeftPlacer:
  """Heterogeneous earliest finish time.

  Attributes:
    groupings: of `GROUPINGS`, those to try.
  """

  groupings: tuple[str, ...] = tuple(GROUPINGS)
  name: ClassVar[str] = "heft"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Ranks, then places each op in turn."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    offer_groupings(tracker, self.groupings, _ranked)
    return tracker.result()


def _ranked(groups: GroupGraph) -> np.ndarray:
  tables = list_tables(groups)
  problem = groups.problem
  ranks = upward_ranks(
    problem.graph, mean_times(tables), *mean_transfer(problem.cluster)
  )
  return schedule(groups, tables, ranks)


def schedule(
  groups: GroupGraph, tables: ListTables, ranks: np.ndarray
) -> np.ndarray:
  """[num_groups] int32 devices by earliest finish in the order of `ranks`.

  Memory counts by persistent bytes.
  """
  return earliest_finish(
    tables,
    rank_order(groups.problem.graph, ranks),
    groups.allowed.copy(),
    groups.persistent_bytes,
    groups.problem.cluster.memory_bytes.copy(),
  )
