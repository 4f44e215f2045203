"""m-TOPO: fill devices in topological order up to an equal memory share.

Jeon et al., "Baechi: Fast Device Placement of Machine Learning Graphs" (SoCC
2020): each device takes ops in topological order until it holds the average
memory per device plus the largest op's. It is tried with and without
co-placement (`co_placement`), and the best is kept.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from tfplace.graph.problem import Problem
from tfplace.placers.base import Budget, Evaluator, Result
from tfplace.placers.blocks import main_devices
from tfplace.placers.co_placement import GROUPINGS, offer_groupings
from tfplace.placers.domains import choose_near
from tfplace.placers.groups import GroupGraph
from tfplace.placers.m_etf import held_bytes
from tfplace.placers.tracker import Tracker


@dataclasses.dataclass(frozen=True)
class MTopoPlacer:
  """Baechi's m-TOPO.

  Attributes:
    groupings: of `GROUPINGS`, those to try.
  """

  groupings: tuple[str, ...] = tuple(GROUPINGS)
  name: ClassVar[str] = "m_topo"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Fills the devices of the fastest kind, in their order."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    offer_groupings(tracker, self.groupings, _filled)
    return tracker.result()


def _filled(groups: GroupGraph) -> np.ndarray:
  return choose_near(groups, _fill(groups))


def _fill(groups: GroupGraph) -> np.ndarray:
  """[num_groups] the device whose turn it is when the group's comes."""
  devices = main_devices(groups)
  held = held_bytes(groups)
  largest = float(held.max(initial=0.0))
  share = float(held.sum()) / len(devices) + largest
  memory = groups.problem.cluster.memory_bytes[devices]
  limits = np.minimum(memory, share)
  wanted = np.empty(groups.num_groups, np.int64)
  at, used = 0, 0.0
  for group in groups.order:
    if used + held[group] > limits[at] and at + 1 < len(devices):
      at, used = at + 1, 0.0
    used += held[group]
    wanted[group] = devices[at]
  return wanted
