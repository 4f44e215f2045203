"""Graph encoder (training process only)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfplace.learned.encoder import features, layers
from tfplace.learned.train import tfgnn


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
  """Sizes of the encoder.

  GDP publishes none; these are small enough to train on CPUs.

  Attributes:
    units: Width of all hidden states.
    type_units: Width of the op type embedding.
    sage_layers: Rounds of message passing (a public re-creation of GO: 2).
    attention_layers: Segment-recurrent layers (the re-creation: 3).
    heads: Attention heads.
    segment: Decisions per segment (the re-creation: 256).
    axes: Number of op-name axes whose features are used.
  """

  units: int = 64
  type_units: int = 16
  sage_layers: int = 3
  attention_layers: int = 2
  heads: int = 4
  segment: int = 128
  axes: int = 3


class Encoder(tf.keras.layers.Layer):
  """GraphSAGE over both edge directions, then attention.

  Attention follows the topological order and is conditioned on the pooled graph
  by superposition: gates computed from it multiply the inputs (GDP, arXiv
  1910.01578).

  Attributes:
    config: Sizes.
    recomputes: True to save memory in gradients at the cost of a second forward
      pass; the variables must exist, see `prepare`.
  """

  def __init__(self, config: EncoderConfig, name: str) -> None:
    super().__init__(name=name)
    self.config = config
    self.recomputes = False
    dense = tf.keras.layers.Dense
    self._types = tf.keras.layers.Embedding(
      features.TYPE_VOCABULARY, config.type_units
    )
    self._node = dense(config.units, activation="relu")
    self._sage = [
      layers.sage_layer(config.units) for _ in range(config.sage_layers)
    ]
    self._graph = dense(config.units, activation="tanh")
    self._gates = [
      dense(config.units, activation="sigmoid")
      for _ in range(config.attention_layers)
    ]
    self._attention = [
      layers.SegmentAttention(config.units, config.heads, config.segment)
      for _ in range(config.attention_layers)
    ]

  def prepare(self, inputs: dict[str, tf.Tensor]) -> None:
    """Creates all variables by a call on one decision."""
    links = ("edge", "edge_src", "edge_dst")
    kept = {name: inputs[name][:0] for name in links}
    for name in ("type_id", "node", "pair", "allowed"):
      kept[name] = inputs[name][:1]
    self({**inputs, **kept})

  def encode(self, inputs: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Maps `Features.tensors()` to [N, units] decision and graph states.

    The graph state is [1, units].
    """
    types = self._types(inputs["type_id"])
    state = self._node(tf.concat([inputs["node"], types], axis=-1))
    links = inputs["edge"], inputs["edge_src"], inputs["edge_dst"]
    for layer in self._sage:

      def passed(state: tf.Tensor, layer: Any = layer) -> tf.Tensor:
        graph = layer(layers.graph_tensor(state, *links))
        return graph.node_sets[layers.NODES][tfgnn.HIDDEN_STATE]

      state = self.run(passed, state)
    pooled = tf.concat(
      [tf.reduce_mean(state, axis=0), tf.reduce_max(state, axis=0)], axis=0
    )
    graph = self._graph(pooled[None])
    for gate, attention in zip(self._gates, self._attention, strict=True):
      # Twice the sigmoid, so that the gates start at 1.
      state = self.run(attention, state, 2.0 * gate(graph)[0])
    return _spread(state), graph

  def run(
    self, function: Callable[..., tf.Tensor], *tensors: tf.Tensor
  ) -> tf.Tensor:
    """Calls a function of tensors; gradients call it again if wanted."""
    if self.recomputes:
      function = tf.recompute_grad(function)
    return function(*tensors)


def _spread(state: tf.Tensor) -> tf.Tensor:
  """Standardizes [N, units] states, which removes what all have in common."""
  mean, variance = tf.nn.moments(state, axes=[0], keepdims=True)
  return (state - mean) * tf.math.rsqrt(variance + 1e-6)
