"""The bare structure of a traced step: ops, edges, kinds, colocation.

What `tfplace.cost` fills with times and bytes to make an `OpGraph`.

Drops what TensorFlow itself never runs: ops that no result needs."""

import dataclasses
from collections.abc import Iterable

import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.extraction import colocation, kernels, nodes, validate
from tfplace.extraction import nodes as node_names
from tfplace.extraction.traced import TracedStep


@dataclasses.dataclass(frozen=True)
class Skeleton:
  """Ops in the order of the GraphDef, without any cost.

  Attributes:
    names: [num_ops].
    types: [num_ops] TensorFlow op types.
    kinds: [num_ops] device kinds with a kernel for the op.
    num_outputs: [num_ops].
    output_types: [num_ops][num_outputs] element types.
    edges: (producer, output, consumer), positions of ops; output -1 is a
      control edge. Each occurs once; sorted by consumer. The edge from a
      `NextIteration` back to its `Merge`, which closes a `while` loop of
      TensorFlow 1, is left out: one pass of the loop is costed, and the two
      ops share a colocation group, so that no transfer goes uncounted.
    colocation: [num_ops] group name, or None.
    layers: [num_ops] path of the innermost Keras layer, the model first, such
      as "net/encoder/dense"; None where the op is in no layer.
  """

  names: tuple[str, ...]
  types: tuple[str, ...]
  kinds: tuple[frozenset[str], ...]
  num_outputs: tuple[int, ...]
  output_types: tuple[tuple[tf.DType, ...], ...]
  edges: tuple[tuple[int, int, int], ...]
  colocation: tuple[str | None, ...]
  layers: tuple[str | None, ...]

  @property
  def num_ops(self) -> int:
    return len(self.names)


def skeleton(traced: TracedStep) -> Skeleton:
  """The structure of a step.

  Raises:
    ExtractionError: an op has a kernel on no kind, reads an unknown node or
      output, or this TensorFlow does not know its type.
  """
  graph_def = traced.graph_def
  functions = {f.signature.name: f for f in graph_def.library.function}
  table = kernels.KernelTable(functions)
  kinds = tuple(table.kinds(node) for node in graph_def.node)
  for node, found in zip(graph_def.node, kinds, strict=True):
    if not found:
      raise ExtractionError(
        f"op {node.name!r} ({node.op}) has a kernel for its types on no"
        f" device kind of {', '.join(kernels.KINDS)}",
        op=node.name,
      )
  types = tuple(
    tuple(tf.DType(t) for t in nodes.output_types(node, functions))
    for node in graph_def.node
  )
  return Skeleton(
    names=tuple(node.name for node in graph_def.node),
    types=tuple(node.op for node in graph_def.node),
    kinds=kinds,
    num_outputs=tuple(len(t) for t in types),
    output_types=types,
    edges=_edges(graph_def, types),
    colocation=colocation.colocation(graph_def),
    layers=tuple(
      "/".join(reversed(traced.layers[node.name]))
      if node.name in traced.layers
      else None
      for node in graph_def.node
    ),
  )


def _edges(
  graph_def: tf.compat.v1.GraphDef, types: tuple[tuple[tf.DType, ...], ...]
) -> tuple[tuple[int, int, int], ...]:
  index = {node.name: i for i, node in enumerate(graph_def.node)}
  edges: dict[tuple[int, int, int], None] = {}
  for i, node in enumerate(graph_def.node):
    for text in node.input:
      source, output = nodes.split_tensor(text)
      at = index.get(source)
      if at is None:
        raise ExtractionError(
          f"node {node.name!r} reads {text!r}, and there is no node {source!r}",
          op=node.name,
        )
      if output >= len(types[at]):
        raise ExtractionError(
          f"node {node.name!r} reads output {output} of {source!r}, which has"
          f" {len(types[at])}",
          op=node.name,
        )
      if not validate.is_back_edge(graph_def.node[at], node):
        edges[at, output, i] = None
  return tuple(edges)


def prune(
  graph_def: tf.compat.v1.GraphDef, roots: Iterable[str]
) -> tf.compat.v1.GraphDef:
  """The nodes that the roots need, in their order; the library stays.

  A session and a function's runtime prune the same way. A training step has
  such dead ops: the gradient with respect to the model's input is one.

  Args:
    graph_def: a flat graph.
    roots: node or tensor names.
  """
  nodes = node_names.by_name(graph_def)
  stack = [node_names.split_tensor(root)[0] for root in roots]
  needed: set[str] = set()
  while stack:
    name = stack.pop()
    if name in needed:
      continue
    needed.add(name)
    stack.extend(node_names.split_tensor(i)[0] for i in nodes[name].input)
  result = tf.compat.v1.GraphDef(
    versions=graph_def.versions, library=graph_def.library
  )
  result.node.extend(n for n in graph_def.node if n.name in needed)
  return result
