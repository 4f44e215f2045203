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
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.graph.budget import Budget
from tfplace.graph.cluster import MESSAGE_COSTS, Cluster
from tfplace.graph.evaluation import GIVEN, Result
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.placers import registry
from tfplace.placers.beside_gpus import gpus_compute, place_beside_gpus
from tfplace.placers.requests import Request, followed, with_effort
from tfplace.simulate import Simulator

_RULES = ("m_etf", "heft")
# Share of the budget for these rules, seconds per op of one (measured), and
# evaluations.
_RULES_SHARE, _RULE_S_PER_OP, _RULE_EVALUATIONS = 0.1, 2e-5, 2
# Share of the step time by which a part must lead to be a start; by trial.
_LEAD = 0.05


def parts(cluster: Cluster) -> list[np.ndarray]:
  """Returns the devices of each part, to be divided further.

  Parts are a host, the GPUs of a kind, or the first half of GPUs of one kind,
  with the CPUs of their hosts. Of equal parts, only the first counts.
  """
  hosts, is_cpu = cluster.hosts, cluster.is_cpu
  computes = is_cpu if is_cpu.all() else ~is_cpu
  kinds = np.array([device.kind for device in cluster.devices])
  masks = [hosts == host for host in np.unique(hosts)]
  masks += [kinds == kind for kind in dict.fromkeys(kinds[computes])]
  if len(set(kinds[computes])) == 1:
    masks.append(np.cumsum(computes) <= (computes.sum() + 1) // 2)
  found: dict[object, np.ndarray] = {}
  for mask in masks:
    chosen = mask & computes
    beside = is_cpu & np.isin(hosts, hosts[chosen])
    part = np.flatnonzero(chosen | beside)
    if 0 < len(part) < cluster.num_devices:
      found.setdefault(_described(part_of(cluster, part)), part)
  return list(found.values())


def _described(cluster: Cluster) -> tuple[object, ...]:
  """Returns all that placements depend on but names."""
  devices = tuple(
    (device.kind, device.memory_bytes, device.op_overhead_us)
    for device in cluster.devices
  )
  fields = ("hosts", "channel", "bandwidth", "latency_us", "gap_us")
  arrays = [getattr(cluster, name) for name in (*fields, *MESSAGE_COSTS)]
  return devices, *(array.tobytes() for array in arrays)


def part_of(cluster: Cluster, devices: np.ndarray) -> Cluster:
  """Returns the cluster of some of the devices, and the links between them."""
  kept = tuple(cluster.devices[i] for i in devices)
  names = {device.name for device in kept}
  links = tuple(link for link in cluster.links if {link.src, link.dst} <= names)
  return dataclasses.replace(cluster, devices=kept, links=links)


def place_also_on_parts(
  request: Request,
  problem: Problem,
  budget: Budget,
  known: dict[tuple[str, ...], Result] | None = None,
) -> Result:
  """Places a problem; the search of a whole step may start on a part.

  With a budget of evaluations, each part that may be faster is searched, too,
  for as many as the whole cluster, and the result is never slower than that of
  a part.

  Args:
    known: results by the names of devices, to which those of parts are added.

  Raises:
    InfeasibleError: nothing found fits in memory.
  """
  chosen = parts(problem.cluster)
  if not chosen or request.evaluator is not None:
    return place_beside_gpus(request, problem, budget, None)
  best = failure = None
  known = {} if known is None else known
  try:
    best = _placed(request, problem, budget, chosen)
  except InfeasibleError as error:
    failure = error
  for devices in () if budget.is_timed else chosen:
    with contextlib.suppress(TfplaceError):  # It lacks memory, or a kernel.
      part = _on_part(problem, devices)
      if best and part.lower_bound_us >= best.evaluation.step_time_us:
        continue
      check_memory(part)
      names = tuple(device.name for device in part.cluster.devices)
      if names not in known:
        known[names] = place_also_on_parts(request, part, budget, known)
      found = _on_all(known[names], problem, devices)
      best = found if best is None else _better(best, found)
  if best is None:
    raise failure or InfeasibleError("nothing fits")
  return best


def _placed(
  request: Request, problem: Problem, budget: Budget, chosen: list[np.ndarray]
) -> Result:
  """Places a problem, perhaps starting on one of the chosen parts."""
  start, tried = _start(request, problem, budget, chosen)
  left = budget.minus(sum(result.evaluations for result in tried))
  result = place_beside_gpus(request, problem, left, start)
  if start is not None:  # The user did not give it.
    others = tuple(one for one in result.tried if one.strategy != GIVEN)
    result = dataclasses.replace(result, tried=others)
  return with_effort(result, *tried)


def _start(
  request: Request, problem: Problem, budget: Budget, chosen: list[np.ndarray]
) -> tuple[np.ndarray | None, list[Result]]:
  """Returns where m-ETF and HEFT are clearly faster on a part, and all results.

  Microbatched steps have rules of their own, which leave devices out.

  Returns:
    [1, num_ops] devices, or None, also in a short search; and the results.
  """
  share, runs = budget.fraction(_RULES_SHARE), len(_RULES) * (1 + len(chosen))
  is_short = share.seconds < _RULE_S_PER_OP * problem.graph.num_ops * runs
  if share.max_evaluations is not None:
    is_short = share.max_evaluations < _RULE_EVALUATIONS * runs
  if not request.searches or problem.graph.num_microbatches > 1 or is_short:
    return None, []
  problem = (gpus_compute(problem) or problem).in_order(request.order)
  on_all, on_parts = [], []
  for devices, strategy in itertools.product((None, *chosen), _RULES):
    if share.left_s <= 0:
      break
    with contextlib.suppress(TfplaceError):  # It lacks memory, or a kernel.
      part = problem if devices is None else _on_part(problem, devices)
      placer = registry.get_placer(strategy)
      found = placer.place(part, Simulator(part), share, request.seed)
      if devices is None:
        on_all.append(found)
      else:
        on_parts.append(_on_all(found, problem, devices))
  least = [
    min((r.evaluation.step_time_us for r in results), default=math.inf)
    for results in (on_all, on_parts)
  ]
  start = None
  if least[1] < (1 - _LEAD) * least[0]:
    best = min(on_parts, key=lambda result: result.evaluation.step_time_us)
    start = best.placement.devices[np.newaxis]
  return start, on_all + on_parts


def _on_part(problem: Problem, devices: np.ndarray) -> Problem:
  cluster = part_of(problem.cluster, devices)
  return dataclasses.replace(problem, cluster=cluster)


def _on_all(result: Result, problem: Problem, devices: np.ndarray) -> Result:
  """Returns a result on some of the devices as one of the whole problem."""
  whole = problem.in_order(result.order)
  placement = Placement(whole, devices[result.placement.devices])
  (evaluation,) = Simulator(whole).evaluate([placement])
  tried = tuple(_on_all(one, problem, devices) for one in result.tried)
  return dataclasses.replace(
    result, placement=placement, evaluation=evaluation, tried=tried
  )


def _better(first: Result, last: Result) -> Result:
  """Returns the faster of consecutive results, with what both know."""
  best, other = followed(first, last), first
  if last.evaluation.step_time_us > first.evaluation.step_time_us:
    best, other = with_effort(first, last), last
  other_us = other.evaluation.step_time_us
  gpus_us, order_us = best.all_on_gpus_us, best.other_order_us
  if gpus_us is not None:
    known_us = other.all_on_gpus_us
    gpus_us = min(gpus_us, other_us if known_us is None else known_us)
  if order_us is not None and other.other_order_us is not None:
    is_alike = other.order == best.order
    order_us = min(order_us, other.other_order_us if is_alike else other_us)
  return dataclasses.replace(
    best, all_on_gpus_us=gpus_us, other_order_us=order_us
  )
