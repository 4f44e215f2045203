"""CPUs beside GPUs, which compute only if that gains enough.

Costs of a CPU are the least certain, and its cores also launch the ops of the
GPUs and prepare inputs.
"""

import dataclasses
import math
import re

import numpy as np

from tfplace.bounds import check_memory
from tfplace.errors import InfeasibleError
from tfplace.graph.budget import Budget
from tfplace.graph.evaluation import Result
from tfplace.graph.op_graph import ESTIMATED
from tfplace.graph.phases import updates, variable_ops
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.graph.quantities import format_us
from tfplace.placers.auto import consolidated
from tfplace.placers.groups import GroupGraph
from tfplace.placers.order_choice import place_in_order
from tfplace.placers.requests import Request, followed, with_effort
from tfplace.placers.search.annealing import AnnealingPlacer

LEAST_GAIN = 0.05  # Share of the step time that work on the CPU must save.
# Shares of the budget for a search without CPUs, and for one with them that
# goes on from it; the rest is for the better of both. Our choice: the last 20%
# of a search gained 0 to 2% on ten steps, less than the 5% that are asked for.
_FIRST_SHARE, _WIDE_SHARE = 0.6, 0.1
# Seconds per op without which CPUs do not compute, unless memory may be short
# or they do in a start.
_CPUS_S_PER_OP = 5e-4
# Share of a continued `auto` that is not kept for consolidation; our choice.
_SEARCH_SHARE = 0.9

# A training step rarely holds half of its tensors at once.
_AT_ONCE = 2.0
# Ops that read or write a variable where it is.
_ACCESS = re.compile(r"ReadVariable|Assign|Resource|Apply|Scatter|Gather")


def gpus_compute(problem: Problem) -> Problem | None:
  """Returns the problem whose CPUs take no work that a GPU could do.

  CPUs keep ops without another kernel, ops that take no time, variables with
  the ops that read or write them, and updates.

  Returns:
    None if that changes nothing, such as in a cluster of CPUs.
  """
  graph, devices = problem.graph, problem.cluster.devices
  is_cpu = np.array([device.is_cpu for device in devices])
  if is_cpu.all() or not is_cpu.any() or problem.off_cpu is not None:
    return None
  access = np.array([bool(_ACCESS.match(name)) for name in graph.types], bool)
  at_variable = variable_ops(graph) & access
  at_variable |= graph.persistent_bytes > 0
  takes_time = (np.nan_to_num(problem.time_us)[:, ~is_cpu] > 0).any(axis=1)
  compute = takes_time & ~at_variable & ~updates(graph)
  # A group with an op that only a CPU runs stays there.
  able = np.any(problem.group_allowed[:, ~is_cpu], axis=1)
  off_cpu = compute & np.take(able, problem.group_of)
  if not (off_cpu & problem.allowed[:, is_cpu].any(axis=1)).any():
    return None
  return problem.without_cpus(off_cpu)


def place_beside_gpus(
  request: Request, problem: Problem, budget: Budget, starts: np.ndarray | None
) -> Result:
  """Finds a placement in which CPUs compute only if that gains `LEAST_GAIN`.

  In a short search, they do not. Strategies that do not search place the
  problem as it is.

  Args:
    budget: budget of all searches together.

  Returns:
    The result; `all_on_gpus_us` is set if CPUs compute.

  Raises:
    InfeasibleError: nothing fits.
  """
  narrow = gpus_compute(problem) if request.searches else None
  if narrow is None:
    return place_in_order(request, problem, budget, starts)
  if _may_be_short(problem):  # The first search could end without a placement.
    result = place_in_order(request, problem, budget, starts)
    return dataclasses.replace(result, all_on_gpus_us=math.inf)
  is_short = (
    budget.is_timed
    and budget.seconds < _CPUS_S_PER_OP * problem.graph.num_ops
    and not _may_be_short(problem, at_once=1.0)
    and (starts is None or _allows(narrow, starts))
  )
  try:
    check_memory(narrow)
    share = budget.fraction(1.0 if is_short else _FIRST_SHARE)
    first = place_in_order(request, narrow, share, starts)
  except InfeasibleError:
    share = budget.fraction(1 - _FIRST_SHARE)
    share = dataclasses.replace(share, seconds=budget.left_s)
    result = place_in_order(request, problem, share, starts)
    return dataclasses.replace(result, all_on_gpus_us=math.inf)
  if is_short or first.evaluation.is_within(budget.gap):
    return _with_problem(first, problem)
  narrow, wide = narrow.in_order(first.order), problem.in_order(first.order)
  row = first.placement.devices[np.newaxis]
  rows = row if starts is None else np.concatenate((row, starts))
  on_all = _resumed(request, wide, budget.fraction(_WIDE_SHARE), rows)
  gpus_us, all_us = (r.evaluation.step_time_us for r in (first, on_all))
  gains = all_us <= (1 - LEAST_GAIN) * gpus_us
  result = followed(first, on_all) if gains else with_effort(first, on_all)
  left = budget.minus(result.evaluations)
  if not left.is_over:
    rest = wide if gains else narrow
    row = result.placement.devices[np.newaxis]
    result = followed(result, _resumed(request, rest, left, row))
  return dataclasses.replace(
    _with_problem(result, problem),
    strategy=first.strategy,
    tried=_with_problem(first, problem).tried,
    skipped=first.skipped,
    other_order_us=first.other_order_us,
    all_on_gpus_us=gpus_us if gains else None,
  )


