"""The body of a function as a graph, with the shapes of a call's inputs."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph

from tfplace.cost import sizes
from tfplace.errors import ExtractionError
from tfplace.graph.extract import op_defs


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
  reached = op_defs.reached_functions(function.node_def, functions)
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
