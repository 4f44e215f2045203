"""Which device or link holds a placement back: each is made twice as fast, one
after the other, with the placement and the order of ops as they are. What is
busy is not always what is waited for; this tells the two apart.
"""

import dataclasses

import numpy as np

from tfplace.report.explain.fixed_order import (
  Times,
  fixed_order,
  times_on,
)
from tfplace.report.tracks import channel_names, device_names
from tfplace.simulate import Schedule

DEVICE_KIND, LINK_KIND = "device", "link"
FASTER = 2.0  # speed of a device; bandwidth of a link, whose latency halves


@dataclasses.dataclass(frozen=True)
class Load:
  """What one device or link does in a step, and what it would give.

  Attributes:
    kind: "device" or "link".
    name: its short name.
    index: of the device or channel.
    busy_us: computing, or sending.
    if_twice_as_fast_us: the step in the same order with this device's ops in
      half the time, or this link with twice the bandwidth and half the
      latency; launch gaps and gaps between transfers stay.
    gain_us: how much shorter that step is, 0 or more.
  """

  kind: str
  name: str
  index: int
  busy_us: float
  if_twice_as_fast_us: float
  gain_us: float


def find_loads(schedule: Schedule) -> tuple[Load, ...]:
  """Every device that computes and every link that sends, by their gain."""
  order = fixed_order(schedule)
  times = times_on(schedule.placement.problem, schedule)
  now_us = order.step_time_us(times)
  loads = []
  for kind, index, name, busy_us in _busy(schedule):
    faster = _faster(schedule, times, kind, index)
    step_us = min(now_us, order.step_time_us(faster))
    loads.append(Load(kind, name, index, busy_us, step_us, now_us - step_us))
  return tuple(sorted(loads, key=lambda load: (-load.gain_us, -load.busy_us)))


def _busy(schedule: Schedule) -> list[tuple[str, int, str, float]]:
  """Kind, index, name and busy time of all that does something."""
  result = []
  for i, name in enumerate(device_names(schedule)):
    if i in schedule.placement.devices:
      result.append((DEVICE_KIND, i, name, float(schedule.busy_us[i])))
  busy_us, names = link_busy_us(schedule), channel_names(schedule)
  for i in np.unique(schedule.transfers.channel).tolist():
    result.append((LINK_KIND, i, names[i], float(busy_us[i])))
  return result


def link_busy_us(schedule: Schedule) -> np.ndarray:
  """[num_channels] float64: time that each channel sends."""
  moves = schedule.transfers
  return np.bincount(
    moves.channel,
    moves.sent_us - moves.start_us,
    schedule.placement.problem.cluster.num_channels,
  )


def _faster(schedule: Schedule, times: Times, kind: str, index: int) -> Times:
  if kind == DEVICE_KIND:
    factor = np.where(schedule.placement.devices == index, 1 / FASTER, 1.0)
    return times._replace(op=times.op * factor)
  factor = np.where(schedule.transfers.channel == index, 1 / FASTER, 1.0)
  return times._replace(
    send=times.send * factor, latency=times.latency * factor
  )
