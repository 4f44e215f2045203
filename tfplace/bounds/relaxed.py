"""A problem as lower bounds see it, in the direction of time or against it.

Devices of a kind stand for each other. Every relaxation here can only make a
step shorter, so what is proved of the relaxed problem holds for the real one.
Tails are the heads of the reversed problem, so one kernel proves both.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from tfplace.core.problem import Problem
from tfplace.simulate.jit import allocating_helper
from tfplace.simulate.links import Links, best_links, reversed_links


@dataclasses.dataclass(frozen=True, eq=False)
class Relaxed:
  """Device classes, and the least that each op and each edge costs on them.

  A class is the devices of one kind and one overhead. A transfer between two
  classes takes the best bandwidth and the best latency of any link from one
  to another device of them, on a free channel.

  Attributes:
    problem: the real one.
    class_of: [num_devices] class of each device.
    size: [num_classes] number of devices.
    time_us: [num_ops, num_classes] op time; inf where the op cannot be there.
    gap_us: [num_ops, num_classes] idle time that follows it on its device.
    links: between classes.
  """

  problem: Problem
  class_of: np.ndarray
  size: np.ndarray
  time_us: np.ndarray
  gap_us: np.ndarray
  links: Links

  @property
  def overhead_us(self) -> np.ndarray:
    """[num_classes] idle time after an op of nonzero time."""
    first = np.unique(self.class_of, return_index=True)[1]
    return self.problem.cluster.op_overhead_us[first]

  @property
  def memory_bytes(self) -> np.ndarray:
    """[num_classes] of all its devices together."""
    memory = self.problem.cluster.memory_bytes
    return np.bincount(self.class_of, memory, len(self.size))


def relax(problem: Problem) -> Relaxed:
  """Groups the devices and drops what cannot be in any feasible placement."""
  devices = problem.cluster.devices
  numbers: dict[tuple[str, float], int] = {}
  class_of = np.array(
    [
      numbers.setdefault((d.kind, d.op_overhead_us), len(numbers))
      for d in devices
    ]
  )
  _, first = np.unique(class_of, return_index=True)
  allowed = _allowed(problem, class_of)[problem.group_of]
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


def _allowed(problem: Problem, class_of: np.ndarray) -> np.ndarray:
  """[num_groups, num_classes] bool: by kind, and by what the group holds.

  By rule 6 a device holds a group's persistent bytes throughout, and while an
  op of nonzero time runs, its inputs, outputs and temporary bytes as well.
  Where that leaves a group no class, there is no feasible placement to bound,
  and memory is ignored.
  """
  num_classes = int(class_of.max()) + 1
  first = np.unique(class_of, return_index=True)[1]
  allowed = problem.group_allowed[:, first]
  memory = np.full(num_classes, -np.inf)
  np.maximum.at(memory, class_of, problem.cluster.memory_bytes)
  fits = allowed & (_least_bytes(problem, first) <= memory)
  return np.where(fits.any(axis=1, keepdims=True), fits, allowed)


def _least_bytes(problem: Problem, first: np.ndarray) -> np.ndarray:
  """[num_groups, num_classes] bytes that a device with the group must have."""
  graph, groups = problem.graph, problem.num_groups
  kept = np.bincount(problem.group_of, graph.persistent_bytes, groups)
  inputs = np.bincount(graph.edge_dst, graph.edge_bytes, graph.num_ops)
  running = graph.temp_bytes + graph.op_output_bytes + inputs
  result = np.zeros((groups, len(first)))
  for column, device in enumerate(first):
    held = np.where(problem.time_us[:, device] > 0, running, 0.0)
    np.maximum.at(result[:, column], problem.group_of, held)
  # Sums are rounded: what misses the limit by that much may fit.
  return (result + kept[:, np.newaxis]) * (1 - 1e-12)


class Flow(NamedTuple):
  """A relaxed problem, in the direction of time or against it.

  Against time, producers and consumers swap, and so does what precedes an op:
  `head_us` of the reversed problem is the tail of the real one.

  Attributes:
    order: [num_ops] what comes before first.
    rank: [num_ops] place in `order`.
    offsets: [num_ops + 1] into the edges that arrive at each op.
    before: [num_edges] the op at the other end.
    num_bytes: [num_edges].
    gap_us: [num_edges, num_classes] idle time of the edge's producer.
    time_us: [num_ops, num_classes]; inf where the op cannot be.
    work_us: [num_ops, num_classes] time and gap; inf where it cannot be.
    links: from the other end's class.
    group_of: [num_ops].
    spare_us: [num_ops, num_classes] at most 0: added to the work that is in
      series with an op, for the gap that may lie outside.
  """

  order: np.ndarray
  rank: np.ndarray
  offsets: np.ndarray
  before: np.ndarray
  num_bytes: np.ndarray
  gap_us: np.ndarray
  time_us: np.ndarray
  work_us: np.ndarray
  links: Links
  group_of: np.ndarray
  spare_us: np.ndarray


def flow_of(relaxed: Relaxed, backward: bool = False) -> Flow:
  """Packs a problem."""
  graph = relaxed.problem.graph
  offsets, edges = graph.out_csr if backward else graph.in_csr
  ends = graph.edge_dst if backward else graph.edge_src
  order = graph.topological_order
  order = np.ascontiguousarray(order[::-1] if backward else order)
  rank = graph.topological_position
  if backward:
    rank = len(order) - 1 - rank
  spare = np.zeros_like(relaxed.gap_us)
  if backward:
    spare = relaxed.gap_us - relaxed.overhead_us
  return Flow(
    order,
    rank,
    offsets,
    ends[edges],
    graph.edge_bytes[edges],
    relaxed.gap_us[graph.edge_src[edges]],
    relaxed.time_us,
    relaxed.time_us + relaxed.gap_us,
    reversed_links(relaxed.links) if backward else relaxed.links,
    relaxed.problem.group_of,
    spare,
  )


@allocating_helper
def least_end(flow: Flow, head: np.ndarray, op: int) -> float:
  """The earliest that `op` can have ended, wherever it is."""
  best = np.inf
  for c in range(head.shape[1]):
    best = min(best, head[op, c] + flow.time_us[op, c])
  return best
