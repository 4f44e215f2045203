"""Traces a GraphDef file (`.pb` or `.pbtxt`) as one step."""

import os
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.framework import tensor_shape

from tfplace.errors import ExtractionError
from tfplace.extraction import inline, nodes, structure, validate
from tfplace.extraction.safety import limits, side_effects
from tfplace.extraction.traced import (
  FeedSpec,
  TracedStep,
  checked_batch_size,
  fill_batch,
  variables_of,
)


def trace_graph_def(
  path: str | os.PathLike[str],
  batch_size: int | None = None,
  outputs: Sequence[str] | None = None,
  allow_side_effects: bool = False,
) -> TracedStep:
  """Traces one run of a GraphDef file.

  Args:
    path: `.pbtxt` is parsed as text, every other file as binary.
    batch_size: replaces the unknown first dimension of a `Placeholder`; 32 by
      default.
    outputs: nodes or tensors that the step computes; only their ancestors are
      kept. By default, every node is kept, and the step computes every node
      that has no consumer.
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
  roots = _roots(result, outputs, where)
  flat = result.graph_def
  if outputs is not None:
    flat = structure.prune(flat, [*roots, *feeds])
  functions = nodes.functions_of(flat)
  types = {n.name: nodes.output_types(n, functions) for n in flat.node}
  fetches = tuple(r for r in roots if _fetchable(types, r))
  targets = [nodes.split_tensor(r)[0] for r in roots if r not in fetches]
  return TracedStep(
    name=os.path.basename(where).split(".")[0] or "graph",
    graph_def=flat,
    feeds=feeds,
    fetches=fetches,
    targets=tuple(dict.fromkeys(targets)),
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


def _roots(
  result: inline.Inlined, outputs: Sequence[str] | None, where: str
) -> list[str]:
  flat = result.graph_def
  if outputs is None:
    read = {nodes.split_tensor(i)[0] for n in flat.node for i in n.input}
    return [f"{n.name}:0" for n in flat.node if n.name not in read]
  names = {node.name for node in flat.node}
  tensors = [result.tensor(output) for output in outputs]
  for output, tensor in zip(outputs, tensors, strict=True):
    if nodes.split_tensor(tensor)[0] not in names:
      raise ExtractionError(f"{where!r} has no node {output!r}", op=output)
  return tensors


def _fetchable(types: dict[str, list[int]], tensor: str) -> bool:
  node, output = nodes.split_tensor(tensor)
  dtypes = types[node]
  hidden = (tf.resource.as_datatype_enum, tf.variant.as_datatype_enum)
  return output < len(dtypes) and dtypes[output] not in hidden


def _is_update(op: str) -> bool:
  """Returns whether the op is an optimizer update, as in a training graph."""
  return op.removeprefix("Resource").removeprefix("Sparse").startswith("Apply")
