"""What other hardware would give: the same placement simulated on it, and,
where there is time, a placement searched for it.

The cluster as it is is searched anew, too: what better hardware gives and what
more search gives are not to be confused.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np

from tfplace import bounds, placers
from tfplace.core.cluster import Cluster
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.errors import InfeasibleError
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.annealing import improve
from tfplace.placers.search.config import SearchConfig
from tfplace.placers.tracker import Tracker
from tfplace.report.explain import bottleneck
from tfplace.report.explain.fixed_order import fixed_order, times_on
from tfplace.simulate import Schedule, Simulator

AS_IT_IS = "as it is"
ONE_MORE = "one more"  # and the kind of the device
SAME_PLACEMENT = "the same placement"
FROM_HERE = "search from here"
FASTER_BANDWIDTH, LOWER_LATENCY = 2.0, 0.5

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
  order = fixed_order(schedule)
  for name, cluster, is_searched in _clusters(schedule):
    if on_progress is not None:
      on_progress(name)
    problem = _on(schedule.placement.problem, cluster)
    same = Placement(problem, schedule.placement.devices)
    result = WhatIf(
      name,
      Simulator(problem).evaluate([same])[0].step_time_us,
      order.step_time_us(times_on(problem, schedule)),
    )
    if seconds > 0 and is_searched:
      result = _searched(result, bounds.tightened(problem), same, seconds, seed)
    found.append(result)
  return tuple(found)


def _on(problem: Problem, cluster: Cluster) -> Problem:
  if cluster is problem.cluster:
    return problem
  return Problem(problem.graph, cluster)


def _clusters(schedule: Schedule) -> Iterator[tuple[str, Cluster, bool]]:
  """Name, cluster, and whether a search on it tells anything of use."""
  cluster = schedule.placement.problem.cluster
  yield AS_IT_IS, cluster, True
  if cluster.links:
    busiest = int(np.argmax(schedule.busy_us))
    more = bottleneck.one_more_device(cluster, busiest)
    yield f"{ONE_MORE} {cluster.devices[busiest].kind}", more, True
    faster = functools.partial(bottleneck.faster_links, cluster)
    yield (
      "every link with 2x the bandwidth and half the latency",
      faster(FASTER_BANDWIDTH, LOWER_LATENCY),
      True,
    )
    yield (
      "transfers that cost nothing",
      faster(bottleneck.FREE, 0.0, 0.0),
      False,
    )
  if cluster.op_overhead_us.any():
    bare = bottleneck.without_overhead(cluster)
    yield "no launch gap after an op", bare, False


def _searched(
  result: WhatIf, problem: Problem, same: Placement, seconds: float, seed: int
) -> WhatIf:
  """The best of the placement as it is, of `auto`, and of a search that goes
  on from both, of what fits; half of the time for each."""
  now = Simulator(problem).evaluate(np.array([same.devices]))[0]
  found = {SAME_PLACEMENT: now.step_time_us} if now.feasible else {}
  starts = [same.devices]
  with contextlib.suppress(InfeasibleError):
    best = placers.place(problem, "auto", budget_s=seconds / 2, seed=seed)
    starts.append(best.placement.devices)
    for tried in best.tried:
      if tried.evaluation.feasible:
        found.setdefault(tried.strategy, tried.evaluation.step_time_us)
  with contextlib.suppress(InfeasibleError):
    us = _improved_us(problem, starts, seconds / 2, seed)
    found.setdefault(FROM_HERE, us)
  strategy = min(found, key=lambda name: found[name], default="")
  return dataclasses.replace(
    result,
    replaced_us=found.get(strategy),
    replaced_by=strategy,
    lower_bound_us=problem.lower_bound_us,
  )


def _improved_us(
  problem: Problem, starts: list[np.ndarray], seconds: float, seed: int
) -> float:
  """The best step time of a search from these placements.

  Raises:
    InfeasibleError: nothing fits in memory.
  """
  budget = placers.Budget(seconds)
  tracker = Tracker(FROM_HERE, problem, Simulator(problem), budget)
  result = improve(tracker, GroupGraph(problem), starts, seed, SearchConfig())
  return result.evaluation.step_time_us
