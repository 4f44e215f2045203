"""Data parallelism, pipelines and hybrids of microbatched steps.

Devices are a grid of replicas by stages; the best variant of it is kept.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tfplace.core.budget import Budget
from tfplace.core.evaluation import Result
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator
from tfplace.errors import TfplaceError
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_repaired
from tfplace.placers.rules.device_grid import DeviceGrid, device_grids
from tfplace.placers.tracker import Tracker


@dataclasses.dataclass(frozen=True)
class DataParallelPlacer:
  """Places each microbatch on its own device, as far as devices suffice."""

  name: ClassVar[str] = "data_parallel"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Uses one stage and as many replicas as possible.

    Raises TfplaceError if the step is not microbatched.
    """
    steps = device_grids(_split(self.name, problem))
    tracker = Tracker(self.name, problem, evaluator, budget)
    return _best(tracker, [(step, (step.most_replicas, 1)) for step in steps])


@dataclasses.dataclass(frozen=True)
class PipelinePlacer:
  """Places each stage of consecutive layers on its own device."""

  name: ClassVar[str] = "pipeline"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Uses one replica and as many stages as there are devices."""
    steps = device_grids(GroupGraph(problem))
    tracker = Tracker(self.name, problem, evaluator, budget)
    return _best(tracker, [(step, (1, len(step.devices))) for step in steps])


@dataclasses.dataclass(frozen=True)
class HybridPlacer:
  """Places replicas of a pipeline in the best grid."""

  name: ClassVar[str] = "hybrid"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Tries grids of at least two replicas and two stages.

    Raises TfplaceError without microbatches or with fewer than four devices.
    """
    steps = device_grids(_split(self.name, problem))
    grids = [(step, grid) for step in steps for grid in step.grids()]
    if not grids:
      raise TfplaceError(
        f"strategy {self.name!r} needs four devices for two replicas of two"
        f" stages; cluster {problem.cluster.name!r} has"
        f" {len(steps[-1].devices)}"
      )
    tracker = Tracker(self.name, problem, evaluator, budget)
    return _best(tracker, grids)


def _split(strategy: str, problem: Problem) -> GroupGraph:
  if problem.graph.num_microbatches < 2:
    raise TfplaceError(
      f"strategy {strategy!r} places a step that is split into microbatches,"
      f" which that of graph {problem.graph.name!r} is not"
    )
  return GroupGraph(problem)


def _best(
  tracker: Tracker, grids: Sequence[tuple[DeviceGrid, tuple[int, int]]]
) -> Result:
  first, least = None, np.inf
  rows = (row for step, grid in grids for row in step.placements(*grid))
  groups = grids[0][0].groups
  for row in rows:
    found_us = tracker.offer(groups.expand(row)).step_time_us
    if first is None or found_us < least:
      first, least = row, found_us
    if tracker.budget.left_s <= 0:
      break
  if tracker.best is None and first is not None:
    offer_repaired(tracker, groups, first)
  return tracker.result()
