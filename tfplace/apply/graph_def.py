"""The rewritten GraphDef: every node of a traced step with its device.

For whoever runs graphs without tfplace: TensorFlow loads the file and runs it
as such. Keras models are placed by `place_model`.
"""

import os

import tensorflow as tf
from google.protobuf import text_format

from tfplace.errors import ApplyError
from tfplace.graph.extract.traced import TracedStep
from tfplace.graph.placement import Placement
from tfplace.graph.whole_file import write_bytes


def placed_graph_def(
  traced: TracedStep, placement: Placement
) -> tf.compat.v1.GraphDef:
  """A copy of the traced graph, every node on its planned device.

  Args:
    traced: the step that `placement`'s graph was extracted from.
    placement: a device for each of its nodes.

  Raises:
    ApplyError: a node has no place, or the placement names other ops.
  """
  assignments = placement.assignments
  result = tf.compat.v1.GraphDef()
  result.CopyFrom(traced.graph_def)
  for node in result.node:
    if node.name not in assignments:
      raise ApplyError(
        f"node {node.name!r} ({node.op}) of {traced.name!r} is not in the"
        f" placement of graph {placement.problem.graph.name!r}",
        op=node.name,
      )
    node.device = assignments[node.name]
  if len(assignments) > len(result.node):
    nodes = {node.name for node in result.node}
    name = next(name for name in assignments if name not in nodes)
    raise ApplyError(
      f"the placement of graph {placement.problem.graph.name!r} names op"
      f" {name!r}, which {traced.name!r} does not have",
      op=name,
    )
  return result


def write_graph_def(
  graph_def: tf.compat.v1.GraphDef, path: str | os.PathLike[str]
) -> None:
  """Writes `.pbtxt` as text and any other name as binary.

  The file appears whole or not at all; an interrupted write leaves the old.

  Raises:
    ApplyError: more than the 2 GiB that a binary GraphDef holds.
    FormatError: the file cannot be written.
  """
  if os.fspath(path).endswith(".pbtxt"):
    data = text_format.MessageToString(graph_def).encode()
  else:
    if graph_def.ByteSize() >= 2**31:
      raise ApplyError(
        f"{os.fspath(path)!r}: a GraphDef of {graph_def.ByteSize()} bytes"
        " passes the 2 GiB of its format"
      )
    data = graph_def.SerializeToString()
  write_bytes(path, data)


def write_placed_graph_def(
  traced: TracedStep,
  placement: Placement,
  path: str | os.PathLike[str],
) -> None:
  """`placed_graph_def`, written by `write_graph_def`."""
  write_graph_def(placed_graph_def(traced, placement), path)
