"""Validation of a GraphDef, with errors that name the node.

`validate` runs first, because TensorFlow's importer rejects some graphs by
ending the process.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.extraction import nodes as node_lib

_REFUSED_NODE = re.compile(r"\{\{node ([^}]+)\}\}")  # In TensorFlow's errors.


def validate(graph_def: tf.compat.v1.GraphDef, where: str) -> None:
  """Checks names, ops, inputs and cycles.

  Raises:
    ExtractionError: the graph has no nodes, an illegal or duplicate name, an
      unknown op or input, or a cycle that is not a TensorFlow 1 loop; names the
      file `where` and the node.
  """
  if not graph_def.node:
    raise ExtractionError(f"{where!r} holds a GraphDef without nodes")
  functions = node_lib.functions_of(graph_def)
  _check_names((node.name for node in graph_def.node), where)
  _check_inputs(graph_def.node, functions, where)
  _check_cycles(graph_def, where)
  for name, function in functions.items():
    inner = f"{where}, function {name[:80]!a}"
    arguments = [arg.name for arg in function.signature.input_arg]
    _check_names(
      [*arguments, *(node.name for node in function.node_def)], inner
    )
    for node in function.node_def:
      with located(inner):
        node_lib.output_types(node, functions)


def _check_names(names: Iterable[str], where: str) -> None:
  seen: set[str] = set()
  for number, name in enumerate(names):
    if not node_lib.is_legal(name):
      raise ExtractionError(
        f"{where}: node {number} has the illegal name {name[:80]!a}", op=name
      )
    if name in seen:
      raise ExtractionError(f"{where}: duplicate node name {name!r}", op=name)
    seen.add(name)


@contextlib.contextmanager
def located(where: str) -> Iterator[None]:
  """Prefixes errors about a node with the file's name."""
  try:
    yield
  except ExtractionError as error:
    raise ExtractionError(f"{where}: {error}", op=error.op) from None


def _check_inputs(
  nodes: Sequence[node_lib.NodeDef],
  functions: Mapping[str, node_lib.FunctionDef],
  where: str,
) -> None:
  num_outputs = {}
  for node in nodes:
    with located(where):
      num_outputs[node.name] = len(node_lib.output_types(node, functions))
  for node in nodes:
    for text in node.input:
      source, output = node_lib.split_tensor(text)
      if source not in num_outputs:
        raise ExtractionError(
          f"{where}: node {node.name!r} has unknown input {text[:80]!a}",
          op=node.name,
        )
      if output >= num_outputs[source]:
        raise ExtractionError(
          f"{where}: node {node.name!r} reads output {output} of {source!r},"
          f" which has {num_outputs[source]}",
          op=node.name,
        )


def _check_cycles(graph_def: tf.compat.v1.GraphDef, where: str) -> None:
  order = {node.name for node in node_lib.producers_first(graph_def)}
  for node in graph_def.node:
    if node.name not in order:
      raise ExtractionError(
        f"{where}: node {node.name!r} is on, or depends on, a cycle that is no"
        " while loop",
        op=node.name,
      )


def import_check(graph_def: tf.compat.v1.GraphDef, where: str) -> None:
  """Checks attributes, types and shapes of a graph that passed `validate`."""
  try:
    with tf.Graph().as_default():
      tf.import_graph_def(graph_def, name="")
  except Exception as error:  # ValueError, OpError, KeyError and others
    text = str(error).strip() or type(error).__name__
    refused = _REFUSED_NODE.search(text)
    node = f" at node {refused[1]!r}" if refused else ""
    raise ExtractionError(
      f"{where}: TensorFlow refuses the graph{node}: {text.splitlines()[0]!a}",
      op=refused and refused[1],
    ) from error
