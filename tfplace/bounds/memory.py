"""Proofs that no placement fits in memory, without a search.

Two parts of rule 6 (memory) of docs/simulation.md hold for every placement and
order: a device holds the persistent bytes of its ops for the whole step and,
while an op of nonzero time runs, its inputs, outputs and temporary memory. All
other memory is ignored.
"""

import numpy as np

from tfplace.errors import InfeasibleError
from tfplace.graph.problem import Problem
from tfplace.graph.quantities import exact_bytes, format_bytes
from tfplace.simulate.links import serial_us

_ROUNDING = 1e-9  # Relative error that a sum of bytes may have.


def check_memory(problem: Problem) -> None:
  """Rejects a problem for which provably no placement fits in memory.

  Raises:
    InfeasibleError: an op or colocation group needs more memory than any device
      that runs it has, or all persistent bytes exceed the devices' total
      memory; gives the least shortfall.
  """
  _check_groups(problem)
  _check_sums(problem)


def group_bytes(problem: Problem) -> np.ndarray:
  """Returns [num_groups, num_devices] least bytes that a group holds at once.

  The value is infinite where the group cannot run.
  """
  graph, group_of = problem.graph, problem.group_of
  count = graph.num_ops
  producer = np.repeat(np.arange(count), np.diff(graph.output_offsets))
  running = graph.temp_bytes + np.bincount(producer, graph.output_bytes, count)
  running += np.bincount(graph.edge_dst, graph.edge_bytes, count)
  most = np.zeros((problem.num_groups, problem.cluster.num_devices))
  # Adding a very short time to a late one may lose it to rounding.
  takes_time = np.nan_to_num(problem.time_us) > 1e-12 * serial_us(problem)
  np.maximum.at(most, group_of, np.where(takes_time, running[:, None], 0.0))
  held = problem.group_persistent_bytes[:, None]
  return np.where(problem.group_allowed, most + held, np.inf)


def _check_groups(problem: Problem) -> None:
  """Checks each group against its device with the smallest shortfall."""
  need, memory = group_bytes(problem), problem.cluster.memory_bytes
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
  held = problem.group_persistent_bytes[group]
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
  """Checks each set of devices against the groups confined to it."""
  allowed = problem.group_allowed
  memory, held = problem.cluster.memory_bytes, problem.group_persistent_bytes
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
      f"no placement of graph {problem.graph.name!r} fits in memory: {who}"
      f" {format_bytes(total)} for the whole step, and {where} {have}"
      f" {format_bytes(room)} in all, {exact_bytes(total - room)} too few;"
      " more devices, or more memory, would help",
      num_bytes=total - room,
    )
