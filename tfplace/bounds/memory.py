"""What memory every placement lacks, if any: proofs, without a search.

Rule 6 of the formats, of which two things hold whatever the placement and the
order of ops: a device holds the persistent bytes of its ops for the whole step,
and, while an op that takes time runs, that op's inputs, outputs and temporary
memory as well. What a step holds besides is left out.
"""

import numpy as np

from tfplace.core.constraints import exact_bytes, format_bytes
from tfplace.core.problem import Problem
from tfplace.errors import InfeasibleError
from tfplace.simulate.links import serial_us

_ROUNDING = 1e-9  # share of a sum of bytes that doubles may lose


def check_memory(problem: Problem) -> None:
  """Refuses a problem of which it is proven that no placement fits.

  Raises:
    InfeasibleError: an op, or a colocation group, needs more memory than any
      device that runs it has, or all ops together hold more for the whole step
      than their devices have together; says how much at least.
  """
  _check_groups(problem)
  _check_sums(problem)


def _group_bytes(problem: Problem) -> np.ndarray:
  """[num_groups, num_devices] bytes that each group holds at once, at least,
  on each device; infinite where it cannot run."""
  graph, group_of = problem.graph, problem.group_of
  count = graph.num_ops
  producer = np.repeat(np.arange(count), np.diff(graph.output_offsets))
  running = graph.temp_bytes + np.bincount(producer, graph.output_bytes, count)
  running += np.bincount(graph.edge_dst, graph.edge_bytes, count)
  most = np.zeros((problem.num_groups, problem.cluster.num_devices))
  # Added to a late time, a very short one is lost.
  takes_time = np.nan_to_num(problem.time_us) > 1e-12 * serial_us(problem)
  np.maximum.at(most, group_of, np.where(takes_time, running[:, None], 0.0))
  held = np.bincount(group_of, graph.persistent_bytes, problem.num_groups)
  return np.where(problem.group_allowed, most + held[:, None], np.inf)


def _check_groups(problem: Problem) -> None:
  """Each group against the device that lacks the least for it."""
  need, memory = _group_bytes(problem), problem.cluster.memory_bytes
  fits = need * (1 - _ROUNDING) <= memory
  stuck = np.flatnonzero(~(fits & problem.group_allowed).any(axis=1))
  if not len(stuck):
    return
  group = int(stuck[0])
  able = np.flatnonzero(problem.group_allowed[group])
  device = int(able[(need[group, able] - memory[able]).argmin()])
  lacking = float(need[group, device] - memory[device])
  graph, about = problem.graph, problem.cluster.devices[device]
  op = int(np.flatnonzero(problem.group_of == group)[0])
  what = f"op {graph.names[op]!r}"
  if graph.colocation[op] >= 0:
    name = graph.colocation_names[graph.colocation[op]]
    what = f"colocation group {name!r} ({what} and others)"
  held = graph.persistent_bytes[problem.group_of == group].sum()
  smaller = "a smaller batch or " if need[group, device] > held else ""
  raise InfeasibleError(
    f"no placement of graph {graph.name!r} fits in memory: {what} needs"
    f" {format_bytes(need[group, device])} at once and no device that runs it"
    f" has as much; the nearest, {about.name}, has"
    f" {format_bytes(about.memory_bytes)}, {exact_bytes(lacking)} too few;"
    f" {smaller}a device with more memory would help",
    op=graph.names[op],
    device=about.name,
    num_bytes=lacking,
  )


def _check_sums(problem: Problem) -> None:
  """Each set of devices against the groups that run nowhere else."""
  allowed = problem.group_allowed
  graph, memory = problem.graph, problem.cluster.memory_bytes
  held = np.bincount(
    problem.group_of, graph.persistent_bytes, problem.num_groups
  )
  every = np.ones((1, len(memory)), bool)
  for devices in np.concatenate((every, problem.allowed_sets[0][::-1])):
    inside = ~(allowed & ~devices).any(axis=1)
    total, room = float(held[inside].sum()), float(memory[devices].sum())
    if total - room <= _ROUNDING * total:
      continue
    names = [d.name for d in problem.cluster.devices]
    where = ", ".join(np.array(names)[devices])
    have = "have" if devices.sum() > 1 else "has"
    who = "its ops hold" if inside.all() else "ops that run nowhere else hold"
    raise InfeasibleError(
      f"no placement of graph {graph.name!r} fits in memory: {who}"
      f" {format_bytes(total)} for the whole step, and {where} {have}"
      f" {format_bytes(room)} in all, {exact_bytes(total - room)} too few;"
      " more devices, or more memory, would help",
      num_bytes=total - room,
    )
