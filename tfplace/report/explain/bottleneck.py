"""Clusters that differ from a given one: a device more, faster links, no idle
time after ops. Devices keep their numbers, so that a placement on the one is a
placement on the other.

Which device or link holds a placement back: each is made twice as fast, one
after the other, with the placement and the order of ops as they are. What is
busy is not always what is waited for; this tells the two apart."""

import dataclasses
import math
import re

import numpy as np

from tfplace.core.cluster import Cluster, Device, Link
from tfplace.report.explain.fixed_order import Times, fixed_order, times_on
from tfplace.report.units import channel_names, device_names
from tfplace.simulate import Schedule

FREE = math.inf  # bandwidth of a link that costs nothing
_NUMBER = re.compile(r"\d+(?!.*\d)")  # the last one in a name


def one_more_device(cluster: Cluster, like: int) -> Cluster:
  """The cluster and, at its end, a copy of one of its devices.

  The copy has a copy of each of that device's links. A channel of one link, one
  that only this device sends on, or only it receives on, is copied too; one
  that others share (a switch, say) carries the copy's transfers as well.
  Between the two, the links are like that to another device of their kind,
  else like the fastest that the device has.

  Args:
    cluster: the devices.
    like: index of the device that is copied.
  """
  old = cluster.devices[like]
  new = dataclasses.replace(old, name=_free_name(cluster, old.name))
  links = list(cluster.links)
  for link in cluster.links:
    if old.name in (link.src, link.dst):
      src, dst = (
        new.name if n == old.name else n for n in (link.src, link.dst)
      )
      channel = _copied_channel(cluster, link, old.name, new.name)
      links.append(dataclasses.replace(link, src=src, dst=dst, channel=channel))
  links += _links_between(cluster, old, new)
  return dataclasses.replace(
    cluster,
    name=f"{cluster.name} and one more {old.kind}",
    devices=(*cluster.devices, new),
    links=tuple(links),
  )


def faster_links(
  cluster: Cluster,
  bandwidth: float,
  latency: float,
  gap: float = 1.0,
) -> Cluster:
  """The cluster with other links.

  Args:
    cluster: the devices.
    bandwidth: factor of every link's bandwidth; infinite is allowed.
    latency: factor of its latency.
    gap: factor of the gap between its transfers.
  """

  def changed(link: Link) -> Link:
    return dataclasses.replace(
      link,
      bandwidth_bytes_per_us=link.bandwidth_bytes_per_us * bandwidth,
      latency_us=link.latency_us * latency,
      gap_us=link.gap_us * gap,
    )

  return dataclasses.replace(cluster, links=tuple(map(changed, cluster.links)))


def without_overhead(cluster: Cluster) -> Cluster:
  """The cluster without idle time after ops."""
  return dataclasses.replace(
    cluster,
    devices=tuple(
      dataclasses.replace(device, op_overhead_us=0.0)
      for device in cluster.devices
    ),
  )


def _free_name(cluster: Cluster, name: str) -> str:
  """The name with the next number that no device has."""
  match = _NUMBER.search(name)
  if match is None:
    head, number, tail = f"{name}:", 0, ""
  else:
    head, tail = name[: match.start()], name[match.end() :]
    number = int(match.group())
  while f"{head}{number}{tail}" in cluster.index:
    number += 1
  return f"{head}{number}{tail}"


def _copied_channel(
  cluster: Cluster, link: Link, old: str, new: str
) -> str | None:
  """The channel of the copy of a link: shared, unless it is a link's own, or
  the old device's own for all that it sends, or all that it receives."""
  sharing = [x for x in cluster.links if x.channel == link.channel]
  if link.channel is None or len(sharing) == 1:
    return None
  is_own = all(x.src == old for x in sharing) or all(
    x.dst == old for x in sharing
  )
  return f"{link.channel} of {new}" if is_own else link.channel


def _links_between(cluster: Cluster, old: Device, new: Device) -> list[Link]:
  """Links from a device to its copy and back, like the best that it has."""
  alike = {d.name for d in cluster.devices if d.kind == old.kind}
  best = max(
    (link for link in cluster.links if link.src == old.name),
    key=lambda link: (
      link.dst in alike,
      link.bandwidth_bytes_per_us,
      -link.latency_us,
    ),
    default=None,
  )
  if best is None:
    return []
  there = back = None
  sharing = [x for x in cluster.links if x.channel == best.channel]
  # A channel of one link, or into one receiver, is not for others.
  if len({x.dst for x in sharing}) > 1:
    there = best.channel
    back = _copied_channel(cluster, best, old.name, new.name)
  return [
    dataclasses.replace(best, dst=new.name, channel=there),
    dataclasses.replace(best, src=new.name, dst=old.name, channel=back),
  ]


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
