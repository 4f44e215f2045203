"""Traced steps with the devices of a placement, ready to run.

Inputs are constants on their devices: feeds would be sent in every step. In an
optimized step, they are defaults of placeholders, since Grappler computes in
advance what follows from constants.
"""

from typing import Any

import tensorflow as tf

from tfplace.extraction.traced import (
  TracedStep,
  feed_values,
  with_initializers,
)
from tfplace.graph.placement import Placement
from tfplace.measure.session import messages
from tfplace.simulate import control_edges
from tfplace.variants.units.steps import in_units, placed_calls


def step_request(
  traced: TracedStep,
  placement: Placement,
  *,
  in_order: bool = False,
  merges: bool = True,
  optimized: bool = False,
  **counts: Any,
) -> messages.StepRequest:
  """Builds the request that runs `traced` under `placement`.

  Args:
    traced: the step, without units.
    placement: a placement of its nodes, or of units of them; see
      `MeasurementHarness`.
    in_order: whether each device follows the simulated order.
    merges: whether units are merged as in `fit`, or run and timed one by one.
    optimized: field of `StepRequest`.
    **counts: numbers of steps; fields of `StepRequest`.
  """
  graph_def, names = tf.compat.v1.GraphDef(), traced.fetches
  graph = placement.problem.graph
  if graph.members and merges:
    turns = control_edges.turns(placement) if in_order else {}
    devices = placement.traced_assignments
    traced = placed_calls(traced, graph, devices, turns)
    graph_def.CopyFrom(traced.graph_def)
  else:
    traced = in_units(traced, graph)
    graph_def.CopyFrom(traced.graph_def)
    for node in graph_def.node:
      node.device = placement.assignments[node.name]
    if in_order:
      control_edges.enforce_order(graph_def, placement)
  initial = with_initializers(traced, graph_def)
  _hold_inputs(initial.graph_def, traced)
  if optimized:
    _keep_inputs(initial.graph_def, traced)
  return messages.StepRequest(
    graph_def=initial.graph_def.SerializeToString(),
    initializers=initial.assignments,
    initializer_feeds=tuple(initial.feeds.items()),
    fetches=dict(zip(names, traced.fetches, strict=True)),
    targets=traced.targets,
    optimized=optimized,
    **counts,
  )


def _hold_inputs(graph_def: tf.compat.v1.GraphDef, traced: TracedStep) -> None:
  values = feed_values(traced)
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


def _keep_inputs(graph_def: tf.compat.v1.GraphDef, traced: TracedStep) -> None:
  for node in [node for node in graph_def.node if node.name in traced.feeds]:
    value = graph_def.node.add()
    value.CopyFrom(node)
    value.name += "/value"
    shape = node.attr["value"].tensor.tensor_shape
    node.op = "PlaceholderWithDefault"
    node.input.insert(0, value.name)
    node.attr["shape"].shape.CopyFrom(shape)
    del node.attr["value"]
