"""Lets TensorFlow's importer judge a graph, and finds the node it refuses."""

import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.graph.extract import node_names, validate


def import_check(graph_def: tf.compat.v1.GraphDef, where: str) -> None:
  """Checks attributes, types and shapes.

  Args:
    graph_def: passed `validate`.
    where: file name, for errors.

  Raises:
    ExtractionError: TensorFlow refuses a node; names it and says why.
  """
  message = _refusal(graph_def)
  if message is None:
    return
  name = _culprit(graph_def)
  node = f" at node {name!r}" if name else ""
  raise ExtractionError(
    f"{where}: TensorFlow refuses the graph{node}: {message!a}", op=name
  )


def _refusal(graph_def: tf.compat.v1.GraphDef) -> str | None:
  try:
    with tf.Graph().as_default():
      tf.import_graph_def(graph_def, name="")
  except Exception as error:  # ValueError, OpError, KeyError and others
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
  return None


def _culprit(graph_def: tf.compat.v1.GraphDef) -> str | None:
  """The first node, producers first, without which the rest is accepted."""
  if any(node.op in validate.BACK_EDGES for node in graph_def.node):
    return None  # a loop has no prefix that stands alone
  order = node_names.producers_first(graph_def)
  good, bad = 0, len(order)  # `good` nodes are accepted, `bad` are refused
  while bad - good > 1:
    middle = (good + bad) // 2
    prefix = tf.compat.v1.GraphDef(
      versions=graph_def.versions, library=graph_def.library
    )
    prefix.node.extend(order[:middle])
    if _refusal(prefix) is None:
      good = middle
    else:
      bad = middle
  return str(order[bad - 1].name)
