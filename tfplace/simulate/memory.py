"""Bytes in use on each device over a simulated step, from its start and end
times. The kernel counts memory as time passes; this adds up intervals, so the
one checks the other.
"""

from typing import NamedTuple

import numpy as np

from tfplace.simulate.tables import Tables


class MemoryCurve(NamedTuple):
  """A step function of time.

  Attributes:
    time_us: [num_steps] float64, ascending, the first is 0.
    num_bytes: [num_steps] float64 in use from `time_us[i]` on.
  """

  time_us: np.ndarray
  num_bytes: np.ndarray


def memory_curves(
  tables: Tables,
  devices: np.ndarray,
  op_start_us: np.ndarray,
  op_end_us: np.ndarray,
  transfer_key: np.ndarray,
  transfer_start_us: np.ndarray,
  transfer_arrival_us: np.ndarray,
) -> list[MemoryCurve]:
  """Rule 6 of the formats: one curve per device.

  Args:
    tables: from `pack`.
    devices: [num_ops] int32.
    op_start_us: [num_ops] float64.
    op_end_us: [num_ops] float64.
    transfer_key: [num_transfers] slot * num_devices + destination.
    transfer_start_us: [num_transfers] float64.
    transfer_arrival_us: [num_transfers] float64.
  """
  slots, num_slots = tables.slots, len(tables.slots)
  source = devices[slots["src"]]
  home = np.arange(num_slots) * tables.num_devices + source
  slot = transfer_key // tables.num_devices

  until = np.zeros(num_slots * tables.num_devices)
  reader_slot = np.repeat(
    np.arange(num_slots), slots["readers_end"] - slots["readers"]
  )
  reader_key = reader_slot * tables.num_devices + devices[tables.readers]
  np.maximum.at(until, reader_key, op_end_us[tables.readers])
  np.maximum.at(until, home, op_end_us[slots["src"]])
  np.maximum.at(until, home[slot], transfer_arrival_us)

  read = np.bincount(slots["src"], slots["bytes"], tables.num_ops)
  groups = (  # device, bytes, from, to
    (devices, tables.ops["start_bytes"] - read, op_start_us, op_end_us),
    (source, slots["bytes"], op_start_us[slots["src"]], until[home]),
    (
      transfer_key % tables.num_devices,
      slots["bytes"][slot],
      transfer_start_us,
      until[transfer_key],
    ),
  )
  device, size, start, end = map(np.concatenate, zip(*groups, strict=True))
  always = np.bincount(devices, tables.persistent_bytes, tables.num_devices)
  return [
    _curve(always[d], size[device == d], start[device == d], end[device == d])
    for d in range(tables.num_devices)
  ]


def _curve(
  always: float, size: np.ndarray, start: np.ndarray, end: np.ndarray
) -> MemoryCurve:
  some = size > 0
  times = np.concatenate(([0.0], start[some], end[some]))
  changes = np.concatenate(([always], size[some], -size[some]))
  # All changes of one instant count together: frees before allocations.
  instants, at = np.unique(times, return_inverse=True)
  return MemoryCurve(
    instants, np.cumsum(np.bincount(at, changes, len(instants)))
  )
