"""Times of ops on described hardware, by TensorFlow's analytical estimator.

Grappler needs no such device: it divides an op's multiply-adds by the peak and
its bytes by the memory bandwidth, and adds the two
(`tensorflow/core/grappler/costs/op_level_cost_estimator.cc`). Ops that it takes
for structure (constants, reads, reshapes) take no time.
"""

from collections.abc import Mapping

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.core.protobuf.device_properties_pb2 import (
  DeviceProperties,
  NamedDevice,
)
from tensorflow.python.grappler import cluster as grappler_cluster
from tensorflow.python.grappler import item as grappler_item

from tfplace.cost.sizes import TensorSpec
from tfplace.errors import ExtractionError

# The name only serves to place the ops; what counts are the properties. A
# name of a GPU would have Grappler look for a driver.
_DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


def op_times_us(
  graph_def: tf.compat.v1.GraphDef,
  fetches: list[str],
  specs: Mapping[str, tuple[TensorSpec, ...]],
  hardware: DeviceProperties,
) -> dict[str, float]:
  """Node name -> microseconds on the hardware; nodes without cost are absent.

  Args:
    graph_def: flat graph.
    fetches: names of nodes to run; what they do not need has no time.
    specs: node name -> its outputs; tells Grappler shapes that it cannot infer.
    hardware: the device that all ops run on.

  Raises:
    ExtractionError: Grappler rejects the graph.
  """
  slow, factor = _slowed(hardware)
  device = NamedDevice(name=_DEVICE, properties=slow)
  meta_graph = _meta_graph(graph_def, fetches, specs)
  try:
    item = grappler_item.Item(meta_graph)
    with grappler_cluster.Provision(devices=[device]) as cluster:
      performances, _, _ = cluster.MeasureCosts(item)
  except Exception as error:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise ExtractionError(f"Grappler rejects the graph: {first}") from error
  return {p.node: p.compute_cost * 1e-3 / factor for p in performances}


def _slowed(hardware: DeviceProperties) -> tuple[DeviceProperties, int]:
  """Hardware slower by a factor, for finer times.

  Grappler reports whole microseconds, rounded down, although it computes
  nanoseconds. On hardware of 1 MHz and as much less bandwidth the times grow
  by the frequency, and so does their resolution.
  """
  factor = hardware.frequency
  slow = DeviceProperties()
  slow.CopyFrom(hardware)
  slow.frequency = 1
  slow.bandwidth = max(1, round(hardware.bandwidth / factor))
  return slow, factor


def _meta_graph(
  graph_def: tf.compat.v1.GraphDef,
  fetches: list[str],
  specs: Mapping[str, tuple[TensorSpec, ...]],
) -> meta_graph_pb2.MetaGraphDef:
  result = meta_graph_pb2.MetaGraphDef()
  result.graph_def.CopyFrom(graph_def)
  for node in result.graph_def.node:
    node.device = _DEVICE
    # Grappler's own annotations of shapes (`grappler/costs/utils.h`).
    node.attr["_same_output_for_iterations"].b = True
    shapes = node.attr["_output_shape_vector"].list.shape
    for spec in specs.get(node.name, ()):
      shapes.append(tf.TensorShape(spec.shape).as_proto())
  result.collection_def["train_op"].node_list.value.extend(fetches)
  return result
