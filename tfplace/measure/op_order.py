"""Ops of a device in the order in which they are simulated.

TensorFlow's executor runs what is ready in an order of its own: where two ops
wait for a device, it may well take the one that nobody else needs. A device
that runs one op at a time, in the order of readiness, is what the formats
describe; control edges make a real one keep to it. (Enforcing an order is a
known gain of its own: Hashemi et al., TicTac, MLSys 2019.)
"""

import itertools

import numpy as np
import tensorflow as tf

from tfplace.graph.op_graph import OpGraph
from tfplace.graph.placement import Placement
from tfplace.measure import prediction

# Beyond these an op may be dead, or live in the frame of a loop.
_CONTROL_FLOW = {
  *("Switch", "RefSwitch", "_SwitchN", "Merge", "RefMerge"),
  *("Enter", "RefEnter", "Exit", "RefExit", "NextIteration"),
}


def chains(placement: Placement) -> list[np.ndarray]:
  """Per device, its ops in the order of their simulated starts.

  Ops without inputs, and those after a Switch or a loop, are left out.
  """
  graph = placement.problem.graph
  position = np.empty(graph.num_ops, np.int64)
  position[graph.topological_order] = np.arange(graph.num_ops)
  order = np.lexsort((position, prediction.times(placement).start))
  order = order[_orderable(graph)[order]]
  devices = placement.devices[order]
  return [
    order[devices == d] for d in range(placement.problem.cluster.num_devices)
  ]


def _orderable(graph: OpGraph) -> np.ndarray:
  """[num_ops] bool: has inputs, and runs exactly once in every step."""
  offsets, edges = graph.in_csr
  conditional = np.array([t in _CONTROL_FLOW for t in graph.types])
  for op in graph.topological_order:
    before = graph.edge_src[edges[offsets[op] : offsets[op + 1]]]
    conditional[op] |= conditional[before].any()
  return ~conditional & (np.diff(offsets) > 0)


def keep(graph_def: tf.compat.v1.GraphDef, placement: Placement) -> None:
  """Adds the control edges that keep each device to its chain, in place.

  Args:
    graph_def: has a node for every op of the placement.
    placement: what is simulated.
  """
  names = placement.problem.graph.names
  nodes = {node.name: node for node in graph_def.node}
  for chain in chains(placement):
    for before, after in itertools.pairwise(chain.tolist()):
      node, control = nodes[names[after]], f"^{names[before]}"
      if control not in node.input:
        node.input.append(control)
