"""A traced step with the devices of a placement, ready to run.

Inputs become constants on the devices of their placeholders: a feed would be
sent from the session's process in every step.

TensorFlow's executor runs ready ops in any order, a simulated device in the
order of readiness: control edges make a real one keep to that. (Hashemi et al.,
TicTac, MLSys 2019, gain by enforcing an order.)
"""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfplace.core.op_graph import OpGraph
from tfplace.core.placement import Placement
from tfplace.extraction import session as extract_session
from tfplace.extraction.traced import FeedSpec, TracedStep, VariableSpec
from tfplace.measure.session import messages
from tfplace.simulate import Simulator

# An op after one of these may be dead, or in the frame of a loop.
_CONTROL_FLOW = {
  *("Switch", "RefSwitch", "_SwitchN", "Merge", "RefMerge"),
  *("Enter", "RefEnter", "Exit", "RefExit", "NextIteration"),
}


def chains(placement: Placement) -> list[np.ndarray]:
  """Per device, its ops in the order of their simulated starts.

  Ops without inputs, and those after a Switch or a loop, are left out.
  """
  graph = placement.problem.graph
  position = graph.topological_position
  schedule = Simulator(placement.problem).schedule(placement)
  order = np.lexsort((position, schedule.op_start_us))
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


def enforce_order(
  graph_def: tf.compat.v1.GraphDef, placement: Placement
) -> None:
  """Adds control edges, in place, so that each device runs its chain in order.

  Args:
    graph_def: has a node for every op of the placement.
    placement: of those ops.
  """
  names = placement.problem.graph.names
  nodes = {node.name: node for node in graph_def.node}
  for chain in chains(placement):
    for before, after in itertools.pairwise(chain.tolist()):
      node, control = nodes[names[after]], f"^{names[before]}"
      if control not in node.input:
        node.input.append(control)


def step_request(
  traced: TracedStep,
  placement: Placement,
  seed: int = 0,
  in_order: bool = False,
  **counts: Any,
) -> messages.StepRequest:
  """The run of `traced` under `placement`.

  Args:
    traced: the step.
    placement: of its nodes (see `MeasurementHarness`).
    seed: of inputs that have no sample value.
    in_order: whether each device keeps to the simulated order.
    **counts: how often it runs: fields of `StepRequest`.
  """
  graph_def = tf.compat.v1.GraphDef()
  graph_def.CopyFrom(traced.graph_def)
  assignments = placement.assignments
  for node in graph_def.node:
    node.device = assignments[node.name]
  if in_order:
    enforce_order(graph_def, placement)
  initial = extract_session.with_initializers(traced, graph_def)
  values = extract_session.feed_values(traced, seed)
  _hold_inputs(initial.graph_def, traced, values)
  return messages.StepRequest(
    graph_def=initial.graph_def.SerializeToString(),
    initializers=initial.assignments,
    initializer_feeds=tuple(initial.feeds.items()),
    fetches=traced.fetches,
    targets=traced.targets,
    **counts,
  )


def _hold_inputs(
  graph_def: tf.compat.v1.GraphDef,
  traced: TracedStep,
  values: Mapping[str, np.ndarray],
) -> None:
  """Turns the placeholders that are fed into constants of the same name."""
  for node in graph_def.node:
    feed = traced.feeds.get(node.name)
    if feed is None:
      continue
    value = tf.make_tensor_proto(
      values[feed.tensor], feed.dtype, shape=feed.shape
    )
    node.op = "Const"
    for key in [key for key in node.attr if not key.startswith("_")]:
      del node.attr[key]
    node.attr["dtype"].type = feed.dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(value)


def held_bytes(
  traced: TracedStep, assignments: Mapping[str, str]
) -> dict[str, float]:
  """Device -> bytes of variables and inputs, held for the whole step."""
  result: dict[str, float] = {}
  specs: Mapping[str, VariableSpec | FeedSpec]
  specs = {**traced.variables, **traced.feeds}
  for name, spec in specs.items():
    if name in assignments:
      size = float(np.prod(spec.shape, dtype=np.float64)) * spec.dtype.size
      device = assignments[name]
      result[device] = result.get(device, 0.0) + size
  return result
