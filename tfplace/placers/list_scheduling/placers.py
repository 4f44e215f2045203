"""List-scheduling placers: HEFT and Baechi's m-TOPO, m-ETF and m-SCT.

Each placer tries the ops alone and with co-placement (`co_placement`), and
keeps the best. HEFT is from Topcuoglu, Hariri and Wu, "Performance-effective
and low-complexity task scheduling for heterogeneous computing" (2002), the
others from Jeon et al., "Baechi: Fast Device Placement of Machine Learning
Graphs" (SoCC 2020).
"""

import dataclasses
from typing import ClassVar

import numpy as np

from tfplace.core.budget import Budget
from tfplace.core.evaluation import Result
from tfplace.core.paths import upward_ranks
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator
from tfplace.placers.groups import GroupGraph, main_devices
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
from tfplace.placers.list_scheduling.earliest_start import earliest_start
from tfplace.placers.list_scheduling.favorite_children import favorite_children
from tfplace.placers.list_scheduling.kernels import earliest_finish
from tfplace.placers.tracker import Tracker
from tfplace.simulate.links import mean_transfer


@dataclasses.dataclass(frozen=True)
class MTopoPlacer:
  """Baechi's m-TOPO: fills devices in topological order.

  A device is full when it holds the average memory per device plus the memory
  of the largest group.
  """

  groupings: tuple[str, ...] = tuple(GROUPINGS)  # Groupings to try.
  name: ClassVar[str] = "m_topo"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Fills the devices of the fastest kind, in order."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    offer_groupings(tracker, self.groupings, _filled)
    return tracker.result()


def _filled(groups: GroupGraph) -> np.ndarray:
  return groups.beside_readers(groups.nearest(_fill(groups)))


def _with_variables(groups: GroupGraph) -> np.ndarray:
  """Returns [num_groups] groups in order, variables before first readers."""
  position = np.empty(groups.num_groups, np.int64)
  position[groups.order] = np.arange(groups.num_groups)
  readers = groups.first_readers
  at = np.where(readers >= 0, position[readers], position)
  return np.lexsort((position, readers < 0, at))


def _fill(groups: GroupGraph) -> np.ndarray:
  devices = main_devices(groups)
  held = held_bytes(groups)
  largest = float(held.max(initial=0.0))
  share = float(held.sum()) / len(devices) + largest
  memory = groups.problem.cluster.memory_bytes[devices]
  limits = np.minimum(memory, share)
  wanted = np.empty(groups.num_groups, np.int64)
  at, used = 0, 0.0
  for group in _with_variables(groups):
    if used + held[group] > limits[at] and at + 1 < len(devices):
      at, used = at + 1, 0.0
    used += held[group]
    wanted[group] = devices[at]
  return wanted


