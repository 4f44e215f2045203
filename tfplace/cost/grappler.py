"""Times of ops on described hardware, by TensorFlow's analytical estimator.

Grappler needs no such device: it divides an op's multiply-adds by the peak and
its bytes by the memory bandwidth, and adds the two
(`tensorflow/core/grappler/costs/op_level_cost_estimator.cc`). Ops that it takes
for structure (constants, reads, reshapes) take no time.
"""

import contextlib
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.core.protobuf.device_properties_pb2 import (
  DeviceProperties,
  NamedDevice,
)
from tensorflow.python.grappler import cluster as grappler_cluster
from tensorflow.python.grappler import item as grappler_item

from tfplace.errors import ExtractionError

# The name only serves to place the ops; what counts are the properties. A
# name of a GPU would have Grappler look for a driver.
_DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"

# Grappler refuses a graph that one device cannot hold, which is no question
# here: what is asked is times.
_NO_LIMIT = 2**62


def op_times_us(
  item: grappler_item.Item, hardware: DeviceProperties
) -> dict[str, float]:
  """Node name -> microseconds on the hardware; nodes without cost are absent.

  Args:
    item: of `make_item`, from a flat graph of known shapes (see `estimate`).
    hardware: the device that all ops run on.

  Raises:
    ExtractionError: Grappler rejects the graph.
  """
  slow, factor = _slowed(hardware)
  device = NamedDevice(name=_DEVICE, properties=slow)
  with grappler_cluster.Provision(devices=[device]) as cluster, _rejections():
    performances, _, _ = cluster.MeasureCosts(item)
  return {p.node: p.compute_cost * 1e-3 / factor for p in performances}


def make_item(graph_def: tf.compat.v1.GraphDef) -> grappler_item.Item:
  """The graph as Grappler takes it: on one device, every node fetched.

  Raises:
    ExtractionError: Grappler rejects the graph.
  """
  meta_graph = meta_graph_pb2.MetaGraphDef()
  meta_graph.graph_def.CopyFrom(graph_def)
  for node in meta_graph.graph_def.node:
    node.device = _DEVICE
  names = [node.name for node in graph_def.node]
  meta_graph.collection_def["train_op"].node_list.value.extend(names)
  with _rejections():
    return grappler_item.Item(meta_graph)


@contextlib.contextmanager
def _rejections() -> Iterator[None]:
  try:
    yield
  except Exception as error:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise ExtractionError(f"Grappler rejects the graph: {first}") from error


def _slowed(
  hardware: DeviceProperties,
) -> tuple[DeviceProperties, float]:
  """Hardware slower by a factor, for finer times.

  Grappler reports whole microseconds, rounded down, although it computes
  nanoseconds: ops on scalars would seem free. On one core of 1 MHz, and for
  GPUs of the oldest architecture, with as much less bandwidth, times grow by
  a known factor, and so does their resolution.
  """
  lanes = 1.0
  slow = DeviceProperties()
  slow.CopyFrom(hardware)
  if hardware.type == "GPU":
    lanes = _lanes(hardware) / _lanes_of("2")
    slow.environment["architecture"] = "2"
  factor = hardware.frequency * hardware.num_cores * lanes
  slow.frequency = slow.num_cores = 1
  slow.memory_size = _NO_LIMIT
  slow.bandwidth = max(1, round(hardware.bandwidth / factor))
  return slow, factor


def _lanes(hardware: DeviceProperties) -> int:
  return _lanes_of(hardware.environment["architecture"])


def _lanes_of(architecture: str) -> int:
  """Lanes per multiprocessor as Grappler has them; strings compare as there."""
  limits = {"3": 32, "4": 192, "6": 128}
  return next((n for end, n in limits.items() if architecture < end), 64)
