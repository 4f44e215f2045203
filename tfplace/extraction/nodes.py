"""Node names, tensor names, op definitions and attributes of a GraphDef.

Needs no `tf.Graph`, so a file can be checked before it is imported.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfplace.errors import ExtractionError
from tfplace.graph import csr
from tfplace.graph.paths import reached

NodeDef: TypeAlias = tf.compat.v1.NodeDef
FunctionDef: TypeAlias = Any  # a `FunctionDef` of `function.proto`
OpDef: TypeAlias = Any  # an `OpDef` of `op_def.proto`
_MAX_TENSORS = 1_000_000  # in one argument of one node
_BACK_EDGES = frozenset(("NextIteration", "RefNextIteration"))
_MERGES = frozenset(("Merge", "RefMerge"))
_ILLEGAL = re.compile(r"[^A-Za-z0-9_.\\/>-]")
_LEGAL = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*\Z")


def is_legal(name: str) -> bool:
  """Returns whether TensorFlow accepts the name for a node."""
  return bool(_LEGAL.match(name))


def split_tensor(text: str) -> tuple[str, int]:
  """Splits an input string into node and output index; -1 for "^control"."""
  if text.startswith("^"):
    return text[1:], -1
  node, colon, index = text.rpartition(":")
  if colon and index.isdigit():
    return node, int(index)
  return text, 0


def join_tensor(node: str, output: int) -> str:
  """Joins a node and an output index into TensorFlow's short form."""
  if output < 0:
    return "^" + node
  return node if output == 0 else f"{node}:{output}"


def canonical(text: str) -> str:
  """Returns the short form of an input string: "x" for "x:0"."""
  return join_tensor(*split_tensor(text))


def rename_inputs(node: NodeDef, names: Mapping[str, str]) -> None:
  """Lets a node read the nodes of new names in place of the old ones."""
  tensors = [split_tensor(text) for text in node.input]
  node.input[:] = [
    join_tensor(names.get(n, n), output) for n, output in tensors
  ]


def unique_name(wanted: str, used: Iterable[str]) -> str:
  """Returns a legal node name close to `wanted` that is not in `used`."""
  base = _ILLEGAL.sub("_", wanted).lstrip("_\\/>-") or "node"
  name, number = base, 0
  while name in used:
    number += 1
    name = f"{base}_{number}"
  return name


def controls_last(inputs: Iterable[str]) -> list[str]:
  """Moves control inputs behind data inputs and drops duplicate controls."""
  inputs = list(inputs)
  data = [i for i in inputs if not i.startswith("^")]
  return data + list(dict.fromkeys(i for i in inputs if i.startswith("^")))


def by_name(graph_def: tf.compat.v1.GraphDef) -> dict[str, NodeDef]:
  """Maps node names to nodes."""
  return {node.name: node for node in graph_def.node}


def functions_of(graph_def: tf.compat.v1.GraphDef) -> dict[str, FunctionDef]:
  """Maps names to functions of the graph's library."""
  return {f.signature.name: f for f in graph_def.library.function}


def predecessors(op: tf.Operation) -> list[tf.Operation]:
  """Returns the ops that an op reads or waits for."""
  return [*dict.fromkeys(t.op for t in op.inputs), *op.control_inputs]


def is_back_edge(source: NodeDef, target: NodeDef) -> bool:
  """Returns whether an edge closes a `while` loop of TensorFlow 1."""
  return source.op in _BACK_EDGES and target.op in _MERGES


def producers_first(graph_def: tf.compat.v1.GraphDef) -> list[NodeDef]:
  """Sorts nodes topologically, without nodes on or after a cycle.

  Every input must name a node. Back edges of loops are ignored.
  """
  nodes = graph_def.node
  index = {node.name: i for i, node in enumerate(nodes)}
  edges = [
    (source, i)
    for i, node in enumerate(nodes)
    for source in (index[split_tensor(text)[0]] for text in node.input)
    if not is_back_edge(nodes[source], node)
  ]
  sources, readers = np.array(edges, int).reshape(-1, 2).T
  offsets, order = csr.csr(sources, len(nodes))
  return [nodes[i] for i in csr.topological_order(offsets, readers[order])]


def op_def_of(node: NodeDef, functions: Mapping[str, FunctionDef]) -> OpDef:
  """Returns the node's op definition, or raises ExtractionError if unknown."""
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
  """Returns the node's `AttrValue`, else the op's default, else None."""
  if name in node.attr:
    return node.attr[name]
  for attr in op_def.attr:
    if attr.name == name and attr.HasField("default_value"):
      return attr.default_value
  return None


def arg_types(node: NodeDef, op_def: OpDef, arg: Any) -> list[int]:
  """Lists the `DataType`s of one input or output argument."""
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
  """Lists the `DataType` of every output; reference types are above 100."""
  op_def = op_def_of(node, functions)
  return [
    dtype + 100 * arg.is_ref
    for arg in op_def.output_arg
    for dtype in arg_types(node, op_def, arg)
  ]


def attr_kinds(op: str) -> dict[str, str]:
  """Maps attributes of an op known to TensorFlow to types, such as "func"."""
  op_def = op_def_registry.get(op)
  return {attr.name: attr.type for attr in op_def.attr} if op_def else {}


def function_names(node: NodeDef) -> list[str]:
  """Lists the functions named in the node's attributes, at any depth."""
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
  """Lists `function_names` and the op, which may itself name a function."""
  return [*function_names(node), node.op]


def reached_functions(
  nodes: Iterable[NodeDef], functions: Mapping[str, FunctionDef]
) -> list[FunctionDef]:
  """Lists the functions that nodes reach by calls, in order of discovery."""

  def called(body: Iterable[NodeDef]) -> list[str]:
    names = (name for node in body for name in called_functions(node))
    return [name for name in names if name in functions]

  names = reached(called(nodes), lambda name: called(functions[name].node_def))
  return [functions[name] for name in names]