@dataclasses.dataclass(frozen=True)
class MEtfPlacer:
  """Baechi's m-ETF, after the ETF of Hwang et al. (1989).

  Schedules the pair of a ready op and a device with free memory that can start
  first. Ties go to the op with the largest upward rank, since the paper gives
  no rule.
  """

  groupings: tuple[str, ...] = tuple(GROUPINGS)  # Groupings to try.
  name: ClassVar[str] = "m_etf"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Schedules on the fastest kind of device, or on others where needed."""
    tracker = Tracker(self.name, problem, evaluator, budget)

    def scheduled(groups: GroupGraph) -> np.ndarray:
      return schedule(groups, np.full(problem.graph.num_ops, -1, np.int64))

    offer_groupings(tracker, self.groupings, scheduled)
    return tracker.result()


def schedule(groups: GroupGraph, favorites: np.ndarray) -> np.ndarray:
  """Schedules by earliest start, with ties broken by upward rank.

  `favorites` has the [num_ops] favorite child of each op, for which its device
  is reserved, or -1. Returns [num_groups] int32 devices.
  """
  tables = list_tables(groups)
  graph = groups.problem.graph
  order = rank_order(graph, upward_ranks(graph, mean_times(tables)))
  position = np.empty(len(order), np.int64)
  position[order] = np.arange(len(order))
  return earliest_start(
    tables,
    position,
    preferred(groups),
    held_bytes(groups),
    groups.problem.cluster.memory_bytes.copy(),
    favorites,
  )


def preferred(groups: GroupGraph) -> np.ndarray:
  """Returns [num_groups, num_devices] bool devices, the fastest kind if any."""
  main = np.zeros(groups.num_devices, bool)
  main[main_devices(groups)] = True
  narrowed = groups.allowed & main
  keeps = narrowed.any(axis=1, keepdims=True)
  return np.where(keeps, narrowed, groups.allowed)


def held_bytes(groups: GroupGraph) -> np.ndarray:
  """Returns the [num_groups] bytes that each group counts against memory.

  These are persistent bytes plus a share of the outputs, reduced such that the
  cluster could hold all at once. Outputs are freed during the step, but Baechi
  counts them as held.
  """
  outputs = groups.total_bytes - groups.persistent_bytes
  capacity = float(groups.problem.cluster.memory_bytes.sum())
  spare = max(0.0, 0.9 * capacity - float(groups.persistent_bytes.sum()))
  share = min(1.0, spare / max(float(outputs.sum()), 1.0))
  return groups.persistent_bytes + share * outputs


@dataclasses.dataclass(frozen=True)
class MSctPlacer:
  """Baechi's m-SCT, after Hanen and Munier (1995).

  A linear program gives each op at most one favorite child. Ops are then
  scheduled as by m-ETF, but a device waits for the favorite child of its last
  op if that op cannot start sooner elsewhere. If the program times out,
  favorites are chosen greedily.

  Attributes:
    groupings: keys of `GROUPINGS` to try.
    time_limit_s: time limit of the program in seconds (50,000 ops take about 6
      s), at most an eighth of the remaining budget. Unlimited if the budget
      counts evaluations.
  """

  groupings: tuple[str, ...] = tuple(GROUPINGS)
  time_limit_s: float = 30.0
  name: ClassVar[str] = "m_sct"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Finds the favorite children once, then schedules for each grouping."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    limit_s = min(self.time_limit_s, max(0.1, budget.left_s / 8))
    if not budget.is_timed:
      limit_s = np.inf  # Makes results for a seed equal on all machines.
    tables = list_tables(GroupGraph(problem))
    favorites = favorite_children(problem, tables, limit_s)

    def scheduled(groups: GroupGraph) -> np.ndarray:
      return schedule(groups, favorites)

    offer_groupings(tracker, self.groupings, scheduled)
    return tracker.result()


@dataclasses.dataclass(frozen=True)
class HeftPlacer:
  """Heterogeneous earliest finish time (HEFT) with insertion.

  Ops are scheduled by decreasing upward rank (mean times, mean communication),
  each on the device where it finishes first. A colocation group follows its
  first op.
  """

  groupings: tuple[str, ...] = tuple(GROUPINGS)  # Groupings to try.
  name: ClassVar[str] = "heft"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Ranks the ops, then places each in turn."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    offer_groupings(tracker, self.groupings, _ranked)
    return tracker.result()


def _ranked(groups: GroupGraph) -> np.ndarray:
  tables = list_tables(groups)
  problem = groups.problem
  ranks = upward_ranks(
    problem.graph, mean_times(tables), *mean_transfer(problem.cluster)
  )
  return schedule_by_rank(groups, tables, ranks)


def schedule_by_rank(
  groups: GroupGraph, tables: ListTables, ranks: np.ndarray
) -> np.ndarray:
  """Returns [num_groups] int32 devices by earliest finish, in rank order.

  Only persistent bytes count against memory.
  """
  return earliest_finish(
    tables,
    rank_order(groups.problem.graph, ranks),
    groups.allowed.copy(),
    groups.persistent_bytes,
    groups.problem.cluster.memory_bytes.copy(),
  )
