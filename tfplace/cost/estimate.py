"""Times of a graph's ops on every kind of hardware, calls aside."""

import math
from collections.abc import Mapping

import tensorflow as tf
from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties

from tfplace.cost import explicit_shapes, grappler


def times_us(
  graph_def: tf.compat.v1.GraphDef,
  graph: tf.Graph,
  hardware: Mapping[str, DeviceProperties],
) -> dict[str, dict[str, float]]:
  """Device kind -> node name -> microseconds; absent where there is no cost.

  Args:
    graph_def: flat graph with the shapes of its placeholders.
    graph: the same, imported.
    hardware: device kind -> its hardware.

  Raises:
    ExtractionError: Grappler rejects the graph.
  """
  explicit = explicit_shapes.with_explicit_shapes(graph_def, graph)
  item = grappler.make_item(explicit)
  return {
    kind: {
      name: _valid(time_us)
      for name, time_us in grappler.op_times_us(item, properties).items()
    }
    for kind, properties in hardware.items()
  }


def _valid(time_us: float) -> float:
  """Grappler overflows on absurd sizes; a time is finite and not negative."""
  return time_us if math.isfinite(time_us) and time_us > 0 else 0.0
