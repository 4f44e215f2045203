"""Static shapes and bytes of the tensors of a traced step."""

import dataclasses
import math
from typing import Any

import tensorflow as tf

from tfplace.cost.kernels import recurrent
from tfplace.errors import ExtractionError
from tfplace.extraction.traced import TracedStep

_HANDLES = (tf.resource, tf.variant)
_STRING_BYTES = 24  # of a tstring, without its heap
# Ops that return a resource at the output of the same index as the input.
HANDING_ON = ("Identity", "While", "StatelessWhile")
_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")


@dataclasses.dataclass(frozen=True)
class TensorSpec:
  """Output of an op.

  Attributes:
    shape: static shape with None for unknown sizes; None for unknown rank.
    dtype: element type.
  """

  shape: tuple[int | None, ...] | None
  dtype: tf.DType

  @property
  def is_known(self) -> bool:
    return self.shape is not None and None not in self.shape

  @property
  def num_bytes(self) -> float:
    """Number of bytes; 0 for handles. An unknown size counts as 1."""
    if self.dtype in _HANDLES:
      return 0.0
    each = _STRING_BYTES if self.dtype == tf.string else self.dtype.size
    sizes = (1 if size is None else size for size in self.shape or ())
    return float(math.prod(sizes) * each)


def import_step(graph_def: tf.compat.v1.GraphDef, name: str) -> tf.Graph:
  """Imports a graph, for which TensorFlow infers the shapes.

  Raises:
    ExtractionError: TensorFlow rejects the graph.
  """
  graph = tf.Graph()
  try:
    with graph.as_default():
      tf.graph_util.import_graph_def(graph_def, name="")
  except Exception as error:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise ExtractionError(
      f"model {name!r}: TensorFlow rejects its graph: {first}"
    ) from error
  return graph


def output_specs(
  graph: tf.Graph, check_placeholders: bool = True
) -> dict[str, tuple[TensorSpec, ...]]:
  """Maps op names to outputs.

  Raises:
    ExtractionError: `check_placeholders` finds one of unknown shape.
  """
  result = {}
  for op in graph.get_operations():
    result[op.name] = tuple(_spec(tensor) for tensor in op.outputs)
    if op.type in recurrent.FORWARD:
      result[op.name] = _with_reserve(op, result[op.name])
    if check_placeholders and op.type == "Placeholder":
      _check_placeholder(op.name, result[op.name][0])
  return result


def _with_reserve(
  op: tf.Operation, specs: tuple[TensorSpec, ...]
) -> tuple[TensorSpec, ...]:
  """Adds the sizes of the reserve spaces, which TensorFlow does not infer."""
  shapes = [[size or 1 for size in _sizes(t.shape) or ()] for t in op.inputs]
  layers = recurrent.layers_of(op.type, op.node_def.attr, shapes)
  if layers is None:
    return specs
  on_gpu = dataclasses.replace(specs[3], shape=layers.reserved)
  on_host = (dataclasses.replace(s, shape=()) for s in specs[4:])
  return (*specs[:3], on_gpu, *on_host)


def with_feed_shapes(traced: TracedStep) -> tf.compat.v1.GraphDef:
  """Returns the step's graph with explicit shapes of feeds and variables."""
  graph_def = with_known_shapes(traced.graph_def)
  for node in graph_def.node:
    feed = traced.feeds.get(node.name)
    if node.op == "Placeholder" and feed is not None:
      shape = tf.TensorShape(feed.shape).as_proto()
      node.attr["shape"].shape.CopyFrom(shape)
  return graph_def


def with_known_shapes(
  graph_def: tf.compat.v1.GraphDef,
) -> tf.compat.v1.GraphDef:
  """Replaces the `VariableShape` of known variables by constants.

  TensorFlow's shape inference does not evaluate these ops.
  """
  result = tf.compat.v1.GraphDef()
  result.CopyFrom(graph_def)
  nodes = {node.name: node for node in result.node}
  for node in result.node:
    variable = None
    if node.op == "VariableShape":
      variable = variable_of(node.input[0], nodes)
    if variable is not None:
      shape = tf.TensorShape(variable.attr["shape"].shape)
      dtype = node.attr["out_type"].type or tf.int32.as_datatype_enum
      if shape.is_fully_defined():
        _make_constant(node, tf.make_tensor_proto(shape.as_list(), dtype))
  return result


def variable_of(
  text: str, nodes: dict[str, tf.compat.v1.NodeDef]
) -> tf.compat.v1.NodeDef | None:
  """Finds the variable of a handle, also through loops."""
  for _ in nodes:  # a graph from a file may have cycles
    name, _, output = text.partition(":")
    node = nodes.get(name)
    if node is None or node.op == "VarHandleOp":
      return node
    index = int(output or 0)
    if node.op not in HANDING_ON or index >= len(node.input):
      return None
    text = node.input[index]
  return None


def _make_constant(node: tf.compat.v1.NodeDef, value: Any) -> None:
  controls = [
    text if text.startswith("^") else f"^{text.partition(':')[0]}"
    for text in node.input
  ]
  node.op = "Const"
  node.ClearField("attr")
  node.ClearField("input")
  node.input.extend(controls)
  node.attr["dtype"].type = value.dtype
  node.attr["value"].tensor.CopyFrom(value)


def persistent_bytes(node: tf.compat.v1.NodeDef) -> float:
  """Returns the bytes of a variable, or 0 for another node.

  Raises:
    ExtractionError: the shape of the variable is unknown.
  """
  if node.op not in _VARIABLES:
    return 0.0
  shape = tf.TensorShape(node.attr["shape"].shape)
  dtype = tf.DType(node.attr["dtype"].type)
  spec = TensorSpec(_sizes(shape), dtype)
  if not spec.is_known:
    raise ExtractionError(
      f"variable {node.name!r} has unknown shape {shape}", op=node.name
    )
  return spec.num_bytes


def _sizes(shape: tf.TensorShape) -> tuple[int | None, ...] | None:
  return None if shape.rank is None else tuple(shape.as_list())


def _spec(tensor: tf.Tensor) -> TensorSpec:
  return TensorSpec(_sizes(tensor.shape), tensor.dtype.base_dtype)


def _check_placeholder(name: str, spec: TensorSpec) -> None:
  if spec.dtype not in _HANDLES and not spec.is_known:
    shape = "unknown" if spec.shape is None else list(spec.shape)
    raise ExtractionError(
      f"placeholder {name!r} has shape {shape}: give a batch size or shapes"
      " for all inputs",
      op=name,
    )
