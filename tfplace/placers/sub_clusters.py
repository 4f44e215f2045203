"""Placements on parts of a cluster, from which the search on all of it starts.

More devices mean a larger search space, in which the same budget may find a
slower placement. So parts are searched first: one host of each sort, and the
GPUs of each kind in a host with several.
"""

import dataclasses
import time
from collections.abc import Iterator

import numpy as np

from tfplace.bounds import check_memory
from tfplace.errors import TfplaceError
from tfplace.graph.budget import Budget
from tfplace.graph.cluster import Cluster
from tfplace.graph.evaluation import HistoryPoint, Result
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.placers.beside_gpus import place_beside_gpus
from tfplace.placers.requests import Request
from tfplace.simulate import Simulator

_SHARE = 0.3  # of the seconds, for the searches of all parts; our choice
# Seconds per op without which a part is not searched: rules take as long.
_PART_S_PER_OP = 5e-5


def parts(cluster: Cluster) -> Iterator[np.ndarray]:
  """Yields the devices of each part to search first, as indices.

  A part of a part is left to the search of that part.
  """
  devices, hosts = cluster.devices, cluster.hosts
  if len(set(hosts)) > 1:
    seen = set()
    for number in dict.fromkeys(hosts.tolist()):
      here = np.flatnonzero(hosts == number)
      described = tuple(
        (devices[i].kind, devices[i].memory_bytes) for i in here
      )
      if described not in seen:
        seen.add(described)
        yield here
    return
  kinds = dict.fromkeys(d.kind for d in devices if not d.is_cpu)
  for kind in kinds if len(kinds) > 1 else ():
    yield np.array(
      [i for i, d in enumerate(devices) if d.is_cpu or d.kind == kind]
    )


def part_of(cluster: Cluster, devices: np.ndarray) -> Cluster:
  """Returns the cluster of some of the devices, and the links between them."""
  kept = tuple(cluster.devices[i] for i in devices)
  names = {device.name for device in kept}
  links = tuple(link for link in cluster.links if {link.src, link.dst} <= names)
  return dataclasses.replace(cluster, devices=kept, links=links)


def place_on_parts_first(
  request: Request, problem: Problem, budget: Budget, starts: np.ndarray | None
) -> Result:
  """Places a problem, starting from the placements of its parts.

  The result is never slower than that of a part. With a budget of evaluations,
  each part has as many as the whole cluster; seconds are divided. Parts are
  searched only without starts, and not in a short search.

  Raises:
    InfeasibleError: nothing found fits in memory.
  """
  every_part = [*parts(problem.cluster)]
  if starts is not None or request.evaluator is not None or not every_part:
    return place_beside_gpus(request, problem, budget, starts)
  share_s, later = budget.seconds, budget.fraction(1.0)
  if budget.is_timed:
    share_s *= _SHARE / len(every_part)
    later = budget.fraction(1 - _SHARE)
    if share_s < _PART_S_PER_OP * problem.graph.num_ops:
      return place_beside_gpus(request, problem, budget, starts)
  results: list[Result] = []
  for devices in every_part:
    share = dataclasses.replace(budget.fraction(1.0), seconds=share_s)
    try:
      results.append(_placed_on(request, problem, share, devices))
    except TfplaceError:  # it lacks memory, or a kernel
      continue
  rows = [result.placement.devices for result in results]
  left_s = max(later.seconds, budget.left_s)  # Some parts may lack memory.
  left = dataclasses.replace(later, seconds=left_s, started=time.perf_counter())
  starts = np.stack(rows) if rows else None
  best = place_beside_gpus(request, problem, left, starts)
  fastest = min(results, key=lambda r: r.evaluation.step_time_us, default=best)
  if fastest.evaluation.step_time_us >= best.evaluation.step_time_us:
    return best
  end = HistoryPoint(
    best.seconds,
    best.evaluations,
    fastest.evaluation.step_time_us,
    fastest.strategy,
  )
  return dataclasses.replace(
    fastest,
    history=(*best.history, end),
    seconds=best.seconds,
    evaluations=best.evaluations,
    tried=best.tried,
    skipped=best.skipped,
  )


def _placed_on(
  request: Request, problem: Problem, budget: Budget, devices: np.ndarray
) -> Result:
  """Places on some of the devices; returns a result of the whole problem."""
  part = dataclasses.replace(problem, cluster=part_of(problem.cluster, devices))
  check_memory(part)
  result = place_on_parts_first(request, part, budget, None)
  whole = problem.in_order(result.order)
  placement = Placement(whole, devices[result.placement.devices])
  (evaluation,) = Simulator(whole).evaluate([placement])
  return dataclasses.replace(result, placement=placement, evaluation=evaluation)
