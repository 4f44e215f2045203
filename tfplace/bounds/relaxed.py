"""Relaxed problems for lower bounds, forward or backward in time.

Devices of the same kind and overhead are interchangeable. Each relaxation can
only shorten a step, so a bound of the relaxed problem holds for the real one.
Tails are heads of the reversed problem, so one kernel proves both.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from tfplace.bounds.memory import group_bytes
from tfplace.graph.problem import Problem
from tfplace.simulate.jit import Index, helper
from tfplace.simulate.links import best_links


@dataclasses.dataclass(frozen=True, eq=False)
class Relaxed:
  """Device classes, and the least cost of each op and edge on them.

  A class is the set of devices of one kind and one overhead. A transfer between
  two classes takes the best bandwidth and the best latency of any link between
  devices of these classes, on a free channel.

  Attributes:
    problem: the real problem.
    class_of: [num_devices] class of each device.
    size: [num_classes] number of devices.
    time_us: [num_ops, num_classes] op time; inf where the op cannot run.
    gap_us: [num_ops, num_classes] idle time after the op on its device.
    links: [num_classes, num_classes] records, see `links.best_links`.
  """

  problem: Problem
  class_of: np.ndarray
  size: np.ndarray
  time_us: np.ndarray
  gap_us: np.ndarray
  links: np.ndarray

  @property
  def overhead_us(self) -> np.ndarray:
    """[num_classes] idle time after an op of nonzero time."""
    first = np.unique(self.class_of, return_index=True)[1]
    return self.problem.cluster.op_overhead_us[first]

  @property
  def memory_bytes(self) -> np.ndarray:
    """[num_classes] total memory of the devices of each class."""
    memory = self.problem.cluster.memory_bytes
    return np.bincount(self.class_of, memory, len(self.size))


def relax(problem: Problem) -> Relaxed:
  """Groups devices into classes and drops provably infeasible choices."""
  devices = problem.cluster.devices
  numbers: dict[tuple[str, float], int] = {}
  class_of = np.array(
    [
      numbers.setdefault((d.kind, d.op_overhead_us), len(numbers))
      for d in devices
    ]
  )
  _, first = np.unique(class_of, return_index=True)
  allowed = _allowed(problem, class_of, first)[problem.group_of]
  time_us = np.where(allowed, problem.time_us[:, first], np.inf)
  overhead = problem.cluster.op_overhead_us[first]
  return Relaxed(
    problem,
    class_of,
    np.bincount(class_of),
    np.ascontiguousarray(time_us),
    np.where((time_us > 0) & allowed, overhead, 0.0),
    best_links(problem.cluster, class_of),
  )


def _allowed(
  problem: Problem, class_of: np.ndarray, first: np.ndarray
) -> np.ndarray:
  """Returns [num_groups, num_classes] bool choices, by kind and by memory.

  By rule 6 (memory) of docs/simulation.md, a device holds a group's persistent
  bytes throughout and, while an op of nonzero time runs, its inputs, outputs
  and temporary bytes. If no class is left for a group, no placement is feasible
  and memory is ignored.
  """
  allowed = problem.group_allowed[:, first]
  memory = np.full(len(first), -np.inf)
  np.maximum.at(memory, class_of, problem.cluster.memory_bytes)
  # Allow for rounding of the sums.
  fits = allowed & (group_bytes(problem)[:, first] * (1 - 1e-12) <= memory)
  return np.where(fits.any(axis=1, keepdims=True), fits, allowed)


class Flow(NamedTuple):
  """A relaxed problem, forward or backward in time.

  Backward, producers and consumers swap, so the heads of the reversed problem
  are the tails of the real one.

  Attributes:
    order: [num_ops] ops, predecessors first.
    rank: [num_ops] index of each op in `order`.
    offsets: [num_ops + 1] offsets into the incoming edges of each op.
    before: [num_edges] op at the other end of each edge.
    num_bytes: [num_edges] size of each edge.
    gap_us: [num_edges, num_classes] idle time of the edge's producer.
    time_us: [num_ops, num_classes]; inf where the op cannot run.
    work_us: [num_ops, num_classes] time and gap; inf where it cannot run.
    links: [num_classes, num_classes] records, by the class at the other end.
    group_of: [num_ops] group of each op.
    spare_us: [num_ops, num_classes] at most 0; added to serial work before an
      op for the gap that may lie outside it.
  """

  order: np.ndarray
  rank: np.ndarray
  offsets: np.ndarray
  before: np.ndarray
  num_bytes: np.ndarray
  gap_us: np.ndarray
  time_us: np.ndarray
  work_us: np.ndarray
  links: np.ndarray
  group_of: np.ndarray
  spare_us: np.ndarray


def flow_of(relaxed: Relaxed, backward: bool = False) -> Flow:
  """Packs a relaxed problem for the kernels."""
  graph = relaxed.problem.graph
  offsets, edges = graph.out_csr if backward else graph.in_csr
  ends = graph.edge_dst if backward else graph.edge_src
  order, rank = graph.topological_order, graph.topological_position
  links, spare = relaxed.links, np.zeros_like(relaxed.gap_us)
  if backward:
    order, rank = np.ascontiguousarray(order[::-1]), len(order) - 1 - rank
    links, spare = links.T.copy(), relaxed.gap_us - relaxed.overhead_us
  return Flow(
    order,
    rank,
    offsets,
    ends[edges],
    graph.edge_bytes[edges],
    relaxed.gap_us[graph.edge_src[edges]],
    relaxed.time_us,
    relaxed.time_us + relaxed.gap_us,
    links,
    relaxed.problem.group_of,
    spare,
  )


@helper
def least_end(flow: Flow, head: np.ndarray, op: Index) -> float:
  """Returns the earliest possible end of `op` on any class."""
  best = np.inf
  for c in range(head.shape[1]):
    best = min(best, head[op, c] + flow.time_us[op, c])
  return best
