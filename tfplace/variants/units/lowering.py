"""Ops of units that XLA refuses.

Kinds of ops and types do not tell: XLA must know all shapes, and some kernels
refuse attributes. So each distinct unit is lowered to HLO, which takes
milliseconds, as the backend does not run.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.eager import context

from tfplace.variants.units.functions import Unit

UNKNOWN_SHAPE = "a shape is not known before the step runs"
# Argument of a lowered unit: a shape and type, a known value, or a variable.
_Argument: TypeAlias = tf.TensorSpec | np.ndarray | tf.Tensor
_MOST_ELEMENTS = 64  # of an argument that may be a shape
_NODE = re.compile(r"\{\{node (?:\w+/)*n(\d+)\}\}")
_PREFIX = "Failed getting HLO text: '"
_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


class Lowering:
  """Lowers units of a graph, each distinct one once.

  Args:
    graph: graph of the units.
    shaped: op by name, with the shapes of a batch where these are known.
  """

  def __init__(
    self, graph: tf.Graph, shaped: Mapping[str, tf.Operation]
  ) -> None:
    self._shaped = shaped
    captures = getattr(graph, "captures", ())
    self._handles = {inner.ref(): outer for outer, inner in captures}
    self._stand_ins: list[tf.Variable] = []  # Of variables of a session.
    self._errors: dict[Any, str] = {}

  def refused(self, made: Iterable[Unit]) -> dict[tf.Operation, str]:
    """Returns ops to leave out of units, and XLA's reasons.

    Without them, XLA may refuse further ops.
    """
    reasons: dict[tf.Operation, str] = {}
    for unit in made:
      error, ops = self._error(unit)
      reasons |= dict.fromkeys(ops, _reason(error))
    return reasons

  def _error(self, unit: Unit) -> tuple[str, list[tf.Operation]]:
    """Returns XLA's error, or "", and the ops of the unit at fault."""
    arguments: list[_Argument] = []
    for tensor in unit.inputs:
      if tensor.dtype == tf.resource:
        handle = self._handle(tensor, _device_of(unit))
        if handle is None:
          return "", []
        arguments.append(handle)
        continue
      copy = self._shaped[tensor.op.name].outputs[tensor.value_index]
      value = _known_value(copy)
      if value is None and not copy.shape.is_fully_defined():
        readers = [op for op in unit.ops if tensor.op in _sources(op)]
        return UNKNOWN_SHAPE, readers or unit.ops
      spec = tf.TensorSpec(copy.shape, tensor.dtype)
      arguments.append(spec if value is None else value)
    key = unit.name, _device_of(unit), *map(_key, arguments)
    if key not in self._errors:
      self._errors[key] = _lowering_error(unit, arguments)
    error = self._errors[key]
    return error, _at_fault(unit, error) if error else []

  def _handle(self, tensor: tf.Tensor, device: str) -> tf.Tensor | None:
    """Returns the handle of a variable, or of one like it, if any is known."""
    if tensor.ref() not in self._handles and tensor.op.type == "VarHandleOp":
      shape, dtype = (tensor.op.get_attr(name) for name in ("shape", "dtype"))
      with context.eager_mode(), tf.device(device):
        self._stand_ins.append(tf.Variable(tf.zeros(shape, dtype)))
      self._handles[tensor.ref()] = self._stand_ins[-1].handle
    handle = self._handles.get(tensor.ref())
    return handle if isinstance(handle, tf.__internal__.EagerTensor) else None


def _device_of(unit: Unit) -> str:
  """Returns a device of this process to lower a unit for."""
  device = unit.ops[0].device
  return device if device in context.context().devices() else _CPU


def _sources(op: tf.Operation) -> list[tf.Operation]:
  return [tensor.op for tensor in op.inputs]


def _key(argument: _Argument) -> Any:
  if isinstance(argument, np.ndarray):
    return argument.dtype.name, argument.shape, argument.tobytes()
  if isinstance(argument, tf.TensorSpec):
    return argument
  return argument._handle_data.SerializeToString()


def _known_value(tensor: tf.Tensor) -> np.ndarray | None:
  """Returns a small integer tensor that does not depend on inputs, or None."""
  if tensor.op.type == "ShapeN":
    shape = tensor.op.inputs[tensor.value_index].shape
    known = shape.is_fully_defined()
    return np.array(shape, tensor.dtype.as_numpy_dtype) if known else None
  size = tensor.shape.num_elements() or 0  # Unknown shapes are often of shapes.
  if not tensor.dtype.is_integer or size > _MOST_ELEMENTS:
    return None
  with tensor.graph._c_graph.get() as graph:
    value = pywrap_tf_session.TF_TryEvaluateConstant_wrapper(
      graph, tensor._as_tf_output()
    )
  return None if value is None else np.asarray(value)


def _lowering_error(unit: Unit, arguments: Iterable[_Argument]) -> str:
  specs = [one for one in arguments if isinstance(one, tf.TensorSpec)]

  def called(*tensors: tf.Tensor) -> list[tf.Tensor]:
    graph, given = tf.compat.v1.get_default_graph(), iter(tensors)
    args = []
    for one in arguments:
      if isinstance(one, tf.TensorSpec):
        args.append(next(given))
      elif isinstance(one, np.ndarray):
        args.append(tf.constant(one))
      else:
        args.append(graph.capture(one))
    results = tf.raw_ops.StatefulPartitionedCall(
      args=args,
      Tout=[tensor.dtype for tensor in unit.outputs],
      f=attr_value_pb2.NameAttrList(name=unit.name),
    )
    return results if unit.outputs else []  # else the op

  with context.eager_mode():
    unit.register()
    function = tf.function(called, autograph=False)
    concrete = function.get_concrete_function(*specs)
    try:
      context.context().get_compiler_ir(
        device_name=_device_of(unit),
        platform_name=None,
        function_name=concrete.name,
        flat_args=specs,
        captured_inputs=concrete.captured_inputs,
        stage="hlo_serialized",
      )
    except (ValueError, tf.errors.OpError) as error:
      return str(error)
  return ""


def _at_fault(unit: Unit, error: str) -> list[tf.Operation]:
  """Returns the ops of the type that an error names, or all of the unit."""
  named = _NODE.search(error)
  culprit = unit.op_of(f"n{named[1]}") if named else None
  if culprit is None:
    return unit.ops
  return [op for op in unit.ops if op.type == culprit.type]


def _reason(error: str) -> str:
  """Returns the first sentence of an error, without names of nodes."""
  line = error.removeprefix(_PREFIX).partition("\n")[0]
  line = re.sub(r" to node `\S+` with op \w+", "", line)
  return line.partition(" [[")[0].partition(". ")[0].rstrip(".")


def refusal_note(
  refused: Mapping[tf.Operation, str], layer_of: Callable[[str], str]
) -> str:
  """Returns a sentence about ops that XLA refuses, by layer of an op."""
  op, why = next(iter(refused.items()))
  layer = layer_of(op.name)
  where = f" of layer {layer!r}" if layer else ""
  return f"XLA refuses {len(refused)} ops, such as {op.type}{where}: {why}."
