"""Traces a GraphDef file (`.pb` or `.pbtxt`) as one step."""

import os

import tensorflow as tf
from tensorflow.python.framework import tensor_shape

from tfplace.extraction import inline, nodes, structure, validate
from tfplace.extraction.safety import limits, side_effects
from tfplace.extraction.traced import (
  FeedSpec,
  TracedStep,
  checked_batch_size,
  fill_batch,
  variables_of,
)

# Types of tensors that a session does not return.
_HIDDEN = (tf.resource.as_datatype_enum, tf.variant.as_datatype_enum)


def trace_graph_def(
  path: str | os.PathLike[str],
  batch_size: int | None = None,
  allow_side_effects: bool = False,
) -> TracedStep:
  """Traces one run of a GraphDef file, of every node without a consumer.

  Args:
    path: `.pbtxt` is parsed as text, every other file as binary.
    batch_size: replaces the unknown first dimension of a `Placeholder`; 32 by
      default.
    allow_side_effects: lets TensorFlow run ops that read files or call Python
      while it imports the graph.

  Raises:
    ExtractionError: the file is not a well-formed GraphDef, or the shape of an
      input is unknown; names the file and the node.
  """
  where = os.fspath(path)
  size = checked_batch_size(batch_size, where)
  graph_def = read_graph_def(where)
  with validate.located(where):
    limits.check_calls(graph_def)
  validate.validate(graph_def, where)
  if not allow_side_effects:
    side_effects.refuse(side_effects.when_imported(graph_def), where)
  validate.import_check(graph_def, where)
  feeds = _fill_placeholders(graph_def, size, where)
  result = inline.inline_functions(graph_def)
  structure.repair_constraints(result.graph_def, {})
  if result.moved:  # otherwise the graph is the one already checked
    validate.validate(result.graph_def, where)
    validate.import_check(result.graph_def, where)
  flat = result.graph_def
  functions = nodes.functions_of(flat)
  read = {nodes.split_tensor(i)[0] for n in flat.node for i in n.input}
  fetches, targets = [], []
  for node in flat.node:
    if node.name not in read:
      types = nodes.output_types(node, functions)
      if types and types[0] not in _HIDDEN:
        fetches.append(f"{node.name}:0")
      else:
        targets.append(node.name)
  return TracedStep(
    name=os.path.basename(where).split(".")[0] or "graph",
    graph_def=flat,
    feeds=feeds,
    fetches=tuple(fetches),
    targets=tuple(targets),
    variables=variables_of(flat, where),
    training=any(_is_update(node.op) for node in flat.node),
  )


def read_graph_def(path: str) -> tf.compat.v1.GraphDef:
  """Parses a GraphDef file; raises ExtractionError if that is impossible."""
  graph_def = tf.compat.v1.GraphDef()
  limits.read_proto(path, graph_def, limits.GRAPH_DEF)
  return graph_def


def _fill_placeholders(
  graph_def: tf.compat.v1.GraphDef, batch_size: int, where: str
) -> dict[str, FeedSpec]:
  feeds = {}
  for node in graph_def.node:
    if node.op != "Placeholder":
      continue
    dtype = tf.DType(node.attr["dtype"].type)
    if dtype in (tf.resource, tf.variant):
      continue
    if "shape" in node.attr:
      declared = tensor_shape.as_shape(node.attr["shape"].shape)
    else:
      declared = tf.TensorShape(None)
    shape = fill_batch(declared, batch_size, node.name, where)
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
    feeds[node.name] = FeedSpec(f"{node.name}:0", shape, dtype)
  return feeds


def _is_update(op: str) -> bool:
  """Returns whether the op is an optimizer update, as in a training graph."""
  return op.removeprefix("Resource").removeprefix("Sparse").startswith("Apply")
