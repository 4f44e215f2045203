"""The step on other hardware: one device more, faster links, no overhead.

The same placement is simulated on each, and, where there is time, a placement
is searched for it. Devices keep their numbers, so that a placement on the one
cluster is a placement on the other. A search on the cluster as it is tells the
gain of better hardware from that of more search.
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterator

import numpy as np

from tfplace import bounds, placers
from tfplace.core.cluster import MESSAGE_COSTS, Cluster, Device, Link
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.errors import InfeasibleError
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.annealing import improve
from tfplace.placers.search.config import SearchConfig
from tfplace.placers.tracker import Tracker
from tfplace.report.explain.bottleneck import fixed_order, times_on
from tfplace.simulate import Schedule, Simulator

AS_IT_IS = "as it is"
ONE_MORE = "one more"  # and the kind of the device
SAME_PLACEMENT = "the same placement"
FROM_HERE = "search from here"
_NUMBER = re.compile(r"\d+(?!.*\d)")  # the last one in a name

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class WhatIf:
  """The step on other hardware.

  Attributes:
    name: what is different.
    step_time_us: with the placement as it is, simulated anew. May be longer
      on faster hardware, where the order of the ops changes for the worse.
    same_order_us: the same with the ops and transfers in the order in which
      they are now; never longer on faster hardware.
    replaced_us: with the best placement found for that hardware, which is
      never worse than the one as it is; None where none was searched.
    replaced_by: the placer that found it, "search from here" or "the same
      placement"; "" where none was searched.
    lower_bound_us: proven for that hardware; None where it was not tried.
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
  on_progress: Progress | None = None,
) -> tuple[WhatIf, ...]:
  """Simulates a placement on other hardware.

  Args:
    schedule: of the placement.
    seconds: to search a placement for each; 0 searches none.
    seed: of the searches.
    on_progress: told the name of each change before it is tried.
  """
  found = []
  now, order = schedule.placement.problem, fixed_order(schedule)
  for name, cluster, is_searched in _clusters(schedule):
    if on_progress is not None:
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
  """Name, cluster, and whether a search on it tells anything of use."""
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
  """The cluster with bandwidth, latency and other costs of links multiplied."""
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
  """The best that fits of the placement as it is, of `auto`, and of a search
  that goes on from both; half of the time for each."""
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
