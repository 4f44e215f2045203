"""Ops that cost the same: classes of them, and copies in microbatches.

A class has one type, attributes, input types and shapes; one op of it is
estimated. Microbatches of one size are copies of one graph, so only one of each
size is looked at.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import tensorflow as tf
from tensorflow.python.framework import tensor_util

from tfplace.cost import sizes
from tfplace.extraction import nodes
from tfplace.graph.microbatches import microbatch_of, name_in_whole

NodeDef: TypeAlias = tf.compat.v1.NodeDef
Specs: TypeAlias = Mapping[str, tuple[sizes.TensorSpec, ...]]

_MOST_SIZES = 4  # Sizes of microbatches that are told apart.
_MOST_ELEMENTS = 64  # a larger tensor is no shape, axes or permutation
# Ops that return axes, whose number is not static but small.
_AXES = ("BroadcastGradientArgs",)
# Attributes without effect on the cost.
_NAMES = ("_class", "shared_name", "container", "_output_shapes")
_FREE = ("Const", "NoOp", "Placeholder", "VarHandleOp")


class OpClasses:
  """Classes of ops of the same cost, and one representative of each.

  Attributes:
    graph_def: representatives, and stand-ins for their inputs.
    of_op: name of an op that calls no function -> its representative.
    nodes: name of an op of the graph -> its node.
    graph: the graph, imported.
    specs: name of an op of the graph -> its outputs.
  """

  def __init__(
    self,
    graph_def: tf.compat.v1.GraphDef,
    graph: tf.Graph,
    specs: Specs,
    repeated: Mapping[str, str] = MappingProxyType({}),
  ) -> None:
    """Sorts the ops of a graph into classes.

    Args:
      graph: `graph_def`, imported.
      specs: result of `sizes.output_specs`.
      repeated: result of `repeated_ops`.
    """
    self.graph_def = tf.compat.v1.GraphDef(versions=graph_def.versions)
    self.of_op: dict[str, str] = {}
    self.nodes = nodes.by_name(graph_def)
    self.graph, self.specs = graph, specs
    self._repeated = repeated
    self._values = _static_values(graph, repeated)
    self._known: dict[bytes, str] = {}
    self._inputs: dict[str, str] = {}
    functions = {f.signature.name for f in graph_def.library.function}
    for node in graph_def.node:
      called = functions and functions.intersection(
        nodes.called_functions(node)
      )
      priced = node.op not in _FREE and not called
      if priced and node.name not in repeated:
        self.of_op[node.name] = self._representative(node)
    for name, original in repeated.items():
      if original in self.of_op:
        self.of_op[name] = self.of_op[original]

  @property
  def representatives(self) -> Sequence[str]:
    return list(dict.fromkeys(self.of_op.values()))

  def _representative(self, node: NodeDef) -> str:
    copy = NodeDef(op=node.op, attr=node.attr)
    for name in _NAMES:
      copy.attr.pop(name, None)
    for text in node.input:
      if text.startswith("^"):
        break  # control inputs come last
      if text not in self._inputs:
        self._inputs[text] = self._add(self._stand_in(text))
      copy.input.append(self._inputs[text])
    return self._add(copy)

  def _add(self, node: NodeDef) -> str:
    """Adds a node unless there is an equal one; returns the name."""
    key = node.SerializeToString(deterministic=True)
    name = self._known.get(key)
    if name is None:
      name = self._known[key] = f"class_{len(self._known)}"
      node.name = name
      self.graph_def.node.append(node)
    return name

  def _stand_in(self, text: str) -> NodeDef:
    """Returns a constant, variable or placeholder like the tensor."""
    source, output = nodes.split_tensor(text)
    if source in self._repeated:
      source = self._repeated[source]
      text = nodes.join_tensor(source, output)
    spec = self.specs[source][output]
    if text in self._values:
      return self._values[text]
    variable = None
    if spec.dtype == tf.resource:
      variable = sizes.variable_of(text, self.nodes)
    if variable is not None:
      node = NodeDef(op="VarHandleOp", attr=variable.attr)
      for name in _NAMES:
        node.attr.pop(name, None)
      return node
    # Grappler feeds a placeholder with zeros of its shape, which for a large
    # batch do not fit in memory; it only infers the shape of this op.
    is_plain = spec.is_known and spec.num_bytes > 0 and spec.dtype != tf.string
    node = NodeDef(op="ImmutableConst" if is_plain else "Placeholder")
    node.attr["dtype"].type = spec.dtype.as_datatype_enum
    shape = tf.TensorShape(spec.shape).as_proto()
    node.attr["shape"].shape.CopyFrom(shape)
    if is_plain:
      node.attr["memory_region_name"].s = b"stand_in"
    return node


def _static_values(
  graph: tf.Graph, repeated: Mapping[str, str]
) -> dict[str, NodeDef]:
  """Maps tensor names to constants of static values.

  Covers values that may decide a shape: small integers and inputs of `Range`.
  """
  values: dict[str, NodeDef] = {}

  def add(tensor: tf.Tensor, value: object) -> None:
    if value is not None:
      node = NodeDef(op="Const")
      node.attr["dtype"].type = tensor.dtype.as_datatype_enum
      proto = tf.make_tensor_proto(value, tensor.dtype)
      node.attr["value"].tensor.CopyFrom(proto)
      values[tensor.name.removesuffix(":0")] = node

  for op in graph.get_operations():
    if op.name in repeated:
      continue
    for tensor in op.outputs:
      add(tensor, _static_value(tensor))
    for tensor in op.inputs if op.type == "Range" else ():
      add(tensor, tensor_util.constant_value(tensor))
  return values


def _static_value(tensor: tf.Tensor) -> object:
  if tensor.dtype not in (tf.int32, tf.int64):
    return None
  size = tensor.shape.num_elements()
  if size is None and tensor.op.type in _AXES:
    return tensor_util.try_evaluate_constant(tensor)
  if size is None or size > _MOST_ELEMENTS:
    return None
  if tensor.op.type == "ShapeN":
    shape = tensor.op.inputs[tensor.value_index].shape
    return shape.as_list() if shape.is_fully_defined() else None
  value = tensor_util.constant_value(tensor)
  if value is None and tensor.op.inputs:  # `constant_value` knows few ops
    value = tensor_util.try_evaluate_constant(tensor)
  return value


def repeated_ops(
  graph_def: tf.compat.v1.GraphDef, graph: tf.Graph, specs: Specs
) -> dict[str, str]:
  """Maps ops of microbatches to the equal op of another microbatch.

  Equal ops have the same name except for the microbatch, type, attributes and
  outputs. Their inputs are the same tensors, outputs of equal ops, or tensors
  of the same shapes without a static value.

  Args:
    graph: the same, imported, with producers first.
    specs: result of `sizes.output_specs`.
  """
  by_name = nodes.by_name(graph_def)
  first: dict[str, list[str]] = {}
  result: dict[str, str] = {}

  def is_same_input(tensor: str, its: str) -> bool:
    if tensor == its:
      return True
    (one, output), (other, index) = map(nodes.split_tensor, (tensor, its))
    if output != index or one == other:
      return False
    if result.get(one, one) == result.get(other, other):
      return True
    spec = specs[one][output]
    if spec != specs[other][output] or spec.dtype == tf.resource:
      return False
    tensors = (graph.get_tensor_by_name(f"{n}:{index}") for n in (one, other))
    # A static value may decide a cost.
    return all(_static_value(each) is None for each in tensors)

  def is_same(one: NodeDef, other: NodeDef) -> bool:
    inputs = [_data(node) for node in (one, other)]
    return (
      one.op == other.op
      and specs[one.name] == specs[other.name]
      and len(inputs[0]) == len(inputs[1])
      and _attributes(one) == _attributes(other)
      and all(map(is_same_input, *inputs))
    )

  for op in graph.get_operations():
    if microbatch_of(op.name) is None:
      continue
    originals = first.setdefault(name_in_whole(op.name), [])
    for original in originals:
      if is_same(by_name[op.name], by_name[original]):
        result[op.name] = original
        break
    else:
      if len(originals) < _MOST_SIZES:
        originals.append(op.name)
  return result


def _data(node: NodeDef) -> list[str]:
  return [text for text in node.input if not text.startswith("^")]


def _attributes(node: NodeDef) -> dict[str, bytes]:
  return {
    name: node.attr[name].SerializeToString(deterministic=True)
    for name in node.attr
    if name not in _NAMES
  }
