"""When everything of one simulated step happens: ops, transfers, memory and
the critical path. For people and reports; searches use the kernel itself.
"""

import dataclasses
import functools

import numpy as np

from tfplace.graph.placement import Placement
from tfplace.simulate import engine
from tfplace.simulate.critical_path import Segment, critical_path
from tfplace.simulate.memory import MemoryCurve, memory_curves
from tfplace.simulate.tables import Tables
from tfplace.simulate.workspace import TRANSFERS, Workspace


@dataclasses.dataclass(frozen=True, eq=False)
class Transfers:
  """The transfers of a step, in the order in which they were queued.

  Attributes:
    src_op: [num_transfers] int32 producer.
    output: [num_transfers] int32 its output, -1 for control.
    src: [num_transfers] int32 sending device.
    dst: [num_transfers] int32 receiving device.
    channel: [num_transfers] int32.
    num_bytes: [num_transfers] float64.
    start_us: [num_transfers] float64 when it gets its channel.
    sent_us: [num_transfers] float64, the start and bytes / bandwidth.
    arrival_us: [num_transfers] float64, and the latency.
    free_us: [num_transfers] float64 when its channel is free again.
  """

  src_op: np.ndarray
  output: np.ndarray
  src: np.ndarray
  dst: np.ndarray
  channel: np.ndarray
  num_bytes: np.ndarray
  start_us: np.ndarray
  sent_us: np.ndarray
  arrival_us: np.ndarray
  free_us: np.ndarray

  def __len__(self) -> int:
    return len(self.src_op)


@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
  """One simulated step.

  Attributes:
    placement: what was simulated.
    step_time_us: rule 5.
    op_start_us: [num_ops] float64.
    op_end_us: [num_ops] float64.
    transfers: the transfers.
    peak_memory_bytes: [num_devices] float64.
    busy_us: [num_devices] float64 op time without overhead.
    memory: one curve per device.
  """

  placement: Placement
  step_time_us: float
  op_start_us: np.ndarray
  op_end_us: np.ndarray
  transfers: Transfers
  peak_memory_bytes: np.ndarray
  busy_us: np.ndarray
  memory: tuple[MemoryCurve, ...]

  @functools.cached_property
  def critical_path(self) -> tuple[Segment, ...]:
    """The chain of ops and transfers that ends with the last op."""
    return critical_path(self)


def make_schedule(
  placement: Placement, tables: Tables, work: Workspace
) -> Schedule:
  """Simulates `placement` and reads the times from the workspace."""
  devices = placement.devices.copy()
  step_time_us = engine.simulate(tables, devices, work, np.inf)
  start = work.ops.time.copy()
  end = start + placement.problem.time_us[np.arange(len(devices)), devices]
  transfers = _transfers(placement, tables, work)
  key = work.transfers.key[: len(transfers)]
  moves = transfers.start_us, transfers.arrival_us
  return Schedule(
    placement=placement,
    step_time_us=float(step_time_us),
    op_start_us=start,
    op_end_us=end,
    transfers=transfers,
    peak_memory_bytes=work.peak_bytes.copy(),
    busy_us=work.busy_us.copy(),
    memory=tuple(memory_curves(tables, devices, start, end, key, *moves)),
  )


def _transfers(
  placement: Placement, tables: Tables, work: Workspace
) -> Transfers:
  count = int(work.counts[TRANSFERS])
  rank, dst = np.divmod(work.transfers.key[:count], tables.num_devices)
  slot = tables.slot_at[rank]
  src_op = tables.slots["src"][slot]
  src = placement.devices[src_op]
  start = work.transfers.time[:count].copy()
  num_bytes = tables.slots["bytes"][slot]
  sent = start + num_bytes / tables.bandwidth[src, dst]
  return Transfers(
    src_op=src_op,
    output=tables.slot_output[slot],
    src=src,
    dst=dst.astype(np.int32),
    channel=tables.channel[src, dst],
    num_bytes=num_bytes,
    start_us=start,
    sent_us=sent,
    arrival_us=sent + tables.latency_us[src, dst],
    free_us=sent + tables.gap_us[src, dst],
  )
