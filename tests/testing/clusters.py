"""Clusters of tests: devices that are all linked with each other."""

import itertools
from collections.abc import Iterable

from tfplace.graph.cluster import Cluster, Device, Link


def linked(
  devices: Iterable[Device | str], bandwidth: float = 1e6, *more, **link
) -> Cluster:
  """Devices, or names of CPUs, with equal links in both directions.

  Args:
    devices: of the cluster.
    bandwidth: of each link, in bytes per microsecond.
    *more: further fields of each `Link`.
    **link: the same, by name.
  """
  devices = [Device(d, "CPU") if isinstance(d, str) else d for d in devices]
  ways = itertools.permutations([device.name for device in devices], 2)
  links = tuple(Link(a, b, bandwidth, *more, **link) for a, b in ways)
  return Cluster("linked", tuple(devices), links)
