"""Placeto's network as a plain TensorFlow function. For training processes."""

import dataclasses

import tensorflow as tf

from tfplace.learned.exported import Exportable
from tfplace.learned.placeto import features
from tfplace.learned.placeto.network import STATE, PlacetoNetwork


def signature() -> list[tf.TensorSpec]:
  """Specs of `PlacetoFeatures.tensors()` and of the state, in their order."""
  square = [None, None]
  return [
    tf.TensorSpec([None, features.NODE_FEATURES], tf.float32, "node"),
    tf.TensorSpec(square, tf.float32, "on_device"),
    tf.TensorSpec(square, tf.float32, "slower"),
    tf.TensorSpec([None, features.DEVICE_FEATURES], tf.float32, "device"),
    tf.TensorSpec(square, tf.float32, "feeds"),
    tf.TensorSpec(square, tf.float32, "ancestors"),
    tf.TensorSpec(square, tf.bool, "allowed"),
    tf.TensorSpec(square, tf.int32, "placement"),
    tf.TensorSpec(square, tf.float32, "start"),
    tf.TensorSpec([None], tf.int32, "step"),
  ]


def exportable(network: PlacetoNetwork) -> Exportable:
  """`logits`: features, then B states -> [B, D]."""
  names = [spec.name for spec in signature()]

  @tf.function(input_signature=signature())
  def logits(*tensors: tf.Tensor) -> tf.Tensor:
    given = dict(zip(names, tensors, strict=True))
    state = {name: given.pop(name) for name in STATE}
    return network((given, state))

  return Exportable(
    strategy="placeto",
    features=features.VERSION,
    network=dataclasses.asdict(network.config),
    variables=list(network.variables),
    functions={"logits": logits},
  )
