"""Tells Grappler shapes that TensorFlow's own inference found and it does not.

Grappler infers shapes anew and evaluates fewer shape computations; an op of
unknown shape would cost nothing. So small integer tensors whose value follows
from shapes become constants, and outputs that stay unknown pass through an
`EnsureShape`. Ops of the step keep their names; only the estimator sees this
graph.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.framework import tensor_util

from tfplace.cost import grappler

_PREFIX = "tfplace_explicit/"
_MOST_ELEMENTS = 64  # of a tensor that may be a shape, axes or a permutation
_KEPT = ("Const", "Placeholder")

Nodes = dict[str, tf.compat.v1.NodeDef]  # tensor, as inputs name it -> stand-in


def with_explicit_shapes(
  graph_def: tf.compat.v1.GraphDef, graph: tf.Graph
) -> tf.compat.v1.GraphDef:
  """A graph of the same ops with inputs of known shape wherever TensorFlow
  knows them.

  Args:
    graph_def: flat graph.
    graph: the same, imported.
  """
  result = tf.compat.v1.GraphDef()
  result.CopyFrom(graph_def)
  _redirect(result, _constants(graph))
  _redirect(result, _ensured(result, graph))
  return result


def _constants(graph: tf.Graph) -> Nodes:
  """Tensor name -> a constant of its value, where that is static."""
  result = {}
  for op in graph.get_operations():
    if op.type in _KEPT:
      continue
    for tensor in op.outputs:
      value = _static_value(tensor)
      if value is not None:
        node = tf.compat.v1.NodeDef(name=_PREFIX + _plain(tensor), op="Const")
        node.attr["dtype"].type = tensor.dtype.as_datatype_enum
        proto = tf.make_tensor_proto(value, tensor.dtype, tensor.shape)
        node.attr["value"].tensor.CopyFrom(proto)
        result[_input(tensor)] = node
  return result


def _static_value(tensor: tf.Tensor) -> object:
  if tensor.dtype not in (tf.int32, tf.int64):
    return None
  if (tensor.shape.num_elements() or _MOST_ELEMENTS + 1) > _MOST_ELEMENTS:
    return None
  if tensor.op.type == "ShapeN":
    shape = tensor.op.inputs[tensor.value_index].shape
    return shape.as_list() if shape.is_fully_defined() else None
  return tensor_util.constant_value(tensor)


def _ensured(graph_def: tf.compat.v1.GraphDef, graph: tf.Graph) -> Nodes:
  """Tensor name -> an `EnsureShape` of it, where only Grappler lacks it."""
  properties = grappler.make_item(graph_def).GetOpProperties()
  result = {}
  for op in graph.get_operations():
    for tensor, found in zip(
      op.outputs, properties.get(op.name, ()), strict=False
    ):
      if _is_known(found.shape) or not tensor.shape.is_fully_defined():
        continue
      node = tf.compat.v1.NodeDef(
        name=_PREFIX + "ensured/" + _plain(tensor), op="EnsureShape"
      )
      node.input.append(_input(tensor))
      node.attr["T"].type = tensor.dtype.as_datatype_enum
      node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
      result[_input(tensor)] = node
  return result


def _is_known(shape: Any) -> bool:
  return tf.TensorShape(
    None
    if shape.unknown_rank
    else [None if d.size < 0 else d.size for d in shape.dim]
  ).is_fully_defined()


def _redirect(graph_def: tf.compat.v1.GraphDef, nodes: Nodes) -> None:
  """Has readers of each tensor read the node that stands for it."""
  for node in graph_def.node:
    for i, text in enumerate(node.input):
      if text in nodes:
        node.input[i] = nodes[text].name
  graph_def.node.extend(nodes.values())


def _input(tensor: tf.Tensor) -> str:
  """A tensor as a node's input names it: output 0 by its op alone."""
  return tensor.name.removesuffix(":0")


def _plain(tensor: tf.Tensor) -> str:
  return tensor.name.replace(":", "_output_")
