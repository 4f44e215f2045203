"""CPUs beside GPUs, which compute only if that gains enough.

Costs of a CPU are the least certain, and its cores also launch the ops of the
GPUs and prepare inputs.
"""

import dataclasses
import math
import re

import numpy as np

from tfplace.bounds import check_memory
from tfplace.core.budget import Budget
from tfplace.core.evaluation import Result
from tfplace.core.phases import updates, variable_ops
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.units import format_us
from tfplace.errors import InfeasibleError
from tfplace.placers.order_choice import Place, followed

LEAST_GAIN = 0.05  # Share of the step time that work on the CPU must save.
# Share of the budget for the search without CPUs. A quarter of the rest each is
# for continuations with and without them, then the better one gets what is
# left. Chosen by trial.
_FIRST_SHARE = 0.6

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
  return dataclasses.replace(problem, off_cpu=off_cpu)


def place_beside_gpus(
  problem: Problem,
  budget: Budget,
  start: np.ndarray | None,
  place: Place,
  go_on: Place,
) -> Result:
  """Finds a placement in which CPUs compute only if that gains `LEAST_GAIN`.

  Args:
    problem: problem to place.
    budget: budget of all searches together.
    start: [num_starts, num_ops] devices to start from, or None.
    place: places a problem; may choose its order.
    go_on: continues from a start in the order of the problem.

  Returns:
    The result; `all_on_gpus_us` is set if CPUs compute.

  Raises:
    InfeasibleError: nothing fits.
  """
  narrow = gpus_compute(problem)
  if narrow is None:
    return place(problem, budget, start)
  if _may_be_short(problem):  # The first search could end without a placement.
    result = place(problem, budget, start)
    return dataclasses.replace(result, all_on_gpus_us=math.inf)
  try:
    check_memory(narrow)
    first = place(narrow, budget.fraction(_FIRST_SHARE), start)
  except InfeasibleError:
    share = budget.fraction(1 - _FIRST_SHARE)
    share = dataclasses.replace(share, seconds=budget.left_s)
    result = place(problem, share, start)
    return dataclasses.replace(result, all_on_gpus_us=math.inf)
  if first.evaluation.is_within(budget.gap):
    return _of(problem, first)
  # Both continue from the same placement, with the same budget each.
  order, row = first.order, first.placement.devices[np.newaxis]
  both = (1 - _FIRST_SHARE) / 4
  narrow, problem = narrow.in_order(order), problem.in_order(order)
  rest = followed(first, go_on(narrow, budget.fraction(both), row))
  row = row if start is None else np.concatenate((row, start))
  wide = followed(first, go_on(problem, budget.fraction(both), row))
  gpus_us, wide_us = (r.evaluation.step_time_us for r in (rest, wide))
  known, other, all_on_gpus_us = rest, wide, None
  if wide_us <= (1 - LEAST_GAIN) * gpus_us:
    known, other, all_on_gpus_us = wide, rest, gpus_us
  spent = known.evaluations + other.evaluations - first.evaluations
  left = budget.minus(spent)
  seconds = known.seconds + other.seconds - first.seconds
  if not left.is_over:
    row = known.placement.devices[np.newaxis]
    last = go_on(narrow if known is rest else problem, left, row)
    spent, seconds = spent + last.evaluations, seconds + last.seconds
    known = followed(known, last)
  return dataclasses.replace(
    _of(problem, known),
    strategy=first.strategy,
    seconds=seconds,
    evaluations=spent,
    tried=_of(problem, first).tried,
    skipped=first.skipped,
    other_order_us=first.other_order_us,
    all_on_gpus_us=all_on_gpus_us,
  )


def _may_be_short(problem: Problem) -> bool:
  """Returns whether the tensors of a step may not fit on the GPUs at once."""
  graph = problem.graph
  held = float(graph.persistent_bytes.sum() + graph.op_output_bytes.sum())
  gpus = [d for d in problem.cluster.devices if not d.is_cpu]
  return held > _AT_ONCE * sum(device.memory_bytes for device in gpus)


def _of(problem: Problem, result: Result) -> Result:
  """Returns a result as one of the whole problem in the order of the result."""
  return dataclasses.replace(
    result,
    placement=Placement(
      problem.in_order(result.order), result.placement.devices
    ),
    tried=tuple(_of(problem, each) for each in result.tried),
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
  return "; ".join(parts)
