"""Traced steps whose units are calls of functions that XLA compiles."""

import dataclasses
import logging
from collections.abc import Mapping

import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.extraction import nodes
from tfplace.extraction.traced import TracedStep
from tfplace.graph.op_graph import OpGraph
from tfplace.variants import op_order
from tfplace.variants.units import convex, forming
from tfplace.variants.units.calls import compile_units, functions, put_calls
from tfplace.variants.units.lowering import Lowering, refusal_note
from tfplace.variants.units.order import Flow

_logger = logging.getLogger("tfplace")


def placed_calls(
  traced: TracedStep,
  graph: OpGraph,
  devices: Mapping[str, str],
  turns: Mapping[str, int],
) -> TracedStep:
  """Returns a step on its devices, in calls as the step of `fit` has them.

  Args:
    traced: the step without units.
    graph: its graph of units.
    devices: device by name of an op.
    turns: turn by name of an op; empty in order of arrival.
  """
  unit_of = _unit_by_op(graph)
  with tf.Graph().as_default() as tf_graph:
    tf.import_graph_def(_with_feed_shapes(traced), name="")
    for op in tf_graph.get_operations():
      op._set_device(devices.get(op.name, ""))
    compiled = compile_units(
      tf_graph,
      lambda op: unit_of.get(op.name),
      results=_fetched(tf_graph, traced),
      later=(),
      turn_of=turns.get,
    )
    if turns:
      op_order.chain_calls(
        tf_graph, compiled.calls, lambda op: turns.get(op.name)
      )
    names = {op.name for op in tf_graph.get_operations()}
    graph_def = tf_graph.as_graph_def()
  kept = [node for node in graph_def.node if node.name in names]
  del graph_def.node[:]
  graph_def.node.extend(kept)
  call_of = {op.name: c.name for c, ops in compiled.calls.items() for op in ops}
  targets = dict.fromkeys(call_of.get(name, name) for name in traced.targets)
  return dataclasses.replace(
    traced,
    graph_def=graph_def,
    fetches=tuple(tensor.name for tensor in compiled.results),
    targets=tuple(targets),
  )


def in_units(traced: TracedStep, graph: OpGraph) -> TracedStep:
  """Returns a step whose nodes are the ops of its graph of units.

  Units that XLA refuses are calls, too, which the executor runs. A graph
  without units, see `cost.unit_costs`, is of the step's own ops.
  """
  if not graph.members:
    return traced
  unit_of = _unit_by_op(graph)
  with tf.Graph().as_default() as tf_graph:
    tf.import_graph_def(_with_feed_shapes(traced), name="")
    results = _fetched(tf_graph, traced)
    wanted = {tensor.ref() for tensor in results}
    ops = tf_graph.get_operations()
    flow = Flow(ops, wanted, (), copies_reads=False)
    keys = [
      unit_of.get(op.name) if forming.compiles(op) else None for op in ops
    ]
    made = functions(flow, convex.convex_groups(keys, flow.before, flow.order))
    refused = Lowering(tf_graph, {op.name: op for op in ops}).refused(made)
    if refused:
      layers = traced.layers
      note = refusal_note(refused, lambda name: layers.get(name, ("",))[0])
      _logger.warning("step %r: %s", traced.name, note)
    for unit in made:
      if not refused.keys().isdisjoint(unit.ops):
        unit.set_compiled(False)
    calls, replaced, _ = put_calls(tf_graph, flow, made)
    results = [replaced.get(tensor.ref(), tensor) for tensor in results]
    name_of = {call.name: unit_of[ops[0].name] for call, ops in calls.items()}
    whole = tf_graph.as_graph_def()
  result = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
  missing = set(graph.index)
  for node in whole.node:
    name = name_of.get(node.name, node.name)
    if name in missing:
      missing.discard(name)
      node.name = name
      nodes.rename_inputs(node, name_of)
      result.node.append(node)
  if missing:
    name = min(missing)
    raise ExtractionError(
      f"unit {name!r} of {traced.name!r} is not a unit of the traced step",
      op=name,
    )
  layers = {
    unit: traced.layers[member]
    for member, unit in unit_of.items()
    if member in traced.layers
  }
  return dataclasses.replace(
    traced,
    graph_def=result,
    fetches=tuple(
      f"{name_of.get(tensor.op.name, tensor.op.name)}:{tensor.value_index}"
      for tensor in results
    ),
    layers={**traced.layers, **layers},
  )


def _with_feed_shapes(traced: TracedStep) -> tf.compat.v1.GraphDef:
  result = tf.compat.v1.GraphDef()
  result.CopyFrom(traced.graph_def)
  for node in result.node:
    if node.op == "Placeholder" and node.name in traced.feeds:
      shape = tf.TensorShape(traced.feeds[node.name].shape)
      node.attr["shape"].shape.CopyFrom(shape.as_proto())
  return result


def _unit_by_op(graph: OpGraph) -> dict[str, str]:
  return {op: unit for unit, ops in graph.members.items() for op in ops}


def _fetched(graph: tf.Graph, traced: TracedStep) -> list[tf.Tensor]:
  return [
    graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
    for name in traced.fetches
  ]
