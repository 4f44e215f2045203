"""The variables that a GraphDef holds as nodes of its own."""

import tensorflow as tf
from tensorflow.python.framework import tensor_shape

from tfplace.errors import ExtractionError
from tfplace.graph.extract.traced import VariableSpec

_VARIABLES = frozenset(("VarHandleOp", "VariableV2", "Variable"))


def variables_of(
  graph_def: tf.compat.v1.GraphDef, where: str
) -> dict[str, VariableSpec]:
  """Every variable by node name, of TensorFlow 1 or 2; no values.

  Raises:
    ExtractionError: a shape is not static; names `where` and the node.
  """
  result = {}
  for node in graph_def.node:
    if node.op not in _VARIABLES:
      continue
    shape = tensor_shape.as_shape(node.attr["shape"].shape)
    if not shape.is_fully_defined():
      raise ExtractionError(
        f"{where}: variable {node.name!r} has shape {shape}, which is not"
        " fully static",
        op=node.name,
      )
    result[node.name] = VariableSpec(
      node.name,
      tuple(shape.as_list()),
      tf.DType(node.attr["dtype"].type),
    )
  return result
