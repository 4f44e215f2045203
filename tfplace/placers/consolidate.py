"""Undoes moves that gain no more than a tolerance, for less traffic.

A search leaves odd ones: a single gradient on the host, one layer of a tower on
the other tower's device. The simulated step is a hair shorter for them, a real
one rarely: each tensor that crosses takes time of both devices. So units of
groups go where what they exchange tensors with is, alone or against a unit of
like work, while the step grows by no more than the transfers saved would take,
and by no more than a limit in all. (Ours.)
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from tfplace.core.paths import transfers
from tfplace.core.protocols import Evaluation
from tfplace.placers.coarsen import coarsen_by_work
from tfplace.placers.groups import GroupGraph
from tfplace.placers.tracker import Tracker
from tfplace.simulate.links import mean_transfer

_PARTNERS = 3  # units that one is exchanged with, those of the nearest work


@dataclasses.dataclass(frozen=True, eq=False)
class _Units:
  """One way to see a placement: parts of a partition, each on one device.

  Attributes:
    of: [num_groups] unit of each group.
    home: [num_units] device.
    work_us: [num_units, num_devices] of all its groups; inf where disallowed.
    gain_us: [num_units, num_devices] transfers saved by going there, roughly.
  """

  of: np.ndarray
  home: np.ndarray
  work_us: np.ndarray
  gain_us: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class _Moves:
  """Units and the devices where they save transfers.

  Attributes:
    views: ways to see the placement.
    view, unit, target: [num_moves] of each move; the target is a device.
    gain_us: [num_moves] transfers saved.
    work_us: [num_moves] the unit's work there.
  """

  views: Sequence[_Units]
  view: np.ndarray
  unit: np.ndarray
  target: np.ndarray
  gain_us: np.ndarray
  work_us: np.ndarray

  @classmethod
  def of(cls, views: Sequence[_Units]) -> "_Moves":
    """All of them, view by view."""
    found = [np.nonzero(view.gain_us > 0) for view in views]
    unit, target = (np.concatenate(part) for part in zip(*found, strict=True))
    return cls(
      views,
      np.repeat(np.arange(len(views)), [len(units) for units, _ in found]),
      unit,
      target,
      np.concatenate(
        [v.gain_us[at] for v, at in zip(views, found, strict=True)]
      ),
      np.concatenate(
        [v.work_us[at] for v, at in zip(views, found, strict=True)]
      ),
    )

  def ordered(self, score: np.ndarray) -> Iterator[tuple[_Units, int, int]]:
    """View, unit and target of each, by [num_moves] scores, the highest first;
    of equals, in the order of `of`."""
    for i in np.argsort(-score, kind="stable"):
      yield self.views[self.view[i]], self.unit[i], self.target[i]


def consolidate(
  tracker: Tracker, groups: GroupGraph, devices: np.ndarray, limit_us: float
) -> tuple[np.ndarray, Evaluation]:
  """Walks to placements with less and less traffic.

  Args:
    tracker: evaluates, the given one first; its budget bounds the work.
    groups: of the problem.
    devices: [num_ops] to begin from; it fits.
    limit_us: the step may take so long.

  Returns:
    [num_ops] devices, which fit, and their evaluation.
  """
  walk = _Pass(tracker, groups, devices, limit_us)
  walk.run()
  return groups.expand(walk.current), walk.kept


class _Pass:
  """One walk; `current` is [num_groups] the last placement that was kept."""

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
    """Goes on until nothing is left to undo, or the budget is spent."""
    before = None
    while before is not self.current:
      before = self.current
      for row in self._candidates():
        if self._is_spent:
          return
        self._try(row)

  @property
  def _is_spent(self) -> bool:
    budget, most = self.tracker.budget, self.tracker.budget.max_evaluations
    is_counted = most is not None and self.tracker.evaluations >= most
    return is_counted or budget.left_s <= 0

  def _try(self, row: np.ndarray) -> None:
    """Keeps [num_groups] devices where that is worth it."""
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
    """[num_devices] microseconds of work that each may take besides.

    A step lasts as long as its busiest device, but for the gap at its end.
    """
    groups = self.groups
    time_us = groups.time_us[np.arange(groups.num_groups), self.current]
    load_us = np.bincount(self.current, time_us, groups.num_devices)
    overhead_us = groups.problem.cluster.op_overhead_us
    return self.limit_us - load_us + overhead_us

  def _traffic(self, devices: np.ndarray) -> tuple[float, float]:
    """Microseconds that all transfers take on a mean link, and bytes."""
    graph = self.groups.problem.graph
    across, _ = transfers(graph, devices)
    size = float(graph.edge_bytes[across].sum())
    return len(across) * self.fixed_us + size * self.us_per_byte, size

  def _candidates(self) -> Iterator[np.ndarray]:
    """[num_groups] devices each: units that go alone, those that save the most
    for the least work first; then exchanges, those that save the most first."""
    views = [self._units(label) for label in [*self.partitions, self._islands]]
    moves = _Moves.of(views)
    for view, unit, target in moves.ordered(
      moves.gain_us / (moves.work_us + 1e-3)
    ):
      if view.work_us[unit, target] <= self.room_us[target]:
        yield self._moved(view, (unit,), (target,))
    for view, unit, target in moves.ordered(moves.gain_us):
      for other in self._partners(view, unit, target):
        yield self._moved(view, (unit, other), (target, view.home[unit]))

  def _partners(self, view: _Units, unit: int, target: int) -> np.ndarray:
    """Units there that would take its place, of the nearest work."""
    home = view.home[unit]
    saved_us = view.gain_us[:, home] + view.gain_us[unit, target]
    others = np.flatnonzero((view.home == target) & (saved_us > 0))
    apart = np.abs(view.work_us[others, home] - view.work_us[unit, home])
    return others[np.argsort(apart, kind="stable")[:_PARTNERS]]

  def _moved(
    self, view: _Units, units: tuple[int, ...], targets: tuple[int, ...]
  ) -> np.ndarray:
    row = self.current.copy()
    for unit, target in zip(units, targets, strict=True):
      row[view.of == unit] = target
    return row

  @property
  def _islands(self) -> np.ndarray:
    """[num_groups] label: what is connected on one device."""
    src, dst, _ = self.groups.edges
    same = self.current[src] == self.current[dst]
    shape = (self.groups.num_groups, self.groups.num_groups)
    linked = scipy.sparse.coo_matrix(
      (np.ones(int(same.sum()), bool), (src[same], dst[same])), shape
    )
    return csgraph.connected_components(linked, directed=False)[1]

  def _units(self, label: np.ndarray) -> _Units:
    """A partition, each part of which is cut where devices differ."""
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
    return _Units(of, home, work_us, gain_us)
