"""The simulating `Evaluator`: batches of placements, on all cores."""

import concurrent.futures
import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfplace.errors import PlacementError, shown
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.order import ORDERS, order_to_json
from tfplace.graph.placement import Placement, check_devices
from tfplace.graph.problem import Problem
from tfplace.simulate import engine
from tfplace.simulate.engine import Batch
from tfplace.simulate.schedule import Schedule, make_schedule
from tfplace.simulate.tables import Tables, packed
from tfplace.simulate.workspace import Workspace

# Threads pay off only above this total number of ops and edges.
MIN_PARALLEL_SIZE = 50_000


def available_cores() -> int:
  """Returns the number of cores that this process may use."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


class Simulator:
  """Simulates placements of one problem by rules 1-7 of docs/simulation.md.

  A simulator can be shared between threads, pickled, and used after a fork. The
  kernel is compiled on first use and cached on disk.

  Attributes:
    problem: problem whose placements are simulated.
    num_threads: threads per batch; defaults to the cores of this process.
  """

  def __init__(self, problem: Problem, num_threads: int | None = None) -> None:
    self.problem = problem
    self.num_threads = num_threads or available_cores()
    self._workspaces: list[Workspace] = []

  def __reduce__(self) -> tuple[Any, ...]:
    return (Simulator, (self.problem, self.num_threads))

  @functools.cached_property
  def tables(self) -> Tables:
    """The packed problem for `engine.simulate`."""
    return packed(self.problem)

  def evaluate(
    self, placements: np.ndarray | Sequence[Placement]
  ) -> list[Evaluation]:
    """Checks and simulates placements, in order.

    Args:
      placements: [batch, num_ops] integer device indices, or `Placement`s, each
        of which has its own execution order.

    Raises:
      PlacementError: the problem does not allow a placement.
    """
    rows = self._checked(placements)
    if isinstance(placements, np.ndarray):
      return self._evaluations(rows)
    is_own = np.array([self._has_order(p) for p in placements], bool)
    own = iter(self._evaluations(rows[is_own]))
    others = iter(() if is_own.all() else self._other.evaluate(rows[~is_own]))
    return [next(own if here else others) for here in is_own]

  def _has_order(self, placement: Placement) -> bool:
    return placement.problem.order == self.problem.order

  @functools.cached_property
  def _other(self) -> "Simulator":
    """Simulator in the other execution order."""
    (order,) = set(ORDERS) - {self.problem.order}
    return Simulator(self.problem.in_order(order), self.num_threads)

  def step_times(
    self, devices: np.ndarray, limit_us: float = np.inf
  ) -> np.ndarray:
    """See `Evaluator`."""
    batch = self.run(devices, limit_us)
    return np.where(batch.feasible, batch.step_time_us, np.inf)

  def run(
    self,
    devices: np.ndarray,
    cutoff_us: float = np.inf,
    starts: np.ndarray | None = None,
    tables: Tables | None = None,
  ) -> Batch:
    """Simulates placements without checking them, for searches.

    Args:
      devices: [batch, num_ops] integer device indices below `num_devices`. An
        index out of range corrupts memory. An op on a kind that cannot run it,
        or a missing link, gives an infinite step time. Colocation is ignored.
      cutoff_us: slower placements get an infinite step time and undefined
        peaks, with less work.
      starts: [batch, num_ops] float64 output for the start of each op in
        microseconds, or None.
      tables: `tables` with other times, bandwidths or latencies, or None.
    """
    rows = np.array(devices, np.int32, ndmin=2, order="C")
    cutoff = float(cutoff_us)  # The kernel is compiled for each type.
    tables, count = tables or self.tables, len(rows)
    op_starts = np.empty((0, tables.num_ops)) if starts is None else starts
    batch = engine.batch(tables, count)
    size = count * (tables.num_ops + len(tables.readers))
    is_small = size < MIN_PARALLEL_SIZE
    threads = 1 if is_small else min(self.num_threads, count)
    # Several parts per thread, so that no thread waits long for the last one.
    parts = 1 if threads == 1 else min(count, 4 * threads)

    def simulate_part(part: int) -> None:
      try:
        work = self._workspaces.pop()
      except IndexError:
        work = engine.workspace(tables)
      first, last = part * count // parts, (part + 1) * count // parts
      engine.simulate_rows(
        tables, rows, work, first, last, cutoff, batch, op_starts
      )
      self._workspaces.append(work)

    if threads == 1:
      simulate_part(0)
    else:
      # Create a new pool because threads of a kept one do not survive a fork.
      with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(simulate_part, range(parts)))
    return batch

  def schedule(self, placement: Placement | np.ndarray) -> Schedule:
    """Simulates one placement and returns the times of all events.

    Raises:
      PlacementError: the problem does not allow the placement.
    """
    if not isinstance(placement, Placement):
      placement = Placement(self.problem, placement)
    if not self._has_order(placement):
      return self._other.schedule(placement)
    self._checked([placement])
    work = engine.workspace(self.tables)
    return make_schedule(placement, self.tables, work)

  def _checked(
    self, placements: np.ndarray | Sequence[Placement]
  ) -> np.ndarray:
    """Converts placements to checked [batch, num_ops] device indices."""
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
    for given in placements:
      if not isinstance(given, Placement):
        raise PlacementError(
          "placements are an integer array of shape [batch,"
          f" {self.problem.graph.num_ops}] or Placements, not {shown(given)}"
        )
    rows = np.zeros((len(placements), self.problem.graph.num_ops), np.int32)
    for row, placement in zip(rows, placements, strict=True):
      if placement.problem is not self.problem:
        check_devices(self.problem, placement.devices)
      row[:] = placement.devices  # Already checked by `Placement`.
    return rows

  def _evaluations(self, rows: np.ndarray) -> list[Evaluation]:
    batch = self.run(rows)
    return [self._evaluation(batch, row) for row in range(len(rows))]

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
      extra=order_to_json(self.problem.order),
    )
