"""Placers that use one device as far as they can.

`single` takes the fastest device on which the step fits; `cpu` does the same
among CPU devices. Ops without a kernel there go where they can. These are the
"1 GPU" and "CPU only" columns of the Placeto and GO papers.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tfplace.errors import ProblemError
from tfplace.graph.problem import Problem
from tfplace.placers.base import Budget, Evaluator, Result
from tfplace.placers.domains import choose
from tfplace.placers.groups import GroupGraph
from tfplace.placers.tracker import Tracker


@dataclasses.dataclass(frozen=True)
class SinglePlacer:
  """Everything on the fastest single device that holds it."""

  name: ClassVar[str] = "single"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Tries each device, one of each set of equals first."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    _try_devices(tracker, range(problem.cluster.num_devices))
    return tracker.result()


@dataclasses.dataclass(frozen=True)
class CpuPlacer:
  """Everything on the fastest CPU device that holds it."""

  name: ClassVar[str] = "cpu"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Tries each CPU device.

    Raises:
      ProblemError: the cluster has no device of kind CPU.
      InfeasibleError: no CPU device has the memory.
    """
    devices = problem.cluster.devices
    cpus = [i for i, device in enumerate(devices) if device.kind == "CPU"]
    if not cpus:
      raise ProblemError(
        f"strategy 'cpu': cluster {problem.cluster.name!r} has no device of"
        " kind 'CPU'"
      )
    tracker = Tracker(self.name, problem, evaluator, budget)
    _try_devices(tracker, cpus)
    return tracker.result()


def _try_devices(tracker: Tracker, devices: Sequence[int]) -> None:
  groups = GroupGraph(tracker.problem)
  tried: set[bytes] = set()
  for device in devices:
    scores = groups.time_us.copy()
    scores[:, device] = np.where(groups.allowed[:, device], -1.0, np.inf)
    row = groups.expand(choose(groups, scores, groups.order))
    if row.tobytes() not in tried:
      tried.add(row.tobytes())
      tracker.offer(row)
