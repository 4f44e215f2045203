"""A traced step with the devices of a placement, ready to run.

Inputs become constants on the devices of their placeholders: a feed would
travel from the session's process in every step, which is no part of it.

TensorFlow's executor runs ready ops in an order of its own. The simulated
device runs one op at a time in the order of readiness; control edges make a
real one keep to that order. (Enforcing an order is a known gain of its own:
Hashemi et al., TicTac, MLSys 2019.)
"""

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tfplace.core.op_graph import OpGraph
from tfplace.core.placement import Placement
from tfplace.errors import MeasurementError
from tfplace.extraction.traced import (
  FeedSpec,
  TracedStep,
  VariableSpec,
  feed_values,
  with_initializers,
)
from tfplace.measure.calibrate import prediction
from tfplace.measure.session import messages

# After these an op may be dead, or in the frame of a loop.
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


def enforce_order(
  graph_def: tf.compat.v1.GraphDef, placement: Placement
) -> None:
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


@dataclasses.dataclass(frozen=True)
class Counts:
  """How often a step is run; fields as of `messages.StepRequest`."""

  warmup: int = 3
  steps: int = 10
  traced_steps: int = 3
  phase_s: float = 20.0


def step_request(
  traced: TracedStep,
  placement: Placement,
  counts: Counts,
  seed: int = 0,
  in_order: bool = False,
) -> messages.StepRequest:
  """The run of `traced` under `placement`.

  Args:
    traced: the step.
    placement: of every node.
    counts: how often it is run.
    seed: of inputs that have no sample value.
    in_order: control edges keep each device to the simulated order.

  Raises:
    MeasurementError: a node has no assignment.
  """
  graph_def = placed_graph(traced, placement.assignments)
  if in_order:
    enforce_order(graph_def, placement)
  initial = with_initializers(traced, graph_def)
  values = feed_values(traced, seed)
  _hold_inputs(initial.graph_def, traced, values)
  return messages.StepRequest(
    graph_def=initial.graph_def.SerializeToString(),
    initializers=initial.assignments,
    initializer_feeds=tuple(initial.feeds.items()),
    fetches=traced.fetches,
    targets=traced.targets,
    **dataclasses.asdict(counts),
  )


def placed_graph(
  traced: TracedStep, assignments: Mapping[str, str]
) -> tf.compat.v1.GraphDef:
  """A copy of the step's graph, every node on its device."""
  result = tf.compat.v1.GraphDef()
  result.CopyFrom(traced.graph_def)
  for node in result.node:
    if node.name not in assignments:
      raise MeasurementError(
        f"node {node.name!r} of the graph to run is not in the placement",
        op=node.name,
      )
    node.device = assignments[node.name]
  return result


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
    kept = {k: node.attr[k] for k in node.attr if k.startswith("_")}
    kept = {k: _copy(v) for k, v in kept.items()}
    node.op = "Const"
    node.attr.clear()
    node.attr["dtype"].type = feed.dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(value)
    for key, attr in kept.items():
      node.attr[key].CopyFrom(attr)


def _copy(
  value: tf.compat.v1.AttrValue,
) -> tf.compat.v1.AttrValue:
  result = tf.compat.v1.AttrValue()
  result.CopyFrom(value)
  return result


def held_bytes(
  traced: TracedStep, assignments: Mapping[str, str]
) -> dict[str, float]:
  """Device -> bytes of variables and inputs, held for the whole step."""
  result: dict[str, float] = {}
  specs: dict[str, VariableSpec | FeedSpec] = {
    **traced.variables,
    **traced.feeds,
  }
  for name, spec in specs.items():
    if name in assignments:
      size = float(np.prod(spec.shape, dtype=np.float64)) * spec.dtype.size
      device = assignments[name]
      result[device] = result.get(device, 0.0) + size
  return result
