"""m-ETF: earliest task first under memory limits.

Jeon et al., "Baechi: Fast Device Placement of Machine Learning Graphs" (SoCC
2020), after Hwang et al.'s ETF (1989): of all ready ops and all devices with
memory left, the pair that can start first is taken; ties go to the op with
the longest path behind it (the paper gives no rule). It is tried with and
without co-placement (`co_placement`), and the best is kept.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from tfplace.graph.problem import Problem
from tfplace.placers.base import Budget, Evaluator, Result
from tfplace.placers.blocks import main_devices
from tfplace.placers.co_placement import GROUPINGS, offer_groupings
from tfplace.placers.domains import Domains, choose
from tfplace.placers.earliest_start import earliest_start
from tfplace.placers.groups import GroupGraph
from tfplace.placers.list_tables import (
  list_tables,
  mean_times,
  rank_order,
  upward_ranks,
)
from tfplace.placers.tracker import Tracker


@dataclasses.dataclass(frozen=True)
class MEtfPlacer:
  """Baechi's m-ETF.

  Attributes:
    groupings: of `GROUPINGS`, those to try.
  """

  groupings: tuple[str, ...] = tuple(GROUPINGS)
  name: ClassVar[str] = "m_etf"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Schedules on the devices of the fastest kind, others where needed."""
    tracker = Tracker(self.name, problem, evaluator, budget)

    def scheduled(groups: GroupGraph) -> np.ndarray:
      return schedule(groups, np.full(problem.graph.num_ops, -1, np.int64))

    offer_groupings(tracker, self.groupings, scheduled)
    return tracker.result()


def schedule(groups: GroupGraph, favourites: np.ndarray) -> np.ndarray:
  """[num_groups] int32 devices by earliest start, ties by upward rank.

  Args:
    groups: of the problem.
    favourites: [num_ops] op that each op's device is kept for; -1 for none.
  """
  tables = list_tables(groups)
  order = rank_order(tables, upward_ranks(tables, mean_times(tables), 0.0, 0.0))
  position = np.empty(len(order), np.int64)
  position[order] = np.arange(len(order))
  devices = earliest_start(
    tables,
    position,
    preferred(groups),
    held_bytes(groups),
    groups.problem.cluster.memory_bytes.copy(),
    favourites,
  )
  if len(devices) and devices[0] < 0:
    return choose(groups, groups.time_us, groups.order)
  return devices


def preferred(groups: GroupGraph) -> np.ndarray:
  """[num_groups, num_devices] bool: the devices that links leave to a group,
  without those of slower kinds where that leaves a choice."""
  domains = Domains(groups)
  main = np.zeros(groups.num_devices, bool)
  main[main_devices(groups)] = True
  narrowed = domains.free & main
  keeps = narrowed.any(axis=1, keepdims=True)
  return np.where(keeps, narrowed, domains.free)


def held_bytes(groups: GroupGraph) -> np.ndarray:
  """[num_groups] bytes that a group counts for against a device's memory.

  Persistent bytes, and outputs as far as the cluster could hold all of them
  at once (they are freed during the step; Baechi counts them as held).
  """
  outputs = groups.total_bytes - groups.persistent_bytes
  capacity = float(groups.problem.cluster.memory_bytes.sum())
  spare = max(0.0, 0.9 * capacity - float(groups.persistent_bytes.sum()))
  share = min(1.0, spare / max(float(outputs.sum()), 1.0))
  return groups.persistent_bytes + share * outputs
