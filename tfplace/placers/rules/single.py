"""Baseline placers: one device for everything, or contiguous blocks."""

import dataclasses
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from tfplace.core.budget import Budget
from tfplace.core.cluster import MESSAGE_COSTS, Cluster
from tfplace.core.evaluation import Result
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator
from tfplace.errors import ProblemError
from tfplace.placers.groups import GroupGraph, equal_blocks
from tfplace.placers.repair import offer_repaired
from tfplace.placers.tracker import Tracker


@dataclasses.dataclass(frozen=True)
class SinglePlacer:
  """Places everything on the fastest single device that holds it.

  Beside other devices, a CPU counts only if none of them holds the step.
  """

  name: ClassVar[str] = "single"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Tries each device, skipping equivalent ones."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    devices = problem.cluster.devices
    cpus = [i for i, device in enumerate(devices) if device.is_cpu]
    _try_devices(tracker, np.setdiff1d(np.arange(len(devices)), cpus))
    if tracker.best is None and problem.off_cpu is None:
      _try_devices(tracker, cpus)
    return tracker.result()


@dataclasses.dataclass(frozen=True)
class CpuPlacer:
  """Places everything on the fastest CPU device that holds it."""

  name: ClassVar[str] = "cpu"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Tries each CPU device; raises ProblemError if the cluster has none."""
    devices = problem.cluster.devices
    cpus = [i for i, device in enumerate(devices) if device.is_cpu]
    if not cpus:
      raise ProblemError(
        f"strategy 'cpu': cluster {problem.cluster.name!r} has no device of"
        " kind 'CPU'"
      )
    tracker = Tracker(self.name, problem, evaluator, budget)
    _try_devices(tracker, cpus)
    return tracker.result()


def _try_devices(tracker: Tracker, devices: Iterable[int]) -> None:
  groups = GroupGraph(tracker.problem)
  tried: set[bytes] = set()
  for device in devices:
    row = groups.expand(groups.nearest(np.full(groups.num_groups, device)))
    alike = _alike(tracker.problem.cluster, device, row)
    if alike in tried:
      continue
    tried.add(alike)
    tracker.offer(row)


def _alike(cluster: Cluster, device: int, row: np.ndarray) -> bytes:
  """Returns a key that is equal for placements that differ only in `device`.

  `row` is the [num_ops] placement with everything possible on `device`.
  """
  own = row == device
  used = np.append(device, np.unique(row[~own]))
  at = np.ix_(used, used)
  about = cluster.devices[device]
  parts = [np.array([about.memory_bytes, about.op_overhead_us])]
  for field in ("bandwidth", "latency_us", "gap_us", *MESSAGE_COSTS):
    parts.append(getattr(cluster, field)[at])
  channel = cluster.channel[at].ravel()
  parts += [channel[:, None] == channel, np.where(own, -1, row)]
  return about.kind.encode() + b"".join(part.tobytes() for part in parts)


@dataclasses.dataclass(frozen=True)
class BlocksPlacer:
  """Places contiguous blocks balanced by time, with their variables."""

  name: ClassVar[str] = "blocks"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Cuts the topological order of groups into one block per device."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    groups = GroupGraph(problem)
    blocks = equal_blocks(groups, groups.order)
    offer_repaired(tracker, groups, groups.beside_readers(blocks))
    return tracker.result()
