"""Parts of a cluster: hosts, GPUs of each kind, and half of equal GPUs.

More devices mean a larger search space, in which the same budget may find a
slower placement, and list scheduling does not see that a network is too slow.
"""

import contextlib
import dataclasses
import itertools
import math

import numpy as np

from tfplace.bounds import check_memory
from tfplace.errors import TfplaceError
from tfplace.graph.budget import Budget
from tfplace.graph.cluster import Cluster
from tfplace.graph.evaluation import Result
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.placers import registry
from tfplace.placers.beside_gpus import gpus_compute, place_beside_gpus
from tfplace.placers.requests import Request, followed, with_effort
from tfplace.placers.tracker import Tracker
from tfplace.simulate import Simulator

_RULES = ("m_etf", "heft")
# Share of the budget for these rules, and seconds per op of one (measured).
_RULES_SHARE, _RULE_S_PER_OP = 0.1, 2e-5
# Share of the step time by which a part must lead to be a start; by trial.
_LEAD = 0.05


def parts(cluster: Cluster) -> list[np.ndarray]:
  """Returns the devices of each part, to be divided further.

  Parts are a host, the GPUs of a kind, or the first half of GPUs of one kind,
  with the CPUs of their hosts. Of parts with devices of the same kinds and
  sizes in as many hosts, only the first counts.
  """
  devices, hosts, is_cpu = cluster.devices, cluster.hosts, cluster.is_cpu
  computes = is_cpu if is_cpu.all() else ~is_cpu
  kinds = np.array([device.kind for device in devices])
  masks = [hosts == host for host in np.unique(hosts)]
  masks += [kinds == kind for kind in dict.fromkeys(kinds[computes])]
  if len(set(kinds[computes])) == 1:
    masks.append(np.cumsum(computes) <= (computes.sum() + 1) // 2)
  found: dict[object, np.ndarray] = {}
  for mask in masks:
    chosen = mask & computes
    beside = is_cpu & np.isin(hosts, hosts[chosen])
    part = np.flatnonzero(chosen | beside)
    sort = tuple((devices[i].kind, devices[i].memory_bytes) for i in part)
    if 0 < len(part) < len(devices):
      found.setdefault((sort, len(set(hosts[part]))), part)
  return list(found.values())


def part_of(cluster: Cluster, devices: np.ndarray) -> Cluster:
  """Returns the cluster of some of the devices, and the links between them."""
  kept = tuple(cluster.devices[i] for i in devices)
  names = {device.name for device in kept}
  links = tuple(link for link in cluster.links if {link.src, link.dst} <= names)
  return dataclasses.replace(cluster, devices=kept, links=links)


def place_also_on_parts(
  request: Request, problem: Problem, budget: Budget
) -> Result:
  """Places a problem; the search of a whole step may start on a part.

  With a budget of evaluations, each part that may be faster is searched, too,
  for as many as the whole cluster, and the result is never slower than that of
  a part.

  Raises:
    InfeasibleError: nothing found fits in memory.
  """
  chosen = parts(problem.cluster)
  if not chosen or request.evaluator is not None:
    return place_beside_gpus(request, problem, budget, None)
  starts, first = None, _by_rules(request, problem, budget)
  left = budget.minus(first.evaluations if first else 0)
  if first is not None:
    starts = first.placement.devices[np.newaxis]
  result = place_beside_gpus(request, problem, left, starts)
  if first is not None:
    result = followed(first, result)
  if budget.is_timed:
    return result
  for devices in chosen:
    with contextlib.suppress(TfplaceError):  # It lacks memory, or a kernel.
      part = _on_part(problem, devices)
      if part.lower_bound_us >= result.evaluation.step_time_us:
        continue
      check_memory(part)
      found = place_also_on_parts(request, part, budget)
      result = _faster(result, _on_all(found, problem, devices))
  return result


def _by_rules(
  request: Request, problem: Problem, budget: Budget
) -> Result | None:
  """Returns the best placement of m-ETF and HEFT on a part.

  Microbatched steps have rules of their own, which leave devices out.

  Returns:
    The result; None if it is not clearly faster than theirs on all devices, or
    in a short search.
  """
  chosen, share = parts(problem.cluster), budget.fraction(_RULES_SHARE)
  runs = len(_RULES) * (1 + len(chosen))
  is_short = share.seconds < _RULE_S_PER_OP * problem.graph.num_ops * runs
  if share.max_evaluations is not None:
    is_short = share.max_evaluations < runs
  if not request.searches or problem.graph.num_microbatches > 1 or is_short:
    return None
  judge = Simulator(problem)
  on_all = Tracker("all devices", problem, judge, share)
  on_part = Tracker("part", problem, judge, share)
  everything = np.arange(problem.cluster.num_devices)
  for devices, strategy in itertools.product((everything, *chosen), _RULES):
    with contextlib.suppress(TfplaceError):  # It lacks memory, or a kernel.
      part = _on_part(problem, devices)
      part = gpus_compute(part) or part
      placer = registry.get_placer(strategy)
      found = placer.place(part, Simulator(part), share, request.seed)
      tracker = on_all if devices is everything else on_part
      tracker.offer(devices[found.placement.devices])
  if on_part.best is None:
    return None
  most_us = math.inf
  if on_all.best is not None:
    most_us = (1 - _LEAD) * on_all.best[1].step_time_us
  found_us = on_part.best[1].step_time_us
  return on_part.result() if found_us <= most_us else None


def _on_part(problem: Problem, devices: np.ndarray) -> Problem:
  cluster = part_of(problem.cluster, devices)
  return dataclasses.replace(problem, cluster=cluster)


def _faster(first: Result, last: Result) -> Result:
  """Returns the faster of consecutive results, the later one of equals."""
  is_slower = last.evaluation.step_time_us > first.evaluation.step_time_us
  return with_effort(first, last) if is_slower else followed(first, last)


def _on_all(result: Result, problem: Problem, devices: np.ndarray) -> Result:
  """Returns a result on some of the devices as one of the whole problem."""
  whole = problem.in_order(result.order)
  placement = Placement(whole, devices[result.placement.devices])
  (evaluation,) = Simulator(whole).evaluate([placement])
  return dataclasses.replace(result, placement=placement, evaluation=evaluation)
