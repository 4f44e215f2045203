"""Holds real devices to the simulated order of ops, by control edges.

TensorFlow's executor runs ready ops in any order, a simulated device in that of
its placement's problem. A chain of control edges per device makes the executor
do the same. (Hashemi et al., TicTac, MLSys 2019, gain by enforcing an order.)
"""

import itertools
from typing import Any

import numpy as np

from tfplace.core.op_graph import OpGraph
from tfplace.core.placement import Placement
from tfplace.simulate.simulator import Simulator

# An op after one of these may be dead, or in the frame of a loop.
_CONTROL_FLOW = {
  *("Switch", "RefSwitch", "_SwitchN", "Merge", "RefMerge"),
  *("Enter", "RefEnter", "Exit", "RefExit", "NextIteration"),
}


def chains(placement: Placement) -> list[np.ndarray]:
  """Per device, its ops in the order of their simulated starts.

  Ops without inputs, and those after a Switch or a loop, are left out.
  """
  order = simulated_order(placement)
  devices = placement.devices[order]
  return [
    order[devices == d] for d in range(placement.problem.cluster.num_devices)
  ]


def simulated_order(placement: Placement) -> np.ndarray:
  """[?] ops of all devices in the order of their simulated starts, producers
  before readers, without those that `chains` leaves out."""
  graph = placement.problem.graph
  position = graph.topological_position
  schedule = Simulator(placement.problem).schedule(placement)
  # Of one start, what takes no time comes first, producers before readers.
  order = np.lexsort((position, schedule.op_end_us, schedule.op_start_us))
  return order[_orderable(graph)[order]]


def _orderable(graph: OpGraph) -> np.ndarray:
  """[num_ops] bool: has inputs, and runs exactly once in every step."""
  offsets, edges = graph.in_csr
  conditional = np.array([t in _CONTROL_FLOW for t in graph.types])
  for op in graph.topological_order:
    before = graph.edge_src[edges[offsets[op] : offsets[op + 1]]]
    conditional[op] |= conditional[before].any()
  return ~conditional & (np.diff(offsets) > 0)


def enforce_order(graph_def: Any, placement: Placement) -> None:
  """Adds control edges, in place, so that each device runs its chain in order.

  Args:
    graph_def: a `GraphDef` that has a node for every op of the placement.
    placement: of those ops.
  """
  names = placement.problem.graph.names
  nodes = {node.name: node for node in graph_def.node}
  for chain in chains(placement):
    for before, after in itertools.pairwise(chain.tolist()):
      node, control = nodes[names[after]], f"^{names[before]}"
      if control not in node.input:
        node.input.append(control)
