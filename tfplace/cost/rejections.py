"""Times of independent ops, some of which Grappler may reject.

Grappler rejects a whole graph for one op. The ops are halved until the rejected
ones are found.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf
from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties

from tfplace.cost import grappler
from tfplace.errors import ExtractionError


@dataclasses.dataclass(frozen=True)
class Estimates:
  """Estimates of a graph.

  Attributes:
    time_us: device kind -> node -> microseconds; nodes without cost are absent.
    rejected: node that Grappler rejects -> reason.
  """

  time_us: Mapping[str, Mapping[str, float]]
  rejected: Mapping[str, str]


def estimates(
  graph_def: tf.compat.v1.GraphDef,
  ops: Sequence[str],
  hardware: Mapping[str, DeviceProperties],
) -> Estimates:
  """Estimates each op.

  Args:
    graph_def: the ops and their inputs, which are no ops themselves.
    hardware: device kind -> hardware.
  """
  if not ops:  # Grappler wants a node to fetch
    return Estimates({kind: {} for kind in hardware}, {})
  try:
    item = grappler.make_item(graph_def)
    times = {
      kind: grappler.op_times_us(item, properties)
      for kind, properties in hardware.items()
    }
    return Estimates(times, {})
  except ExtractionError as error:
    if len(ops) == 1:
      return Estimates({kind: {} for kind in hardware}, {ops[0]: str(error)})
  middle = len(ops) // 2
  one, other = (
    estimates(_part(graph_def, half), half, hardware)
    for half in (ops[:middle], ops[middle:])
  )
  return Estimates(
    {kind: {**one.time_us[kind], **other.time_us[kind]} for kind in hardware},
    {**one.rejected, **other.rejected},
  )


def _part(
  graph_def: tf.compat.v1.GraphDef, ops: Sequence[str]
) -> tf.compat.v1.GraphDef:
  own = set(ops)
  wanted = own.union(*(n.input for n in graph_def.node if n.name in own))
  part = tf.compat.v1.GraphDef(versions=graph_def.versions)
  part.node.extend(node for node in graph_def.node if node.name in wanted)
  return part
