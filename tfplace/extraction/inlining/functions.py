"""From a traced `tf.function` to a `TracedStep` that a session can run.

Captured variables become `VarHandleOp` nodes with a `shared_name` of their own,
captured constants become `Const`, and calls are inlined.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.extraction import nodes as node_lib
from tfplace.extraction import structure
from tfplace.extraction.graph_def import variables_of
from tfplace.extraction.inlining import inline
from tfplace.extraction.traced import (
  FeedSpec,
  TracedStep,
  VariableSpec,
  fill_batch,
)

_MAX_CONSTANT_BYTES = 1 << 30  # a GraphDef holds 2 GiB in all


@dataclasses.dataclass(frozen=True)
class FlatFunction:
  """A flattened function and where its nodes come from.

  Attributes:
    traced: the step.
    origins: as `inline.Inlined.origins`.
    handles: node of a captured variable -> `id` of its handle's tensor.
  """

  traced: TracedStep
  origins: Mapping[str, tuple[str, ...]]
  handles: Mapping[str, int]


def trace_function(function: Any, **options: Any) -> TracedStep:
  """Flattens one concrete function, as `flatten_function` has it."""
  return flatten_function(function, **options).traced


def flatten_function(
  function: Any,
  *,
  batch_size: int | None = None,
  name: str | None = None,
  training: bool = False,
  fetches: Sequence[tf.Tensor] | None = None,
  variable_names: Mapping[int, str] | None = None,
  values: Mapping[str, np.ndarray] | None = None,
) -> FlatFunction:
  """Flattens one concrete function.

  Args:
    function: a `tf.types.experimental.ConcreteFunction`.
    batch_size: stands for an unknown first dimension of the inputs.
    name: of the step; the function's own name by default.
    training: recorded in the result.
    fetches: tensors of `function.graph` to fetch; its outputs by default.
    variable_names: `id` of a captured `tf.Variable` -> wanted node name; its
      own name by default.
    values: sample value per input placeholder.

  Raises:
    ExtractionError: an input's shape is not static, or a captured constant is
      too big for a GraphDef.
  """
  if batch_size is not None:
    function = static_shapes(function, batch_size)
  graph = function.graph
  graph_def = graph.as_graph_def()
  feeds = _feeds(function, values or {})
  variables, handles = _replace_captures(graph_def, graph, variable_names or {})
  outputs = fetches if fetches is not None else function.outputs
  tensors = [t.name for t in outputs if isinstance(t, tf.Tensor)]
  result = inline.inline_functions(graph_def)
  targets = [result.node(op.name) for op in graph.control_outputs]
  names = tuple(dict.fromkeys(result.tensor(t) for t in tensors))
  flat = structure.prune(
    result.graph_def, [*names, *targets, *feeds, *variables]
  )
  structure.repair_constraints(flat, {})
  variables = {
    **variables_of(flat, str(function.name)),
    **variables,
  }
  traced = TracedStep(
    name=name or tf.compat.as_str(function.name),
    graph_def=flat,
    feeds=feeds,
    fetches=names,
    targets=tuple(dict.fromkeys(targets)),
    variables=variables,
    training=training,
  )
  return FlatFunction(traced, result.origins, handles)


def static_shapes(function: Any, batch_size: int) -> Any:
  """The same function with its unknown batch dimensions filled in.

  Raises:
    ExtractionError: another dimension is unknown, or tracing fails.
  """
  args, kwargs = function.structured_input_signature
  specs = tf.nest.flatten((args, kwargs))
  if all(_is_static(spec) for spec in specs):
    return function
  fill = functools.partial(_fill, batch_size=batch_size, name=function.name)
  args, kwargs = tf.nest.map_structure(fill, (args, kwargs))

  def call(*args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)

  wrapper = tf.function(call, autograph=False, jit_compile=False)
  try:
    return wrapper.get_concrete_function(*args, **kwargs)
  except Exception as error:
    raise ExtractionError(
      f"function {function.name!r} cannot be traced at batch size"
      f" {batch_size}: {str(error).strip().splitlines()[0]}"
    ) from error


def _is_static(spec: Any) -> bool:
  if not isinstance(spec, tf.TypeSpec):
    return True
  shape = getattr(spec, "shape", None)
  return shape is not None and shape.is_fully_defined()


def _fill(spec: Any, batch_size: int, name: str) -> Any:
  if not isinstance(spec, tf.TensorSpec):
    return spec
  shape = fill_batch(spec.shape, batch_size, spec.name, name)
  return tf.TensorSpec(shape, spec.dtype, spec.name)


def _feeds(
  function: Any, values: Mapping[str, np.ndarray]
) -> dict[str, FeedSpec]:
  captured = {id(inner) for _, inner in function.graph.captures}
  result = {}
  for tensor in function.inputs:
    if id(tensor) in captured or tensor.dtype == tf.resource:
      continue
    node = tensor.op.name
    if not tensor.shape.is_fully_defined():
      raise ExtractionError(
        f"input {node!r} of {function.name!r} has shape {tensor.shape}, which"
        " is not fully static",
        op=node,
      )
    shape = tuple(tensor.shape.as_list())
    result[node] = FeedSpec(tensor.name, shape, tensor.dtype, values.get(node))
  return result


def _replace_captures(
  graph_def: tf.compat.v1.GraphDef,
  graph: Any,
  variable_names: Mapping[int, str],
) -> tuple[dict[str, VariableSpec], dict[str, int]]:
  """Turns the placeholders of captures into handles and constants."""
  variables = {id(v.handle): v for v in graph.variables}
  nodes = node_lib.by_name(graph_def)
  used = set(nodes)
  renamed: dict[str, str] = {}
  result: dict[str, VariableSpec] = {}
  handles: dict[str, int] = {}
  for outer, inner in graph.captures:
    node = nodes[inner.op.name]
    if outer.dtype == tf.resource:
      variable = variables.get(id(outer))
      if variable is None:  # a table or an iterator: stays a Placeholder
        _name_capture(node, "captured_resource", used, renamed)
        continue
      wanted = variable_names.get(id(variable), variable.name.split(":")[0])
      name = node_lib.unique_name(wanted, used)
      used.add(name)
      renamed[node.name] = name
      result[name] = _make_handle(node, name, variable)
      handles[name] = id(outer)
    elif outer.dtype != tf.variant:
      _name_capture(node, "captured_constant", used, renamed)
      _make_constant(node, outer)
  _rename(graph_def, renamed)
  return result, handles


def _name_capture(
  node: tf.compat.v1.NodeDef,
  wanted: str,
  used: set[str],
  renamed: dict[str, str],
) -> None:
  """A name for what TensorFlow only gave a number, a new one every time."""
  if node.name.isdecimal():
    name = node_lib.unique_name(wanted, used)
    used.add(name)
    renamed[node.name] = name
    node.name = name


def _make_handle(
  node: tf.compat.v1.NodeDef, name: str, variable: tf.Variable
) -> VariableSpec:
  shape = tuple(variable.shape.as_list())
  node.Clear()
  node.name = name
  node.op = "VarHandleOp"
  node.attr["shared_name"].s = name.encode()
  node.attr["container"].s = b""
  node.attr["dtype"].type = variable.dtype.as_datatype_enum
  node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
  return VariableSpec(name, shape, variable.dtype, _value(variable))


def _value(variable: tf.Variable) -> np.ndarray:
  """The value now; shares memory until the variable is next written."""
  value = variable.read_value()
  try:
    return np.asarray(memoryview(value))
  except (BufferError, TypeError, ValueError):  # strings, bfloat16
    return value.numpy()


def _make_constant(node: tf.compat.v1.NodeDef, tensor: tf.Tensor) -> None:
  value = tensor.numpy()
  if getattr(value, "nbytes", 0) > _MAX_CONSTANT_BYTES:
    raise ExtractionError(
      f"captured constant {node.name!r} has {value.nbytes} bytes, more than"
      f" the {_MAX_CONSTANT_BYTES} that a GraphDef can carry; make it a"
      " tf.Variable",
      op=node.name,
      num_bytes=value.nbytes,
    )
  name = node.name
  node.Clear()
  node.name = name
  node.op = "Const"
  node.attr["dtype"].type = tensor.dtype.as_datatype_enum
  node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))


def _rename(
  graph_def: tf.compat.v1.GraphDef, renamed: Mapping[str, str]
) -> None:
  for node in graph_def.node:
    for i, text in enumerate(node.input):
      source, output = node_lib.split_tensor(text)
      if source in renamed:
        node.input[i] = node_lib.join_tensor(renamed[source], output)
  structure.repair_constraints(graph_def, renamed)
