"""What traces and pictures of a step have in common."""

from tfplace.graph.placement import Placement
from tfplace.report.units import short_names
from tfplace.simulate import Schedule, Simulator


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
