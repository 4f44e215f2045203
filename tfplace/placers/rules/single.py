"""Placers without a choice: one device for all, or contiguous blocks.

`single` takes the fastest device on which the step fits; `cpu` does the same
among CPU devices. Ops without a kernel there go where they can. These are the
"1 GPU" and "CPU only" columns of the Placeto and GO papers. `blocks`, what a
person draws first, cuts the graph's order into as many pieces of equal work as
there are devices of the kind that runs the graph fastest.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tfplace.core.problem import Problem
from tfplace.core.protocols import Budget, Evaluator, Result
from tfplace.errors import ProblemError
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_repaired
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
    row = groups.expand(groups.nearest(np.full(groups.num_groups, device)))
    if row.tobytes() not in tried:
      tried.add(row.tobytes())
      tracker.offer(row)


@dataclasses.dataclass(frozen=True)
class BlocksPlacer:
  """Contiguous blocks balanced by time."""

  name: ClassVar[str] = "blocks"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Cuts the groups' order into one block per device."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    groups = GroupGraph(problem)
    offer_repaired(tracker, groups, cut(groups, groups.order))
    return tracker.result()


def cut(groups: GroupGraph, order: np.ndarray) -> np.ndarray:
  """Cuts an order of the groups into blocks of equal time, one per device.

  Args:
    groups: of the problem.
    order: [num_groups] groups in the order in which devices are filled.

  Returns:
    [num_groups] int32 devices.
  """
  devices = main_devices(groups)
  work = np.empty(groups.num_groups)
  work[order] = np.cumsum(groups.fastest_us[order])
  total = max(float(groups.fastest_us.sum()), 1e-300)
  # By the middle of its work, so that a long group goes where most of it lies.
  middle = (work - groups.fastest_us / 2) / total
  # What takes no time belongs to what comes before it.
  block = np.ceil(middle * len(devices) - 1e-9).astype(int) - 1
  block = np.clip(block, 0, len(devices) - 1)
  return groups.nearest(devices[block])


def main_devices(groups: GroupGraph) -> np.ndarray:
  """Devices of the kind that runs all the work soonest, in order.

  Work that a kind cannot run counts at its fastest elsewhere.
  """
  cluster = groups.problem.cluster
  kinds = [device.kind for device in cluster.devices]
  work = np.where(
    groups.allowed, groups.time_us, groups.fastest_us[:, np.newaxis]
  ).sum(axis=0)
  runs = groups.allowed.sum(axis=0)
  best = min(
    range(len(kinds)), key=lambda d: (work[d] / kinds.count(kinds[d]), -runs[d])
  )
  return np.array([i for i, kind in enumerate(kinds) if kind == kinds[best]])
