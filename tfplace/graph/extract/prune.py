"""Drops what TensorFlow itself never runs: ops that no result needs."""

from collections.abc import Iterable

import tensorflow as tf

from tfplace.graph.extract import node_names


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
