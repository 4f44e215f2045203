"""Grappler's times of the ops of a graph, without calls."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import tensorflow as tf
from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties

from tfplace.cost import grappler
from tfplace.cost.op_classes import OpClasses
from tfplace.errors import ExtractionError
from tfplace.extraction import nodes


class Peak(NamedTuple):
  """Key of times at the peak of the data sheet of a kind of device."""

  kind: str


Timed: TypeAlias = str | Peak  # device kind, or its peak


@dataclasses.dataclass(frozen=True)
class OpTimes:
  """Times of the ops of one graph.

  Attributes:
    time_us: kind or peak -> node -> microseconds; nodes without cost are
      absent.
    rejected: node that Grappler rejects -> reason.
  """

  time_us: Mapping[Timed, Mapping[str, float]]
  rejected: Mapping[str, str]


# Times each op that calls no function on each kind of device.
OpTimer: TypeAlias = Callable[[OpClasses], OpTimes]


def class_times(
  hardware: Mapping[str, DeviceProperties], classes: OpClasses
) -> OpTimes:
  """Estimates each class of ops once by Grappler; returns the times of ops.

  A rejected op takes its bytes over the memory bandwidth.

  Args:
    hardware: device kind -> its hardware.
  """
  if not hardware:
    return OpTimes({}, {})
  estimated = estimates(classes.graph_def, classes.representatives, hardware)
  rejected = {
    name: estimated.rejected[representative]
    for name, representative in classes.of_op.items()
    if representative in estimated.rejected
  }
  num_bytes = {name: _num_bytes(classes, name) for name in rejected}
  times: dict[Timed, dict[str, float]] = {}
  for kind, properties in hardware.items():
    of_class = estimated.time_us[kind]
    times[kind] = {
      name: _valid(of_class[representative])
      for name, representative in classes.of_op.items()
      if representative in of_class
    }
    bytes_per_us = properties.bandwidth * 1e-3  # from KB/s
    for name, size in num_bytes.items():
      times[kind][name] = _valid(size / bytes_per_us)
  return OpTimes(times, rejected)


def _num_bytes(classes: OpClasses, name: str) -> float:
  """Sums the bytes that an op reads and writes."""
  read = map(nodes.split_tensor, classes.nodes[name].input)
  tensors = [classes.specs[source][i] for source, i in read if i >= 0]
  return sum(spec.num_bytes for spec in [*tensors, *classes.specs[name]])


def _valid(time_us: float) -> float:
  """Replaces infinite and negative times, from overflows, by 0."""
  return time_us if math.isfinite(time_us) and time_us > 0 else 0.0


def estimates(
  graph_def: tf.compat.v1.GraphDef,
  ops: Sequence[str],
  hardware: Mapping[str, DeviceProperties],
) -> OpTimes:
  """Estimates independent ops, some of which Grappler may reject.

  Grappler rejects a whole graph for one op. The ops are halved until the
  rejected ones are found.

  Args:
    graph_def: the ops and their inputs, which are no ops themselves.
    hardware: device kind -> its hardware.
  """
  if not ops:  # Grappler wants a node to fetch
    return OpTimes({kind: {} for kind in hardware}, {})
  try:
    item = grappler.make_item(graph_def)
    times: dict[Timed, dict[str, float]] = {
      kind: grappler.op_times_us(item, properties)
      for kind, properties in hardware.items()
    }
    return OpTimes(times, {})
  except ExtractionError as error:
    if len(ops) == 1:
      return OpTimes({kind: {} for kind in hardware}, {ops[0]: str(error)})
  middle = len(ops) // 2
  one, other = (
    estimates(_part(graph_def, half), half, hardware)
    for half in (ops[:middle], ops[middle:])
  )
  return OpTimes(
    {kind: {**one.time_us[kind], **other.time_us[kind]} for kind in hardware},
    {**one.rejected, **other.rejected},
  )


def _part(
  graph_def: tf.compat.v1.GraphDef, ops: Sequence[str]
) -> tf.compat.v1.GraphDef:
  names = set(ops)
  wanted = names.union(*(n.input for n in graph_def.node if n.name in names))
  part = tf.compat.v1.GraphDef(versions=graph_def.versions)
  part.node.extend(node for node in graph_def.node if node.name in wanted)
  return part
