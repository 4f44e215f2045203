"""Numbers and names for people, and the schedule of what is shown.

Sizes are formatted by `core.constraints`, whose errors need them; times here.
"""

import math
from collections.abc import Sequence

from tfplace.core.constraints import format_bytes, in_units
from tfplace.core.placement import Placement
from tfplace.simulate import Schedule, Simulator

__all__ = ["format_bytes", "format_us", "short_names"]

_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "us"))


def format_us(time_us: float) -> str:
  """12345.6 -> "12.3 ms": three digits. Infinite: the placement failed."""
  if math.isinf(time_us):
    return "failed"
  return in_units(time_us, _TIMES)


def time_scale(step_us: float) -> tuple[float, str]:
  """Microseconds in the unit that suits a step, and the unit's name."""
  unit = format_us(step_us).split()[-1]
  return {"s": 1e6, "ms": 1e3, "us": 1.0}.get(unit, 1.0), unit


def short_names(names: Sequence[str]) -> list[str]:
  """Device names without what they share: "/job:a/task:0/device:GPU:1" among
  its like is "GPU:1". Full names where that would confuse two.
  """
  parts = [name.strip("/").split("/") for name in names]
  shortest = min(map(len, parts), default=1)
  shared = 0
  while shared < shortest - 1 and len({p[shared] for p in parts}) == 1:
    shared += 1
  short = ["/".join(p[shared:]).replace("device:", "") for p in parts]
  return short if len(set(short)) == len(names) else list(names)


def as_schedule(step: Schedule | Placement) -> Schedule:
  """The schedule of a placement; a schedule is one already."""
  if isinstance(step, Placement):
    return Simulator(step.problem).schedule(step)
  return step


def device_names(schedule: Schedule) -> list[str]:
  """[num_devices] short names."""
  devices = schedule.placement.problem.cluster.devices
  return short_names([device.name for device in devices])


def channel_names(schedule: Schedule) -> list[str]:
  """[num_channels] a name for each: its own, with short names of devices in
  it, or "source -> destination"."""
  cluster = schedule.placement.problem.cluster
  short = device_names(schedule)
  names = [""] * cluster.num_channels
  for link in cluster.links:
    src, dst = cluster.index[link.src], cluster.index[link.dst]
    own = f"{short[src]} -> {short[dst]}"
    names[cluster.channel[src, dst]] = link.channel or own
  # Longest first: one name may begin another.
  full = [device.name for device in cluster.devices]
  for i in sorted(range(len(full)), key=lambda i: -len(full[i])):
    names = [name.replace(full[i], short[i]) for name in names]
  return names
