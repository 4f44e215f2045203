"""Simulation of a placement on other hardware.

The variants are one more device, faster links and no overhead. The placement is
simulated on each, and a new placement is searched if there is time. Devices
keep their indices, so placements are valid on all variants. A search on the
unmodified cluster separates the gain of better hardware from that of more
search.
"""

import contextlib
import dataclasses
import itertools
import math
import re
from collections.abc import Iterator

import numpy as np

from tfplace import bounds, placers
from tfplace.core.cluster import MESSAGE_COSTS, Cluster, Link
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.progress import Progress
from tfplace.errors import InfeasibleError
from tfplace.report.explain.bottleneck import FixedOrder, times_on
from tfplace.simulate import Schedule, Simulator

SAME_PLACEMENT = "the same placement"


@dataclasses.dataclass(frozen=True)
class WhatIf:
  """The step on other hardware.

  Attributes:
    name: description of the difference.
    step_time_us: simulated step time of the given placement. It may be longer
      on faster hardware if the order of ops changes for the worse.
    same_order_us: step time with ops and transfers in the current order; never
      longer on faster hardware.
    replaced_us: step time of the best placement found for that hardware, never
      worse than the given one; None without a search.
    replaced_by: strategy that found it or "the same placement"; "" without a
      search.
    lower_bound_us: proven bound for that hardware; None without a search.
  """

  name: str
  step_time_us: float
  same_order_us: float
  replaced_us: float | None = None
  replaced_by: str = ""
  lower_bound_us: float | None = None


def try_other_hardware(
  order: FixedOrder, seconds: float, seed: int, on_progress: Progress
) -> tuple[WhatIf, ...]:
  """Simulates a placement on other hardware.

  Args:
    seconds: search time for each hardware; 0 for no search.
    on_progress: called with the name of each change before it is tried.
  """
  found = []
  placement = order.schedule.placement
  now = placement.problem
  for name, cluster, is_searched in _clusters(order.schedule):
    on_progress(name)
    problem = Problem(now.graph, cluster, order=now.order)
    same = Placement(problem, placement.devices)
    result = WhatIf(
      name,
      Simulator(problem).evaluate([same])[0].step_time_us,
      order.step_time_us(times_on(problem, order.schedule)),
    )
    if seconds > 0 and is_searched:
      result = _searched(result, same, seconds, seed)
    found.append(result)
  return tuple(found)


def _clusters(schedule: Schedule) -> Iterator[tuple[str, Cluster, bool]]:
  """Yields names, clusters, and whether a search on them is informative."""
  cluster = schedule.placement.problem.cluster
  yield "as it is", cluster, True
  if cluster.links:
    busiest = int(np.argmax(schedule.busy_us))
    more = one_more_device(cluster, busiest)
    yield f"one more {cluster.devices[busiest].kind}", more, True
    faster = _faster_links(cluster, bandwidth=2.0, latency=0.5)
    yield "every link with 2x the bandwidth and half the latency", faster, True
    free = _faster_links(cluster, bandwidth=math.inf, latency=0.0, others=0.0)
    yield "free communication", free, False
  if cluster.op_overhead_us.any():
    bare = tuple(
      dataclasses.replace(device, op_overhead_us=0.0)
      for device in cluster.devices
    )
    without = dataclasses.replace(cluster, devices=bare)
    yield "no overhead after an op", without, False


def _faster_links(
  cluster: Cluster, bandwidth: float, latency: float, others: float = 1.0
) -> Cluster:
  links = tuple(
    dataclasses.replace(
      link,
      bandwidth_bytes_per_us=link.bandwidth_bytes_per_us * bandwidth,
      latency_us=link.latency_us * latency,
      **{x: getattr(link, x) * others for x in ("gap_us", *MESSAGE_COSTS)},
    )
    for link in cluster.links
  )
  return dataclasses.replace(cluster, links=links)


def _searched(
  result: WhatIf, same: Placement, seconds: float, seed: int
) -> WhatIf:
  """Searches from the given placement, with a proven bound."""
  problem = bounds.tightened(same.problem)
  best_us, found_by = None, ""
  if Simulator(problem).evaluate(same.devices[None])[0].feasible:
    best_us, found_by = result.step_time_us, SAME_PLACEMENT
  with contextlib.suppress(InfeasibleError):
    best = placers.place(
      problem, "auto", budget_s=seconds, seed=seed, init_placement=same
    )
    if best_us is None or best.evaluation.step_time_us < best_us:
      best_us, found_by = best.evaluation.step_time_us, best.strategy
  return dataclasses.replace(
    result,
    replaced_us=best_us,
    replaced_by=found_by,
    lower_bound_us=problem.lower_bound_us,
  )


def one_more_device(cluster: Cluster, like: int) -> Cluster:
  """Appends a copy of one device to the cluster, with copies of its links.

  A channel that only the device sends on, or only it receives on, is copied,
  too. Other channels, such as a switch, also carry the copy's transfers. Links
  between the two are like the best from the device to another, of its kind if
  there is one.
  """
  old = cluster.devices[like]
  new = dataclasses.replace(old, name=_free_name(cluster, old.name))
  outward = [link for link in cluster.links if link.src == old.name]
  inward = [link for link in cluster.links if link.dst == old.name]
  shared = {link.channel for link in cluster.links if link not in outward}
  shared &= {link.channel for link in cluster.links if link not in inward}

  def copied(link: Link, src: str, dst: str) -> Link:
    channel = link.channel
    if channel not in (None, *shared):
      channel = f"{channel} of {new.name}"
    return dataclasses.replace(link, src=src, dst=dst, channel=channel)

  links = [copied(link, new.name, link.dst) for link in outward]
  links += [copied(link, link.src, new.name) for link in inward]
  alike = {device.name for device in cluster.devices if device.kind == old.kind}
  if outward:
    best = max(
      outward, key=lambda x: (x.dst in alike, x.bandwidth_bytes_per_us)
    )
    links.append(dataclasses.replace(best, dst=new.name))
    links.append(copied(best, new.name, old.name))
  return dataclasses.replace(
    cluster,
    name=f"{cluster.name} and one more {old.kind}",
    devices=(*cluster.devices, new),
    links=(*cluster.links, *links),
  )


def _free_name(cluster: Cluster, name: str) -> str:
  """Counts up the last number in a name until no device has it."""
  head, _, tail = re.fullmatch(r"(.*?)(\d*)(\D*)", name).groups()  # type: ignore[union-attr]
  names = (f"{head}{number}{tail}" for number in itertools.count())
  return next(name for name in names if name not in cluster.index)
