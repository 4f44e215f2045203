"""The GDP network as plain TensorFlow functions. For the training process."""

import dataclasses

import tensorflow as tf

from tfplace.learned.exported import Exportable
from tfplace.learned.gdp import features
from tfplace.learned.gdp import features as axis_features
from tfplace.learned.gdp.network import PlacementNetwork


def signature(axes: int) -> list[tf.TensorSpec]:
  """Specs of `Features.tensors()` with so many axes, in its order."""
  per_node = features.NODE_FEATURES + axis_features.PER_NODE * axes
  per_pair = features.PAIR_FEATURES + axis_features.PER_PAIR * axes
  return [
    tf.TensorSpec([None], tf.int32, "type_id"),
    tf.TensorSpec([None, per_node], tf.float32, "node"),
    tf.TensorSpec([None], tf.int32, "edge_src"),
    tf.TensorSpec([None], tf.int32, "edge_dst"),
    tf.TensorSpec([None, features.EDGE_FEATURES], tf.float32, "edge"),
    tf.TensorSpec([None, features.DEVICE_FEATURES], tf.float32, "device"),
    tf.TensorSpec([None, None, per_pair], tf.float32, "pair"),
    tf.TensorSpec([None, None], tf.bool, "allowed"),
  ]


def exportable(network: PlacementNetwork) -> Exportable:
  """`logits`: `Features.tensors()` in order -> [N, D]."""
  specs = signature(network.config.axes)
  names = [spec.name for spec in specs]

  @tf.function(input_signature=specs)
  def logits(*tensors: tf.Tensor) -> tf.Tensor:
    return network(dict(zip(names, tensors, strict=True)))

  return Exportable(
    strategy="gdp",
    features=features.VERSION,
    network=dataclasses.asdict(network.config),
    variables=list(network.variables),
    functions={"logits": logits},
  )
