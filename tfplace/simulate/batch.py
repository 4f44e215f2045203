"""Many placements of one problem at once, on all cores, as plain arrays."""

import concurrent.futures
import os
from typing import NamedTuple

import numpy as np

from tfplace.simulate import engine
from tfplace.simulate.jit import kernel
from tfplace.simulate.tables import Tables
from tfplace.simulate.workspace import Workspace

# Below so many ops and edges in all, starting threads costs more than it saves.
MIN_PARALLEL_SIZE = 50_000


class Batch(NamedTuple):
  """What a batch of placements costs.

  Attributes:
    step_time_us: [batch] float64; infinite where a placement cannot run.
    peak_memory_bytes: [batch, num_devices] float64.
    busy_us: [batch, num_devices] float64 op time without overhead.
    bytes_moved: [batch] float64.
    feasible: [batch] bool: it runs, and no peak exceeds its device's memory.
  """

  step_time_us: np.ndarray
  peak_memory_bytes: np.ndarray
  busy_us: np.ndarray
  bytes_moved: np.ndarray
  feasible: np.ndarray


def available_cores() -> int:
  """Cores that this process may use."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


@kernel
def _simulate_rows(
  tables: Tables,
  devices: np.ndarray,
  work: Workspace,
  first: int,
  last: int,
  cutoff: float,
  batch: Batch,
  starts: np.ndarray,
) -> None:
  """Simulates rows `first` to `last - 1` of `devices` into `batch`.

  `starts` has as many rows as `devices`, or none where nobody asks.
  """
  for row in range(first, last):
    step_time_us = engine.simulate(tables, devices[row], work, cutoff)
    batch.step_time_us[row] = step_time_us
    batch.bytes_moved[row] = work.moved_bytes[0]
    fits = step_time_us < np.inf
    for device in range(tables.num_devices):
      peak = work.peak_bytes[device]
      batch.peak_memory_bytes[row, device] = peak
      batch.busy_us[row, device] = work.busy_us[device]
      fits &= peak <= tables.memory_bytes[device]
    batch.feasible[row] = fits
    if row < len(starts):
      for op in range(tables.num_ops):
        starts[row, op] = work.ops.nodes[op].time


def simulate_batch(
  tables: Tables,
  devices: np.ndarray,
  workspaces: list[Workspace],
  num_threads: int,
  cutoff: float = np.inf,
  starts: np.ndarray | None = None,
) -> Batch:
  """Simulates [batch, num_ops] int32 `devices`, which are not checked.

  Args:
    tables: from `pack`.
    devices: [batch, num_ops] int32, contiguous and writable.
    workspaces: spare ones; more are made as needed and left here. Safe to
      share between threads.
    num_threads: at most so many threads.
    cutoff: as in `engine.simulate`.
    starts: [batch, num_ops] float64 that receives when each op starts, us;
      meaningless where the step time is infinite. None is not to know.
  """
  rows = len(devices)
  size = rows * (tables.num_ops + len(tables.readers))
  threads = min(num_threads, rows) if size >= MIN_PARALLEL_SIZE else 1
  batch = _empty_batch(rows, tables.num_devices)
  op_starts = np.empty((0, tables.num_ops)) if starts is None else starts

  def simulate_part(part: int) -> None:
    work = _take(workspaces, tables)
    first, last = part * rows // parts, (part + 1) * rows // parts
    _simulate_rows(tables, devices, work, first, last, cutoff, batch, op_starts)
    workspaces.append(work)

  # Parts are smaller than a thread's share, so that none waits for the last.
  parts = 1 if threads == 1 else min(rows, 4 * threads)
  if threads == 1:
    simulate_part(0)
  else:
    # A pool of its own: threads of a kept one would not survive a fork.
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
      list(pool.map(simulate_part, range(parts)))
  return batch


def _take(workspaces: list[Workspace], tables: Tables) -> Workspace:
  try:
    return workspaces.pop()
  except IndexError:
    return engine.workspace(tables)


def _empty_batch(rows: int, num_devices: int) -> Batch:
  return Batch(
    step_time_us=np.zeros(rows),
    peak_memory_bytes=np.zeros((rows, num_devices)),
    busy_us=np.zeros((rows, num_devices)),
    bytes_moved=np.zeros(rows),
    feasible=np.zeros(rows, bool),
  )
