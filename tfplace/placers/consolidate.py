"""Consolidation: undoes moves that cost traffic and gain almost nothing.

Such moves rarely shorten a real step, because each transfer occupies both
devices. The method is specific to tfplace.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from tfplace.core.evaluation import Evaluation
from tfplace.core.paths import transfers
from tfplace.placers.coarsen import coarsen_by_work
from tfplace.placers.groups import GroupGraph
from tfplace.placers.tracker import Tracker
from tfplace.simulate.links import mean_transfer


@dataclasses.dataclass(frozen=True, eq=False)
class _CoarseGroups:
  """A view of a placement: coarse groups, each on one device.

  Attributes:
    of: [num_groups] coarse group of each group.
    home: [num_coarse] device.
    work_us: [num_coarse, num_devices] total work; inf where not allowed.
    gain_us: [num_coarse, num_devices] estimate of transfer time saved there.
  """

  of: np.ndarray
  home: np.ndarray
  work_us: np.ndarray
  gain_us: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class _Moves:
  """Coarse groups and the devices where they save transfers.

  Attributes:
    views: views of the placement.
    view, coarse, target: [num_moves] view, coarse group and device of a move.
    gain_us: [num_moves] transfer time saved.
    work_us: [num_moves] work of the coarse group on the target.
  """

  views: Sequence[_CoarseGroups]
  view: np.ndarray
  coarse: np.ndarray
  target: np.ndarray
  gain_us: np.ndarray
  work_us: np.ndarray

  @classmethod
  def of(cls, views: Sequence[_CoarseGroups]) -> "_Moves":
    found = [np.nonzero(view.gain_us > 0) for view in views]
    coarse, target = (np.concatenate(part) for part in zip(*found, strict=True))
    return cls(
      views,
      np.repeat(
        np.arange(len(views)),
        [len(coarse_groups) for coarse_groups, _ in found],
      ),
      coarse,
      target,
      np.concatenate(
        [v.gain_us[at] for v, at in zip(views, found, strict=True)]
      ),
      np.concatenate(
        [v.work_us[at] for v, at in zip(views, found, strict=True)]
      ),
    )

  def ordered(
    self, score: np.ndarray
  ) -> Iterator[tuple[_CoarseGroups, int, int]]:
    """Yields view, coarse group and target by decreasing [num_moves] score."""
    for i in np.argsort(-score, kind="stable"):
      yield self.views[self.view[i]], self.coarse[i], self.target[i]


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
    self.us_per_byte, self.fixed_us = 0.0, 0.0
    if cluster.links:
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
      *coarsen_by_work(groups).labels,
    ]

  def run(self) -> None:
    before = None
    while before is not self.current:
      before = self.current
      for row in self._candidates():
        if self._is_spent:
          return
        self._try(row)

  @property
  def _is_spent(self) -> bool:
    return self.tracker.left.is_over

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
    found = self.tracker.offer(devices)
    most_us = self.kept.step_time_us + before_us - traffic[0]
    if found.feasible and found.step_time_us <= min(most_us, self.limit_us):
      self.current, self.kept, self.traffic = row, found, traffic
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
    """
    views = [
      self._coarse_groups(label) for label in [*self.partitions, self._islands]
    ]
    moves = _Moves.of(views)
    for view, coarse, target in moves.ordered(
      moves.gain_us / (moves.work_us + 1e-3)
    ):
      if view.work_us[coarse, target] <= self.room_us[target]:
        yield self._moved(view, (coarse,), (target,))
    for view, coarse, target in moves.ordered(moves.gain_us):
      for other in self._partners(view, coarse, target):
        yield self._moved(view, (coarse, other), (target, view.home[coarse]))

  def _partners(
    self, view: _CoarseGroups, coarse: int, target: int, count: int = 3
  ) -> np.ndarray:
    """Returns the `count` coarse groups of most similar work on the target.

    They are exchanged for `coarse`. The count was chosen by trial.
    """
    home = view.home[coarse]
    saved_us = view.gain_us[:, home] + view.gain_us[coarse, target]
    others = np.flatnonzero((view.home == target) & (saved_us > 0))
    apart = np.abs(view.work_us[others, home] - view.work_us[coarse, home])
    return others[np.argsort(apart, kind="stable")[:count]]

  def _moved(
    self,
    view: _CoarseGroups,
    coarse_groups: tuple[int, ...],
    targets: tuple[int, ...],
  ) -> np.ndarray:
    row = self.current.copy()
    for coarse, target in zip(coarse_groups, targets, strict=True):
      row[view.of == coarse] = target
    return row

  @property
  def _islands(self) -> np.ndarray:
    """[num_groups] label of the connected component within a device."""
    src, dst, _ = self.groups.edges
    same = self.current[src] == self.current[dst]
    shape = (self.groups.num_groups, self.groups.num_groups)
    linked = scipy.sparse.coo_matrix(
      (np.ones(int(same.sum()), bool), (src[same], dst[same])), shape
    )
    return csgraph.connected_components(linked, directed=False)[1]

  def _coarse_groups(self, label: np.ndarray) -> _CoarseGroups:
    """Splits the parts of a partition by device."""
    groups, num_devices = self.groups, self.groups.num_devices
    keys = label.astype(np.int64) * num_devices + self.current
    keys, of = np.unique(keys, return_inverse=True)
    home = (keys % num_devices).astype(np.int32)
    work_us = np.zeros((len(keys), num_devices))
    np.add.at(work_us, of, groups.time_us)
    src, dst, size = groups.edges
    apart = of[src] != of[dst]
    src, dst = src[apart], dst[apart]
    us = self.fixed_us + size[apart] * self.us_per_byte
    near_us = np.zeros((len(keys), num_devices))
    np.add.at(near_us, (of[src], self.current[dst]), us)
    np.add.at(near_us, (of[dst], self.current[src]), us)
    gain_us = near_us - near_us[np.arange(len(keys)), home][:, None]
    gain_us[np.isinf(work_us)] = -np.inf
    return _CoarseGroups(of, home, work_us, gain_us)
