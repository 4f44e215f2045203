"""What TensorFlow's op definitions say of a node: its outputs and attributes.

Works without building a `tf.Graph`, so a file can be judged before it is
imported.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfplace.errors import ExtractionError

NodeDef: TypeAlias = tf.compat.v1.NodeDef
FunctionDef: TypeAlias = Any  # of `function.proto`
OpDef: TypeAlias = Any  # of `op_def.proto`
_MAX_TENSORS = 1_000_000  # of one argument of one node


def op_def_of(node: NodeDef, functions: Mapping[str, FunctionDef]) -> OpDef:
  """The definition of the node's op; a library function's is its signature.

  Raises:
    ExtractionError: this TensorFlow knows no such op.
  """
  op_def = op_def_registry.get(node.op)
  if op_def is not None:
    return op_def
  if node.op in functions:
    return functions[node.op].signature
  raise ExtractionError(
    f"node {node.name!r} has op {node.op!r}, which this TensorFlow"
    f" ({tf.__version__}) does not know",
    op=node.name,
  )


def attr_of(node: NodeDef, op_def: OpDef, name: str) -> Any:
  """The node's `AttrValue`, else the op's default, else None."""
  if name in node.attr:
    return node.attr[name]
  for attr in op_def.attr:
    if attr.name == name and attr.HasField("default_value"):
      return attr.default_value
  return None


def arg_types(node: NodeDef, op_def: OpDef, arg: Any) -> list[int]:
  """The `DataType`s of one input or output argument, in order."""
  if arg.type_list_attr:
    value = attr_of(node, op_def, arg.type_list_attr)
    return list(value.list.type) if value is not None else []
  count = 1
  if arg.number_attr:
    value = attr_of(node, op_def, arg.number_attr)
    count = value.i if value is not None else 0
    if not 0 <= count <= _MAX_TENSORS:
      raise ExtractionError(
        f"node {node.name!r} claims {count} tensors in {arg.name!r}; at most"
        f" {_MAX_TENSORS} are accepted",
        op=node.name,
      )
  dtype = arg.type
  if arg.type_attr:
    value = attr_of(node, op_def, arg.type_attr)
    dtype = value.type if value is not None else 0
  return [dtype] * count


def output_types(
  node: NodeDef, functions: Mapping[str, FunctionDef]
) -> list[int]:
  """The `DataType` of every output; a reference type stays one (above 100)."""
  op_def = op_def_of(node, functions)
  return [
    dtype + 100 * arg.is_ref
    for arg in op_def.output_arg
    for dtype in arg_types(node, op_def, arg)
  ]


def attr_kinds(op: str) -> dict[str, str]:
  """Attribute -> its type, such as "func", of an op that TensorFlow knows."""
  op_def = op_def_registry.get(op)
  return {attr.name: attr.type for attr in op_def.attr} if op_def else {}


def function_names(node: NodeDef) -> list[str]:
  """Names of the functions in the node's attributes, in attribute order.

  A function may be given functions by attributes of its own; they count, too.
  """
  names: list[str] = []
  _find_names(node.attr, names)
  return [name for name in names if name]


def _find_names(attrs: Mapping[str, Any], names: list[str]) -> None:
  for key in sorted(attrs):
    value = attrs[key]
    functions = [value.func] if value.HasField("func") else value.list.func
    for function in functions:
      names.append(function.name)
      _find_names(function.attr, names)


def called_functions(node: NodeDef) -> list[str]:
  """`function_names`, and the op itself, which may name a function."""
  return [*function_names(node), node.op]


def reached_functions(
  nodes: Iterable[NodeDef], functions: Mapping[str, FunctionDef]
) -> list[FunctionDef]:
  """The functions that nodes call, and those call, in order of discovery."""
  found: dict[str, None] = {}
  queue = list(nodes)
  for node in queue:  # grows while it is read
    for name in called_functions(node):
      if name in functions and name not in found:
        found[name] = None
        queue.extend(functions[name].node_def)
  return [functions[name] for name in found]
