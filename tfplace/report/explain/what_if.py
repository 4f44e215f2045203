"""Simulation of a placement on other hardware.

The variants are one more device, faster links and no overhead. The placement is
simulated on each, and a new placement is searched if there is time. Devices
keep their indices, so placements are valid on all variants. A search on the
unmodified cluster separates the gain of better hardware from that of more
search.
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator

import numpy as np

from tfplace import bounds, placers
from tfplace.core.cluster import MESSAGE_COSTS, Cluster, Device, Link
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.progress import Progress, silent
from tfplace.errors import InfeasibleError
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.annealing import improve
from tfplace.placers.search.schedule import SearchConfig
from tfplace.placers.tracker import Tracker
from tfplace.report.explain.bottleneck import fixed_order, times_on
from tfplace.simulate import Schedule, Simulator

AS_IT_IS = "as it is"
ONE_MORE = "one more"  # followed by the kind of the device
SAME_PLACEMENT = "the same placement"
FROM_HERE = "search from here"
_NUMBER = re.compile(r"\d+(?!.*\d)")  # the last number in a name


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
    replaced_by: placer that found it, "search from here" or "the same
      placement"; "" without a search.
    lower_bound_us: proven bound for that hardware; None without a search.
  """

  name: str
  step_time_us: float
  same_order_us: float
  replaced_us: float | None = None
  replaced_by: str = ""
  lower_bound_us: float | None = None


def try_other_hardware(
  schedule: Schedule,
  seconds: float = 0.0,
  seed: int = 0,
  on_progress: Progress = silent,
) -> tuple[WhatIf, ...]:
  """Simulates a placement on other hardware.

  Args:
    seconds: search time for each hardware; 0 for no search.
    on_progress: called with the name of each change before it is tried.
  """
  found = []
  now, order = schedule.placement.problem, fixed_order(schedule)
  for name, cluster, is_searched in _clusters(schedule):
    on_progress(name)
    problem = now
    if cluster is not now.cluster:
      problem = Problem(now.graph, cluster, order=now.order)
    same = Placement(problem, schedule.placement.devices)
    result = WhatIf(
      name,
      Simulator(problem).evaluate([same])[0].step_time_us,
      order.step_time_us(times_on(problem, schedule)),
    )
    if seconds > 0 and is_searched:
      result = _searched(result, same, seconds, seed)
    found.append(result)
  return tuple(found)


def _clusters(schedule: Schedule) -> Iterator[tuple[str, Cluster, bool]]:
  """Yields names, clusters, and whether a search on them is informative."""
  cluster = schedule.placement.problem.cluster
  yield AS_IT_IS, cluster, True
  if cluster.links:
    busiest = int(np.argmax(schedule.busy_us))
    more = one_more_device(cluster, busiest)
    yield f"{ONE_MORE} {cluster.devices[busiest].kind}", more, True
    faster = _faster_links(cluster, bandwidth=2.0, latency=0.5)
    yield "every link with 2x the bandwidth and half the latency", faster, True
    free = _faster_links(cluster, bandwidth=math.inf, latency=0.0, others=0.0)
    yield "free communication", free, False
  if cluster.op_overhead_us.any():
    bare = [
      dataclasses.replace(device, op_overhead_us=0.0)
      for device in cluster.devices
    ]
    without = dataclasses.replace(cluster, devices=tuple(bare))
    yield "no overhead after an op", without, False


def _faster_links(
  cluster: Cluster, bandwidth: float, latency: float, others: float = 1.0
) -> Cluster:
  links = [
    dataclasses.replace(
      link,
      bandwidth_bytes_per_us=link.bandwidth_bytes_per_us * bandwidth,
      latency_us=link.latency_us * latency,
      **{x: getattr(link, x) * others for x in ("gap_us", *MESSAGE_COSTS)},
    )
    for link in cluster.links
  ]
  return dataclasses.replace(cluster, links=tuple(links))


def _searched(
  result: WhatIf, same: Placement, seconds: float, seed: int
) -> WhatIf:
  """Tries the given placement, `auto`, and a search that starts from both."""
  problem = bounds.tightened(same.problem)
  simulator = Simulator(problem)
  now = simulator.evaluate(same.devices[None])[0]
  found = {SAME_PLACEMENT: now.step_time_us} if now.feasible else {}
  starts = [same.devices]
  with contextlib.suppress(InfeasibleError):
    best = placers.place(problem, "auto", budget_s=seconds / 2, seed=seed)
    starts.append(best.placement.devices)
    for tried in best.tried:
      if tried.evaluation.feasible:
        found.setdefault(tried.strategy, tried.evaluation.step_time_us)
  with contextlib.suppress(InfeasibleError):
    budget = placers.Budget(seconds / 2)
    tracker = Tracker(FROM_HERE, problem, simulator, budget)
    groups = GroupGraph(problem)
    improved = improve(tracker, groups, starts, seed, SearchConfig())
    found.setdefault(FROM_HERE, improved.evaluation.step_time_us)
  strategy = min(found, key=lambda name: found[name], default="")
  return dataclasses.replace(
    result,
    replaced_us=found.get(strategy),
    replaced_by=strategy,
    lower_bound_us=problem.lower_bound_us,
  )


def one_more_device(cluster: Cluster, like: int) -> Cluster:
  """Appends a copy of one device to the cluster, with copies of its links.

  Each copied link gets its own channel if the original has a channel of its
  own, or shares one that only this device sends on or only it receives on.
  Channels shared with others (such as a switch) also carry the copy's
  transfers. Links between the two devices are like those to another device of
  their kind, or else like the device's fastest link.
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


def _free_name(cluster: Cluster, name: str) -> str:
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
  """Returns the channel of a copied link: shared, unless only `old` uses it."""
  sharing = [x for x in cluster.links if x.channel == link.channel]
  if link.channel is None or len(sharing) == 1:
    return None
  is_own = all(x.src == old for x in sharing) or all(
    x.dst == old for x in sharing
  )
  return f"{link.channel} of {new}" if is_own else link.channel


def _links_between(cluster: Cluster, old: Device, new: Device) -> list[Link]:
  """Creates links between a device and its copy, like the device's best one."""
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
  # A channel of one link or into one receiver does not serve other links.
  if len({x.dst for x in sharing}) > 1:
    there = best.channel
    back = _copied_channel(cluster, best, old.name, new.name)
  return [
    dataclasses.replace(best, dst=new.name, channel=there),
    dataclasses.replace(best, src=new.name, dst=old.name, channel=back),
  ]
