"""The recurrent networks as plain TensorFlow functions, for their export.

For the training process only; `tfplace.learned.sequence.placer` runs them.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfplace.learned.exported import Exportable
from tfplace.learned.gdp import features
from tfplace.learned.sequence import features as sequence_features
from tfplace.learned.sequence.networks import HierarchicalNetwork, RnnNetwork

GROUPING = tf.TensorSpec([None, None], tf.int32, "grouping")
CHOICES = tf.TensorSpec([None, None], tf.int32, "choices")
NOISE = tf.TensorSpec([None, None, None], tf.float32, "noise")


def signature(types: int) -> dict[str, tf.TensorSpec]:
  """Specs of `OpEmbedding.tensors()`, in its order, for any problem.

  Args:
    types: number of op types with an embedding of their own.
  """
  shapes = {
    "types": ([None, types + 1], tf.float32),
    "sizes": ([None, sequence_features.OUTPUTS], tf.float32),
    "adjacency": ([None, 2 * sequence_features.NEIGHBOURS], tf.float32),
    "edge_src": ([None], tf.int32),
    "edge_dst": ([None], tf.int32),
    "device": ([None, features.DEVICE_FEATURES], tf.float32),
    "allowed": ([None, None], tf.bool),
  }
  return {
    name: tf.TensorSpec(shape, kind, name)
    for name, (shape, kind) in shapes.items()
  }


def export_rnn(network: RnnNetwork) -> Exportable:
  """`logits` and `decode` of the network.

  Their arguments are `OpEmbedding.tensors()` in order, then those of the
  network's methods.
  """
  return _exportable("rnn", network, {"logits": [CHOICES], "decode": [NOISE]})


def export_hierarchical(network: HierarchicalNetwork) -> Exportable:
  """`group_logits`, `logits` and `decode` of the network, as `export_rnn`."""
  return _exportable(
    "hierarchical",
    network,
    {
      "group_logits": [],
      "logits": [GROUPING, CHOICES],
      "decode": [GROUPING, NOISE],
    },
  )


def _exportable(
  strategy: str,
  network: RnnNetwork | HierarchicalNetwork,
  methods: dict[str, list[tf.TensorSpec]],
) -> Exportable:
  seen = signature(len(network.config.types))
  return Exportable(
    strategy=strategy,
    features=sequence_features.VERSION,
    network=dataclasses.asdict(network.config),
    variables=list(network.variables),
    functions={
      name: _function(getattr(network, name), seen, more)
      for name, more in methods.items()
    },
  )


def _function(
  method: Callable[..., tf.Tensor],
  seen: dict[str, tf.TensorSpec],
  more: list[tf.TensorSpec],
) -> tf.types.experimental.PolymorphicFunction:
  @tf.function(input_signature=[*seen.values(), *more], autograph=False)
  def call(*tensors: tf.Tensor) -> tf.Tensor:
    inputs = dict(zip(seen, tensors[: len(seen)], strict=True))
    return method(inputs, *tensors[len(seen) :])

  return call
