"""Control edges that enforce the simulated execution order on devices.

TensorFlow's executor runs ready ops in any order. A chain of control edges per
device makes it follow the order of the simulation. Enforcing an order can also
shorten steps (TicTac, Hashemi et al., MLSys 2019).
"""

import itertools
from typing import Any

import numpy as np

from tfplace.graph.op_graph import OpGraph
from tfplace.graph.order import ARRIVAL
from tfplace.graph.placement import Placement
from tfplace.simulate.simulator import Simulator

# An op after one of these may be dead or part of a loop.
_CONTROL_FLOW = {
  *("Switch", "RefSwitch", "_SwitchN", "Merge", "RefMerge"),
  *("Enter", "RefEnter", "Exit", "RefExit", "NextIteration"),
}


def chains(placement: Placement) -> list[np.ndarray]:
  """Returns, for each device, its ops in the order of simulated starts.

  Ops without inputs and ops after a Switch or a loop are omitted.
  """
  order = simulated_order(placement)
  devices = placement.devices[order]
  return [
    order[devices == d] for d in range(placement.problem.cluster.num_devices)
  ]


def simulated_order(placement: Placement) -> np.ndarray:
  """Returns the ops of all devices in the order of simulated starts.

  Producers precede their readers. The ops that `chains` omits are omitted.
  """
  graph = placement.problem.graph
  position = graph.topological_position
  schedule = Simulator(placement.problem).schedule(placement)
  # Among equal starts, ops of zero time come first, producers before readers.
  order = np.lexsort((position, schedule.op_end_us, schedule.op_start_us))
  return order[_orderable(graph)[order]]


def turns(placement: Placement) -> dict[str, int]:
  """Returns the turn of each op that `chains` has; ops of a unit share one."""
  graph = placement.problem.graph
  turn_of: dict[str, int] = {}
  for turn, op in enumerate(simulated_order(placement).tolist()):
    name = graph.names[op]
    turn_of.update(dict.fromkeys(graph.members.get(name, (name,)), turn))
  return turn_of


def op_order_to_json(placement: Placement) -> dict[str, list[str]]:
  """Returns the JSON entry of the op order; empty in order of arrival."""
  if placement.problem.order == ARRIVAL:
    return {}
  graph = placement.problem.graph
  names = (graph.names[op] for op in simulated_order(placement))
  return {
    "op_order": [
      one for name in names for one in graph.members.get(name, (name,))
    ]
  }


def _orderable(graph: OpGraph) -> np.ndarray:
  """Returns [num_ops] bool: the op has inputs and runs once in every step."""
  offsets, edges = graph.in_csr
  conditional = np.array([t in _CONTROL_FLOW for t in graph.types])
  for op in graph.topological_order:
    before = graph.edge_src[edges[offsets[op] : offsets[op + 1]]]
    conditional[op] |= conditional[before].any()
  return ~conditional & (np.diff(offsets) > 0)


def enforce_order(graph_def: Any, placement: Placement) -> None:
  """Adds control edges in place that run each device's chain in order.

  `graph_def` must have a node for each op of the placement.
  """
  names = placement.problem.graph.names
  nodes = {node.name: node for node in graph_def.node}
  for chain in chains(placement):
    for before, after in itertools.pairwise(chain.tolist()):
      node, control = nodes[names[after]], f"^{names[before]}"
      if control not in node.input:
        node.input.append(control)
