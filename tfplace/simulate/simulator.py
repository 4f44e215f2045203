"""The `Evaluator` that simulates. Layout and kernel are elsewhere; here are
checks, batches and plain results.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfplace.errors import PlacementError
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.placement import Placement, check_devices
from tfplace.graph.problem import Problem
from tfplace.simulate import batch as batch_lib
from tfplace.simulate import tables as tables_lib
from tfplace.simulate import workspace as workspace_lib
from tfplace.simulate.batch import Batch
from tfplace.simulate.schedule import Schedule, make_schedule


class Simulator:
  """Simulates placements of one problem by rules 1 to 7 of the formats.

  Safe to call from several threads at once, to pickle and to use after a
  fork. The kernel is compiled at the first call ever, and kept on disk.

  Attributes:
    problem: what is placed and on what.
    num_threads: threads of a batch; by default, the cores of this process.
  """

  def __init__(self, problem: Problem, num_threads: int | None = None) -> None:
    self.problem = problem
    self.num_threads = num_threads or batch_lib.available_cores()
    self._workspaces: list[workspace_lib.Workspace] = []

  def __reduce__(self) -> tuple[Any, ...]:
    return (Simulator, (self.problem, self.num_threads))

  @functools.cached_property
  def tables(self) -> tables_lib.Tables:
    """The problem as `engine.simulate` wants it."""
    return tables_lib.pack(self.problem)

  def evaluate(
    self, placements: np.ndarray | Sequence[Placement]
  ) -> list[Evaluation]:
    """Checks and simulates placements, in order.

    Args:
      placements: [batch, num_ops] integer device indices, or `Placement`s.

    Raises:
      PlacementError: a placement that the problem does not allow.
    """
    batch = self.run(self._checked(placements))
    return [self._evaluation(batch, row) for row in range(len(batch[0]))]

  def run(
    self,
    devices: np.ndarray,
    cutoff_us: float = np.inf,
    starts: np.ndarray | None = None,
  ) -> Batch:
    """Simulates without checks: for searches, which know what they propose.

    Args:
      devices: [batch, num_ops] integer device indices below `num_devices`.
        An index out of range corrupts memory; an op on a kind that cannot run
        it, or a missing link, gives an infinite step time. Colocation is not
        looked at.
      cutoff_us: placements that take longer get an infinite step time, and
        peaks that mean nothing, after less work.
      starts: [batch, num_ops] float64 to fill with the start of every op in
        microseconds, or None.
    """
    rows = np.array(devices, np.int32, ndmin=2, order="C")
    return batch_lib.simulate_batch(
      self.tables, rows, self._workspaces, self.num_threads, cutoff_us, starts
    )

  def schedule(self, placement: Placement | np.ndarray) -> Schedule:
    """Simulates one placement and tells when everything happens.

    Raises:
      PlacementError: a placement that the problem does not allow.
    """
    if not isinstance(placement, Placement):
      placement = Placement(self.problem, placement)
    self._checked([placement])
    work = workspace_lib.workspace(self.tables)
    return make_schedule(placement, self.tables, work)

  def _checked(
    self, placements: np.ndarray | Sequence[Placement]
  ) -> np.ndarray:
    """[batch, num_ops] device indices that the problem allows."""
    if isinstance(placements, np.ndarray):
      if placements.ndim != 2 or placements.dtype.kind not in "iu":
        raise PlacementError(
          "placements are integers of shape [batch,"
          f" {self.problem.graph.num_ops}], not {placements.dtype} of shape"
          f" {list(placements.shape)}"
        )
      for row in placements:
        check_devices(self.problem, row)
      return placements
    rows = np.zeros((len(placements), self.problem.graph.num_ops), np.int32)
    for row, placement in zip(rows, placements, strict=True):
      if placement.problem is not self.problem:
        check_devices(self.problem, placement.devices)
      row[:] = placement.devices  # checked when the Placement was made
    return rows

  def _evaluation(self, batch: Batch, row: int) -> Evaluation:
    names = [device.name for device in self.problem.cluster.devices]
    peaks = batch.peak_memory_bytes[row].tolist()
    return Evaluation(
      step_time_us=float(batch.step_time_us[row]),
      feasible=bool(batch.feasible[row]),
      peak_memory_bytes=dict(zip(names, peaks, strict=True)),
      busy_us=dict(zip(names, batch.busy_us[row].tolist(), strict=True)),
      bytes_moved=float(batch.bytes_moved[row]),
      lower_bound_us=self.problem.lower_bound_us,
      source="simulated",
    )
