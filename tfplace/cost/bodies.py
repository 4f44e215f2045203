"""The bodies of functions as graphs, and the trip counts of loops.

A body has the shapes of its call's inputs. The trip count is how often a
functional `While` runs its body, where its graph determines that.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph, tensor_util

from tfplace.cost import sizes
from tfplace.errors import ExtractionError
from tfplace.extraction import nodes


class Body(NamedTuple):
  """A function's body for inputs of given shapes.

  Attributes:
    graph_def: flat but for calls, with the library they need.
    graph: the same, imported.
    inputs: a placeholder per argument; a variable's handle where the caller
      passes one.
    outputs: what the function returns.
  """

  graph_def: tf.compat.v1.GraphDef
  graph: tf.Graph
  inputs: tuple[tf.Tensor, ...]
  outputs: tuple[tf.Tensor, ...]


def function_body(
  function: Any,
  arguments: Sequence[tf.Tensor] | None,
  functions: Mapping[str, Any],
) -> Body:
  """Instantiates a function.

  Args:
    function: a `FunctionDef`.
    arguments: what a call passes; None where the function is not called with
      tensors of its caller, and its own signature must do.
    functions: name -> `FunctionDef` of all that it may call.

  Raises:
    ExtractionError: TensorFlow rejects the function.
  """
  name = function.signature.name
  try:
    graph_def, flat_names = _flat(function, functions)
  except Exception as error:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise ExtractionError(
      f"TensorFlow rejects function {name!r}: {first}"
    ) from error
  for node, argument in zip(graph_def.node, arguments or (), strict=False):
    _pass(argument, node)
  graph_def = sizes.with_known_shapes(graph_def)
  graph = sizes.import_step(graph_def, name)
  inputs = [f"{arg.name}:0" for arg in function.signature.input_arg]
  outputs = [
    flat_names[function.ret[arg.name]] for arg in function.signature.output_arg
  ]
  return Body(
    graph_def,
    graph,
    tuple(graph.get_tensor_by_name(tensor) for tensor in inputs),
    tuple(graph.get_tensor_by_name(tensor) for tensor in outputs),
  )


def _flat(
  function: Any, functions: Mapping[str, Any]
) -> tuple[tf.compat.v1.GraphDef, dict[str, str]]:
  # Only what it reaches: with the whole library in every body, a graph of
  # many loops would take quadratic time.
  reached = nodes.reached_functions(function.node_def, functions)
  library = tf.compat.v1.GraphDef()
  library.library.function.extend(reached)
  known = tf.Graph()
  with known.as_default():
    tf.graph_util.import_graph_def(library, name="")
    graph_def, names = function_def_to_graph.function_def_to_graph_def(function)
  graph_def.library.CopyFrom(library.library)
  return graph_def, names


def _pass(argument: tf.Tensor, node: tf.compat.v1.NodeDef) -> None:
  """Makes a parameter's placeholder what the call passes for it."""
  while argument.dtype == tf.resource and argument.op.type in sizes.HANDING_ON:
    argument = argument.op.inputs[argument.value_index]
  producer = argument.op
  name = node.name
  if producer.type == "VarHandleOp":
    node.CopyFrom(producer.node_def)
    node.name = name
    node.device = ""
  elif argument.dtype != tf.resource:
    node.attr["shape"].shape.CopyFrom(argument.shape.as_proto())


_SAME = ("Identity", "StopGradient", "Cast")
_LOOPS = ("While", "StatelessWhile")


Conditions = Callable[[tf.Operation], Body]  # a loop -> its condition


def trip_count(loop: tf.Operation, condition_of: Conditions) -> int | None:
  """Iterations of a loop that counts up by one to a static limit, else None.

  Of several limits joined by "and", the smallest counts: a loop that may stop
  early is taken to run to its end. A counter that steps by more than one is
  taken for one that steps by one.

  Args:
    loop: a `While` op.
    condition_of: the body of a loop's condition.
  """
  condition = condition_of(loop)

  def value(tensor: tf.Tensor) -> float | None:
    tensor = _source(tensor)
    for position, argument in enumerate(condition.inputs):
      if argument is tensor:
        return _value(loop.inputs[position], condition_of)
    return _value(tensor, condition_of)

  counts = []
  for compare in _comparisons(condition.outputs[0]):
    start, limit = (value(tensor) for tensor in compare.inputs)
    if start is not None and limit is not None:
      inclusive = compare.type == "LessEqual"
      counts.append(max(0, int(np.ceil(limit - start)) + inclusive))
  return min(counts, default=None)


def _comparisons(tensor: tf.Tensor) -> Iterator[tf.Operation]:
  op = tensor.op
  if op.type in ("Less", "LessEqual"):
    yield op
  elif op.type == "LogicalAnd" or op.type in _SAME:
    for value in op.inputs:
      yield from _comparisons(value)


def _value(tensor: tf.Tensor, condition_of: Conditions) -> float | None:
  """A scalar that is static, or counts the iterations of another loop."""
  tensor = _source(tensor)
  value = tensor_util.constant_value(tensor)
  if value is not None:
    return float(value) if np.size(value) == 1 else None
  # TensorFlow's loops carry a counter from 0 first, and a gradient's loop runs
  # as often as the loop that it belongs to did.
  if tensor.op.type in _LOOPS and tensor.value_index == 0:
    return trip_count(tensor.op, condition_of)
  return None


def _source(tensor: tf.Tensor) -> tf.Tensor:
  while tensor.op.type in _SAME:
    tensor = tensor.op.inputs[0]
  return tensor
