"""Flattens traced `tf.function`s and SavedModel signatures into `TracedStep`s.

Captured variables become `VarHandleOp` nodes with their own `shared_name`.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.extraction import custom_gradients, inline, structure
from tfplace.extraction import nodes as node_lib
from tfplace.extraction.safety import safe_loading
from tfplace.extraction.traced import (
  FeedSpec,
  TracedStep,
  VariableSpec,
  checked_batch_size,
  fill_batch,
  variables_of,
)

DEFAULT_SIGNATURE = "serving_default"
_MAX_CONSTANT_BYTES = 1 << 30  # a GraphDef holds at most 2 GiB


# Path to each inlined node; see `inline.Inlined.origins`.
Origins: TypeAlias = Mapping[str, tuple[str, ...]]


def trace_function(function: Any, **options: Any) -> TracedStep:
  """Flattens one concrete function; takes the options of `flatten_function`."""
  return flatten_function(function, **options)[0]


def flatten_function(
  function: Any,
  *,
  batch_size: int | None = None,
  name: str | None = None,
  training: bool = False,
  fetches: Sequence[tf.Tensor] | None = None,
  variable_names: Mapping[int, str] | None = None,
  values: Mapping[str, np.ndarray] | None = None,
) -> tuple[TracedStep, Origins, dict[str, int]]:
  """Flattens one concrete function.

  Args:
    function: a `tf.types.experimental.ConcreteFunction`.
    batch_size: replaces an unknown first dimension of the inputs.
    name: name of the step; the function's own by default.
    training: recorded in the result.
    fetches: tensors of `function.graph` to fetch; its outputs by default.
    variable_names: `id` of a captured `tf.Variable` -> requested node name; the
      variable's own name by default.
    values: sample value of each input placeholder.

  Returns:
    The step, the origins of its nodes, and a map from the node of each captured
    variable to the `id` of its handle tensor.

  Raises:
    ExtractionError: the shape of an input is not static, or a captured constant
      is too large for a GraphDef.
  """
  if batch_size is not None:
    function = static_shapes(function, batch_size)
  graph = function.graph
  graph_def = graph.as_graph_def()
  feeds = _feeds(function, values or {})
  variables, handles = _replace_captures(graph_def, graph, variable_names or {})
  outputs = fetches if fetches is not None else function.outputs
  result = inline.inline_functions(graph_def)
  targets = [result.node(op.name) for op in graph.control_outputs]
  tensors = [result.tensor(t.name) for t in outputs if isinstance(t, tf.Tensor)]
  flat = structure.prune(
    result.graph_def, [*tensors, *targets, *feeds, *variables]
  )
  structure.repair_constraints(flat, {})
  traced = TracedStep(
    name=name or tf.compat.as_str(function.name),
    graph_def=flat,
    feeds=feeds,
    fetches=tuple(dict.fromkeys(tensors)),
    targets=tuple(dict.fromkeys(targets)),
    variables={**variables_of(flat, str(function.name)), **variables},
    training=training,
  )
  return traced, result.origins, handles


def static_shapes(function: Any, batch_size: int) -> Any:
  """Retraces the function with its unknown batch dimensions filled in."""
  signature = function.structured_input_signature
  if all(_is_static(spec) for spec in tf.nest.flatten(signature)):
    return function

  def fill(spec: Any) -> Any:
    if not isinstance(spec, tf.TensorSpec):
      return spec
    shape = fill_batch(spec.shape, batch_size, spec.name, function.name)
    return tf.TensorSpec(shape, spec.dtype, spec.name)

  args, kwargs = tf.nest.map_structure(fill, signature)

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
  variables = {id(v.handle): v for v in graph.variables}
  nodes = node_lib.by_name(graph_def)
  used = set(nodes)
  renamed: dict[str, str] = {}
  result: dict[str, VariableSpec] = {}
  handles: dict[str, int] = {}

  def rename(node: tf.compat.v1.NodeDef, wanted: str) -> None:
    name = node_lib.unique_name(wanted, used)
    used.add(name)
    renamed[node.name] = name
    node.name = name

  for outer, inner in graph.captures:
    node = nodes[inner.op.name]
    # TensorFlow numbers unnamed captures, differently in every trace.
    is_number = node.name.isdecimal()
    if outer.dtype == tf.resource:
      variable = variables.get(id(outer))
      if variable is not None:
        default = variable.name.split(":")[0]
        rename(node, variable_names.get(id(variable), default))
        result[node.name] = _make_handle(node, variable)
        handles[node.name] = id(outer)
      elif is_number:  # a lookup table or an iterator stays a Placeholder
        rename(node, "captured_resource")
    elif outer.dtype != tf.variant:
      if is_number:
        rename(node, "captured_constant")
      _make_constant(node, outer)
  for node in graph_def.node:
    node_lib.rename_inputs(node, renamed)
  structure.repair_constraints(graph_def, renamed)
  return result, handles


def _make_handle(
  node: tf.compat.v1.NodeDef, variable: tf.Variable
) -> VariableSpec:
  name, shape = node.name, tuple(variable.shape.as_list())
  node.Clear()
  node.name = name
  node.op = "VarHandleOp"
  node.attr["shared_name"].s = name.encode()
  node.attr["container"].s = b""
  node.attr["dtype"].type = variable.dtype.as_datatype_enum
  node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
  return VariableSpec(name, shape, variable.dtype, _value(variable))


def _value(variable: tf.Variable) -> np.ndarray:
  """Reads the value; it shares memory until the variable is next written."""
  value = variable.read_value()
  try:
    return np.asarray(memoryview(value))
  except (BufferError, TypeError, ValueError):  # strings and bfloat16
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


def trace_saved_model(
  directory: str | os.PathLike[str], *args: Any, **options: Any
) -> TracedStep:
  """Traces one call of a SavedModel signature; see `flatten_signature`."""
  return flatten_signature(directory, *args, **options).traced


@dataclasses.dataclass(frozen=True)
class FlatSignature:
  """One call of a signature, and the origins of its nodes in the SavedModel.

  Attributes:
    key: key of the signature.
    traced: the step that makes the call.
    origins: node -> its path from the signature's function: a node of that
      function, the attribute that names the called function ("" if the op
      itself does), a node of the called function, and so on. Nodes that join
      bodies are absent.
    captures: node of a variable -> its index in the captured inputs.
  """

  key: str
  traced: TracedStep
  origins: Mapping[str, tuple[str, ...]]
  captures: Mapping[str, int]


def flatten_signature(
  directory: str | os.PathLike[str],
  batch_size: int | None = None,
  signature: str | None = None,
  allow_side_effects: bool = False,
) -> FlatSignature:
  """Traces one call of a SavedModel signature: an inference step.

  Args:
    directory: a SavedModel of TensorFlow 2.
    batch_size: replaces an unknown first dimension of the inputs; 32 by
      default.
    signature: key of the signature; by default "serving_default", or the only
      signature.
    allow_side_effects: lets loading touch files outside the SavedModel,
      processes and Python, because TensorFlow runs the initializers of the
      model's resources.

  Raises:
    ExtractionError: the directory is not a SavedModel or is damaged, the
      signature does not exist, an input shape is unknown, or an op is not
      allowed.
  """
  path = os.fspath(directory)
  size = checked_batch_size(batch_size, path)
  if allow_side_effects:
    safe_loading.read(path)  # raises an error that describes the damage
    loaded = safe_loading.load_unchecked(path, path)
  else:
    loaded = safe_loading.load(path)
  with custom_gradients.released_after_use(loaded):
    key, function = _signature(loaded, path, signature)
    static = static_shapes(function, size)
    name = os.path.basename(os.path.normpath(path))
    traced, origins, handles = flatten_function(static, name=name)
  places = {id(t): i for i, t in enumerate(function.captured_inputs)}
  # The values of the variables are copied, so `loaded` is no longer needed.
  return FlatSignature(
    key=key,
    traced=traced,
    origins=_origins(traced, origins, function, static is not function),
    captures={
      node: places[handle]
      for node, handle in handles.items()
      if handle in places
    },
  )


def _origins(
  traced: TracedStep, origins: Origins, function: Any, wrapped: bool
) -> dict[str, tuple[str, ...]]:
  """Returns paths that start at the signature's function, not at a wrapper."""
  nodes = [node.name for node in traced.graph_def.node]
  paths = {name: origins[name] for name in nodes if name in origins}
  if wrapped:
    return {name: path[2:] for name, path in paths.items() if path[2:]}
  names = {op.name for op in function.graph.get_operations()}
  return {**{name: (name,) for name in nodes if name in names}, **paths}


def _signature(loaded: Any, path: str, key: str | None) -> tuple[str, Any]:
  signatures = dict(getattr(loaded, "signatures", {}))
  if key is None and len(signatures) == 1:
    return next(iter(signatures.items()))
  wanted = DEFAULT_SIGNATURE if key is None else key
  if wanted not in signatures:
    known = ", ".join(map(repr, sorted(signatures))) or "none"
    raise ExtractionError(
      f"SavedModel {path!r} has no signature {wanted!r}; it has {known}"
    )
  return wanted, signatures[wanted]
