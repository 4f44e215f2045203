"""Grappler's times of the ops of a graph, without calls.

One op per class (type, attributes, input types and shapes) is estimated. A
rejected op takes its bytes over the memory bandwidth.
"""

import dataclasses
import math
from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, TypeAlias

import tensorflow as tf
from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties
from tensorflow.python.framework import tensor_util

from tfplace.cost import rejections, sizes
from tfplace.cost.repeated import repeated_ops
from tfplace.extraction import nodes

NodeDef: TypeAlias = tf.compat.v1.NodeDef
Specs: TypeAlias = Mapping[str, tuple[sizes.TensorSpec, ...]]

_MOST_ELEMENTS = 64  # a larger tensor is no shape, axes or permutation
# Ops that return axes, whose number is not static but small.
_AXES = ("BroadcastGradientArgs",)
# Attributes without effect on the cost.
_NAMES = ("_class", "shared_name", "container", "_output_shapes")
_FREE = ("Const", "NoOp", "Placeholder", "VarHandleOp")


@dataclasses.dataclass(frozen=True)
class OpTimes:
  """Times of the ops of one graph.

  Attributes:
    time_us: device kind -> node -> microseconds; nodes without cost are absent.
    rejected: node that Grappler rejects -> reason.
  """

  time_us: Mapping[str, Mapping[str, float]]
  rejected: Mapping[str, str]


class OpTimer(Protocol):
  """Times the ops of one graph on each kind of device."""

  def __call__(
    self,
    graph_def: tf.compat.v1.GraphDef,
    graph: tf.Graph,
    specs: Specs,
    repeated: Mapping[str, str] = MappingProxyType({}),
  ) -> OpTimes:
    """Times each op that calls no function.

    Args:
      specs: result of `sizes.output_specs`.
      repeated: result of `repeated_in`.
    """


@dataclasses.dataclass(frozen=True)
class GrapplerTimer:
  """Times ops by Grappler's estimator.

  Attributes:
    hardware: device kind -> its hardware.
  """

  hardware: Mapping[str, DeviceProperties]

  def __call__(
    self,
    graph_def: tf.compat.v1.GraphDef,
    graph: tf.Graph,
    specs: Specs,
    repeated: Mapping[str, str] = MappingProxyType({}),
  ) -> OpTimes:
    classes = OpClasses(graph_def, graph, specs, repeated)
    return class_times(graph_def, specs, self.hardware, classes)


def class_times(
  graph_def: tf.compat.v1.GraphDef,
  specs: Specs,
  hardware: Mapping[str, DeviceProperties],
  classes: "OpClasses",
) -> OpTimes:
  """Estimates each class of ops once, and returns the time of each op."""
  if not hardware:
    return OpTimes({}, {})
  found = rejections.estimates(
    classes.graph_def, classes.representatives, hardware
  )
  rejected = {
    name: found.rejected[representative]
    for name, representative in classes.of_op.items()
    if representative in found.rejected
  }
  num_bytes = _bytes_of(graph_def, specs, rejected)
  times = {}
  for kind, properties in hardware.items():
    of_class = found.time_us[kind]
    times[kind] = {
      name: _valid(of_class[representative])
      for name, representative in classes.of_op.items()
      if representative in of_class
    }
    bytes_per_us = properties.bandwidth * 1e-3  # from KB/s
    for name, size in num_bytes.items():
      times[kind][name] = _valid(size / bytes_per_us)
  return OpTimes(times, rejected)


def _bytes_of(
  graph_def: tf.compat.v1.GraphDef, specs: Specs, names: Container[str]
) -> dict[str, float]:
  """Sums the bytes that each named op reads and writes."""
  result = {}
  for node in graph_def.node:
    if node.name in names:
      read = map(nodes.split_tensor, node.input)
      tensors = [specs[source][i] for source, i in read if i >= 0]
      tensors += specs[node.name]
      result[node.name] = sum(spec.num_bytes for spec in tensors)
  return result


def repeated_in(
  graph_def: tf.compat.v1.GraphDef, graph: tf.Graph, specs: Specs
) -> dict[str, str]:
  """Maps ops of microbatches to ops of another one of the same cost."""
  return repeated_ops(
    graph_def, graph, specs, _NAMES, lambda t: _static_value(t) is not None
  )


def _valid(time_us: float) -> float:
  """Replaces infinite and negative times, from overflows, by 0."""
  return time_us if math.isfinite(time_us) and time_us > 0 else 0.0


class OpClasses:
  """Classes of ops of the same cost, and one representative of each.

  Attributes:
    graph_def: representatives, and stand-ins for their inputs.
    of_op: name of an op -> name of its representative.
  """

  def __init__(
    self,
    graph_def: tf.compat.v1.GraphDef,
    graph: tf.Graph,
    specs: Specs,
    repeated: Mapping[str, str],
  ) -> None:
    self.graph_def = tf.compat.v1.GraphDef(versions=graph_def.versions)
    self.of_op: dict[str, str] = {}
    self._specs = specs
    self._repeated = repeated
    self._values = _static_values(graph, repeated)
    self._nodes = nodes.by_name(graph_def)
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
    spec = self._specs[source][output]
    if text in self._values:
      return self._values[text]
    variable = None
    if spec.dtype == tf.resource:
      variable = sizes.variable_of(text, self._nodes)
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
