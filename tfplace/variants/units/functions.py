"""Units as functions that XLA compiles, and calls of them."""

import hashlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework.auto_control_deps_utils import (
  READ_ONLY_RESOURCE_INPUTS_ATTR,
  RESOURCE_READ_OPS,
)

from tfplace.variants.units.order import READ, Flow

_MUST_COMPILE = "_XlaMustCompile"
_SCOPE = "tfplace_unit"


class Unit:
  """A unit as a function of the tensors that it reads.

  Attributes:
    ops: its ops, in topological order.
    inputs: tensors from outside, but constants.
    outputs: tensors that are read outside, or wanted.
    reads: positions of variables among the inputs that are only read.
    controls: ops outside that precede its ops.
    function: the `FunctionDef`.
    is_compiled: whether XLA compiles it.
  """

  def __init__(self, flow: Flow, ops: list[tf.Operation]) -> None:
    self.ops = ops
    self._flow = flow
    names = {op.name for op in ops}
    self.outputs = [
      tensor
      for op in ops
      for tensor in op.outputs
      if tensor.ref() in flow.wanted
      or any(reader.name not in names for reader in tensor.consumers())
    ]
    self.controls = list(
      {
        control.name: control
        for op in ops
        for control in op.control_inputs
        if control.name not in names
      }.values()
    )
    self.inputs: list[tf.Tensor] = []
    self._names: dict[str, str] = {}
    self._arguments: dict[Any, int] = {}
    self._writes: set[int] = set()
    self.function = function_pb2.FunctionDef()
    for op in ops:
      self._add(op, names)
    self._sign()

  @property
  def has_effects(self) -> bool:
    """True if anything outside depends on the unit."""
    return bool(self.outputs or self._writes)

  @property
  def name(self) -> str:
    """Name of the function, which follows from its content."""
    return self.function.signature.name

  def op_of(self, node: str) -> tf.Operation | None:
    """Returns the op of the unit that is a node of the function, if any."""
    return next((o for o in self.ops if self._names[o.name] == node), None)

  def register(self) -> None:
    """Adds the function to TensorFlow's, unless it is among them.

    A function that is traced hands on no functions to those that call it.
    """
    known = context.context()
    if not known.has_function(self.name):
      known.add_function_def(self.function)

  def _add(self, op: tf.Operation, members: set[str]) -> None:
    inputs = [self._input(tensor, members) for tensor in op.inputs]
    local = self._names[op.name] = f"n{len(self._names)}"
    node = self.function.node_def.add(name=local, op=op.type)
    for key, value in op.node_def.attr.items():
      if not key.startswith("_"):
        node.attr[key].CopyFrom(value)
    node.input.extend(inputs)
    earlier = [control.name for control in op.control_inputs]
    earlier += self._flow.earlier.get(op.name, ())
    node.input.extend(
      f"^{self._names[name]}" for name in earlier if name in self._names
    )
    if op.type not in RESOURCE_READ_OPS:
      self._writes.update(
        self._arguments[t.ref()] for t in op.inputs if t.dtype == tf.resource
      )
    if not op.outputs:
      self.function.signature.control_output.append(local)
      self.function.control_ret[local] = local

  def _input(self, tensor: tf.Tensor, members: set[str]) -> str:
    op = tensor.op
    if op.name not in members:
      is_far = op.type == READ and op.device != self.ops[0].device
      tensor = self._flow.same.get(op.name, tensor) if is_far else tensor
      if is_far or op.name not in self._flow.copies:
        at = self._arguments.setdefault(tensor.ref(), len(self.inputs))
        if at == len(self.inputs):
          self.inputs.append(tensor)
        return f"a{at}"
      if op.name not in self._names:
        self._add(op, members)
    return self._local(tensor)

  def _local(self, tensor: tf.Tensor) -> str:
    """Names an output in a function: node, output argument, position in it."""
    op, position = tensor.op, tensor.value_index
    for argument in op.op_def.output_arg:
      count = 1
      if argument.number_attr:
        count = op.get_attr(argument.number_attr)
      elif argument.type_list_attr:
        count = len(op.get_attr(argument.type_list_attr))
      if position < count:
        return f"{self._names[op.name]}:{argument.name}:{position}"
      position -= count
    raise AssertionError(tensor.name)

  def _sign(self) -> None:
    signature = self.function.signature
    self.reads = [
      i
      for i, tensor in enumerate(self.inputs)
      if tensor.dtype == tf.resource and i not in self._writes
    ]
    for i, tensor in enumerate(self.inputs):
      signature.input_arg.add(name=f"a{i}", type=tensor.dtype.as_datatype_enum)
    for i, tensor in enumerate(self.outputs):
      signature.output_arg.add(name=f"r{i}", type=tensor.dtype.as_datatype_enum)
      self.function.ret[f"r{i}"] = self._local(tensor)
    self.function.attr["_noinline"].b = True
    self.set_compiled(True)

  def set_compiled(self, is_compiled: bool) -> None:
    """Lets XLA compile the unit, or TensorFlow's executor run it."""
    self.is_compiled = is_compiled
    self.function.attr[_MUST_COMPILE].b = is_compiled
    self.function.signature.name = ""
    content = self.function.SerializeToString(deterministic=True)
    digest = hashlib.sha256(content).hexdigest()[:16]
    self.function.signature.name = f"{_SCOPE}_{digest}"


def add_calls(graph: tf.Graph, made: Sequence[Unit]) -> list[tf.Operation]:
  """Adds the call of each unit to the graph, on tensors of the old ops."""
  graph_def = tf.compat.v1.GraphDef(versions=graph.graph_def_versions)
  functions = {unit.name: unit.function for unit in made}
  graph_def.library.function.extend(functions.values())
  given: dict[str, tf.Tensor] = {}
  for i, unit in enumerate(made):
    unit.register()
    node = graph_def.node.add(name=f"unit_{i}", op="PartitionedCall")
    node.device = unit.ops[0].device
    if any(tensor.dtype == tf.resource for tensor in unit.inputs):
      node.op = "StatefulPartitionedCall"
      node.attr[READ_ONLY_RESOURCE_INPUTS_ATTR].list.i.extend(unit.reads)
    for j, tensor in enumerate(unit.inputs):
      node.input.append(f"input_{i}_{j}:0")
      given[f"input_{i}_{j}:0"] = tensor
    node.attr["f"].func.name = unit.name
    node.attr[_MUST_COMPILE].b = unit.is_compiled
    for key, tensors in (("Tin", unit.inputs), ("Tout", unit.outputs)):
      types = node.attr[key].list
      types.type.extend(t.dtype.as_datatype_enum for t in tensors)
      types.SetInParent()
  with graph.as_default(), graph.device(None):
    calls = tf.graph_util.import_graph_def(
      graph_def,
      input_map=given,
      return_elements=[node.name for node in graph_def.node],
      name=_SCOPE,
    )
  for unit, call in zip(made, calls, strict=True):
    call._add_control_inputs(unit.controls)
  return list(calls)
