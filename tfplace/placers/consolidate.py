"""Consolidation: undoes moves that cost traffic and gain almost nothing.

Such moves rarely shorten a real step, because each transfer occupies both
devices. The method is specific to tfplace.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from tfplace.graph.evaluation import Evaluation
from tfplace.graph.paths import transfers
from tfplace.placers.groups import GroupGraph
from tfplace.placers.merge import coarse_levels
from tfplace.placers.tracker import Tracker
from tfplace.simulate.links import mean_transfer

# Exchanges to try for a coarse group, chosen by trial.
_PARTNERS = 3


class _CoarseGroups(NamedTuple):
  """Coarse groups of several partitions of a placement, each on one device.

  Attributes:
    of: [num_partitions, num_groups] coarse group of each group.
    partition: [num_coarse] partition of each coarse group.
    home: [num_coarse] device.
    work_us: [num_coarse, num_devices] total work; inf where not allowed.
    gain_us: [num_coarse, num_devices] estimate of transfer time saved there.
  """

  of: np.ndarray
  partition: np.ndarray
  home: np.ndarray
  work_us: np.ndarray
  gain_us: np.ndarray


def consolidate(
  tracker: Tracker, groups: GroupGraph, devices: np.ndarray, limit_us: float
) -> tuple[np.ndarray, Evaluation]:
  """Moves coarse groups while traffic decreases.

  Args:
    tracker: evaluates placements, the given one first; limits the work.
    devices: [num_ops] feasible placement to start from.

  Returns:
    [num_ops] devices of a feasible placement, and its evaluation.
  """
  walk = _Pass(tracker, groups, devices, limit_us)
  walk.run()
  return groups.expand(walk.current), walk.kept


class _Pass:
  """The state of one consolidation; `current` is the last kept placement."""

  def __init__(
    self,
    tracker: Tracker,
    groups: GroupGraph,
    devices: np.ndarray,
    limit_us: float,
  ) -> None:
    cluster = groups.problem.cluster
    self.tracker, self.groups, self.limit_us = tracker, groups, limit_us
    self.us_per_byte, self.fixed_us = mean_transfer(cluster, with_gap=True)
    self.current = groups.contract(devices)
    self.kept = tracker.offer(devices)
    self.traffic = self._traffic(devices)
    self.room_us = self._room()
    self.refused: set[bytes] = set()
    layer = groups.problem.graph.layer[groups.first_ops]
    self.partitions = [
      np.arange(groups.num_groups),
      np.where(layer < 0, layer.max(initial=0) + 1, layer),
      *coarse_levels(groups),
    ]

  def run(self) -> None:
    before = None
    while before is not self.current:
      before = self.current
      for row in self._candidates():
        if self.tracker.left.is_over:
          return
        self._try(row)

  def _try(self, row: np.ndarray) -> None:
    """Evaluates [num_groups] devices and keeps them if they are worth it."""
    moved = np.flatnonzero(row != self.current)
    key = moved.tobytes() + row[moved].tobytes()
    if key in self.refused:
      return
    self.refused.add(key)
    devices = self.groups.expand(row)
    (before_us, before_bytes), traffic = self.traffic, self._traffic(devices)
    if traffic[0] >= before_us or traffic[1] > before_bytes:
      return
    evaluation = self.tracker.offer(devices)
    most_us = self.kept.step_time_us + before_us - traffic[0]
    if evaluation.feasible and evaluation.step_time_us <= min(
      most_us, self.limit_us
    ):
      self.current, self.kept, self.traffic = row, evaluation, traffic
      self.room_us = self._room()

  def _room(self) -> np.ndarray:
    """Returns [num_devices] microseconds of work that each can still take.

    A step lasts at least as long as its busiest device, without the last gap.
    """
    groups = self.groups
    time_us = groups.time_us[np.arange(groups.num_groups), self.current]
    load_us = np.bincount(self.current, time_us, groups.num_devices)
    overhead_us = groups.problem.cluster.op_overhead_us
    return self.limit_us - load_us + overhead_us

  def _traffic(self, devices: np.ndarray) -> tuple[float, float]:
    graph = self.groups.problem.graph
    across, _ = transfers(graph, devices)
    size = float(graph.edge_bytes[across].sum())
    return len(across) * self.fixed_us + size * self.us_per_byte, size

  def _candidates(self) -> Iterator[np.ndarray]:
    """Yields [num_groups] devices of moves, then of exchanges.

    Moves are sorted by the time saved per work, exchanges by the time saved.
    An exchange is with the coarse groups of most similar work on the target.
    """
    coarse = self._coarse_groups()
    moved, target = np.nonzero(coarse.gain_us > 0)
    gain_us = coarse.gain_us[moved, target]
    work_us = coarse.work_us[moved, target]
    for i in np.argsort(-gain_us / (work_us + 1e-3), kind="stable"):
      if work_us[i] <= self.room_us[target[i]]:
        yield self._after(coarse, (moved[i], target[i]))
    for i in np.argsort(-gain_us, kind="stable"):
      home, part = coarse.home[moved[i]], coarse.partition[moved[i]]
      first, last = np.searchsorted(coarse.partition, [part, part + 1])
      others = first + np.flatnonzero(
        (coarse.home[first:last] == target[i])
        & (coarse.gain_us[first:last, home] + gain_us[i] > 0)
      )
      work = coarse.work_us[:, home]
      apart = np.abs(work[others] - work[moved[i]])
      for other in others[np.argsort(apart, kind="stable")[:_PARTNERS]]:
        yield self._after(coarse, (moved[i], target[i]), (other, home))

  def _after(
    self, coarse: _CoarseGroups, *moves: tuple[int, int]
  ) -> np.ndarray:
    """Returns [num_groups] devices after moves of coarse groups."""
    row = self.current.copy()
    for group, target in moves:
      row[coarse.of[coarse.partition[group]] == group] = target
    return row

  def _coarse_groups(self) -> _CoarseGroups:
    """Splits the parts of all partitions by device.

    A further partition has the connected components within the devices.
    """
    groups, num_devices = self.groups, self.groups.num_devices
    src, dst, size = groups.edges
    same = self.current[src] == self.current[dst]
    linked = scipy.sparse.coo_matrix(
      (np.ones(int(same.sum()), bool), (src[same], dst[same])),
      (groups.num_groups, groups.num_groups),
    )
    islands = csgraph.connected_components(linked, directed=False)[1]
    parts, count = [], 0
    for number, label in enumerate([*self.partitions, islands]):
      keys = label.astype(np.int64) * num_devices + self.current
      keys, of = np.unique(keys, return_inverse=True)
      home = (keys % num_devices).astype(np.int32)
      work_us = np.zeros((len(keys), num_devices))
      np.add.at(work_us, of, groups.time_us)
      apart = of[src] != of[dst]
      a, b = src[apart], dst[apart]
      us = self.fixed_us + size[apart] * self.us_per_byte
      near_us = np.zeros((len(keys), num_devices))
      np.add.at(near_us, (of[a], self.current[b]), us)
      np.add.at(near_us, (of[b], self.current[a]), us)
      gain_us = near_us - near_us[np.arange(len(keys)), home][:, None]
      gain_us[np.isinf(work_us)] = -np.inf
      numbers = np.full(len(keys), number)
      parts.append((of + count, numbers, home, work_us, gain_us))
      count += len(keys)
    labels, *rest = zip(*parts, strict=True)
    return _CoarseGroups(np.stack(labels), *map(np.concatenate, rest))