def _resumed(
  request: Request, problem: Problem, budget: Budget, starts: np.ndarray
) -> Result:
  """Goes on from starts, by annealing and, for `auto`, consolidation."""
  placer = AnnealingPlacer(starts=(), start=starts)
  judge = request.judge(problem)
  is_auto = request.strategy == "auto"
  share = budget.fraction(_SEARCH_SHARE if is_auto else 1.0)
  result = placer.place(problem, judge, share, request.seed)
  if not is_auto:
    return result
  return consolidated(
    result,
    groups=GroupGraph.of(problem),
    evaluator=judge,
    budget=budget.minus(result.evaluations),
    tolerance=request.tolerance,
  )


def _allows(problem: Problem, starts: np.ndarray) -> bool:
  ops = np.arange(problem.graph.num_ops)
  return all(problem.allowed[ops, devices].all() for devices in starts)


def _may_be_short(problem: Problem, at_once: float = _AT_ONCE) -> bool:
  """Returns whether the tensors of a step may not fit on the GPUs at once."""
  graph = problem.graph
  held = float(graph.persistent_bytes.sum() + graph.op_output_bytes.sum())
  gpus = [d for d in problem.cluster.devices if not d.is_cpu]
  return held > at_once * sum(device.memory_bytes for device in gpus)


def _with_problem(result: Result, problem: Problem) -> Result:
  """Returns a result as one of the whole problem in the order of the result."""
  ordered = problem.in_order(result.order)
  return dataclasses.replace(
    result,
    placement=Placement(ordered, result.placement.devices),
    tried=tuple(_with_problem(each, problem) for each in result.tried),
  )


def cpu_note(result: Result) -> str:
  """Says what CPUs compute for and how sure that is; "" if GPUs do all work.

  Part of a sentence.
  """
  problem, devices = result.placement.problem, result.placement.devices
  is_cpu = np.array([device.is_cpu for device in problem.cluster.devices])
  took_us = problem.time_us[np.arange(len(devices)), devices]
  working = is_cpu & (np.bincount(devices, took_us, len(is_cpu)) > 0)
  if is_cpu.all() or not working.any():
    return ""
  parts = []
  gpus_us = result.all_on_gpus_us
  if gpus_us is not None and math.isinf(gpus_us):
    parts.append(
      "CPUs may compute, too, since memory of other devices is or may be short"
    )
  elif gpus_us is not None:
    gain = gpus_us / result.evaluation.step_time_us - 1
    parts.append(
      f"CPUs compute, too, which gains {gain:.0%} over"
      f" {format_us(gpus_us)} with all computation on other devices"
    )
  used = [problem.cluster.devices[i] for i in np.flatnonzero(working)]
  hosts = {d.extra.get("hardware", {}).get("model") for d in used} - {None}
  if hosts and "sources" in problem.cluster.extra:  # Published, not measured.
    models = ", ".join(sorted(hosts))
    parts.append(f"the speed of the CPU is assumed: {models}")
  estimated = [
    op
    for op, extra in problem.graph.op_extra.items()
    if working[devices[op]]
    and problem.cluster.devices[devices[op]].kind in extra.get(ESTIMATED, ())
  ]
  if estimated:
    parts.append(
      f"{len(estimated)} ops were not timed on CPUs: their"
      f" {format_us(took_us[estimated].sum())} are estimates"
    )
  return "; ".join(parts)
