"""The part of GDP's networks that reads a graph: decisions to their states.

For a training process only.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from tfplace.learned.gdp import features, layers
from tfplace.learned.train import tfgnn


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
  """Sizes of the encoder. GDP publishes none; chosen small, to train on CPUs.

  Attributes:
    units: width of every hidden state.
    type_units: width of the embedding of op types.
    sage_layers: rounds of message passing (a public re-creation of GO has 2).
    attention_layers: segment-recurrent layers (the re-creation has 3).
    heads: attention heads.
    segment: decisions per segment (the re-creation has 256).
    axes: of the ops' names, whose features it sees.
    superposition: whether the graph's state multiplies what the attention
      layers get.
  """

  units: int = 64
  type_units: int = 16
  sage_layers: int = 3
  attention_layers: int = 2
  heads: int = 4
  segment: int = 128
  axes: int = 3
  superposition: bool = True


class Encoder(tf.keras.layers.Layer):
  """GraphSAGE over both directions of the links, then attention over the
  topological order conditioned on the pooled graph (GDP, arXiv 1910.01578)."""

  def __init__(self, config: EncoderConfig, name: str) -> None:
    super().__init__(name=name)
    self.config = config
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
      for _ in range(config.attention_layers * config.superposition)
    ]
    self._attention = [
      layers.SegmentAttention(config.units, config.heads, config.segment)
      for _ in range(config.attention_layers)
    ]

  def prepare(self, inputs: dict[str, tf.Tensor]) -> None:
    """Makes the variables, by one decision: must come before a call that
    recomputes, whose loop could not make them."""
    links = ("edge", "edge_src", "edge_dst")
    kept = {name: inputs[name][:0] for name in links}
    for name in ("type_id", "node", "pair", "allowed"):
      kept[name] = inputs[name][:1]
    self({**inputs, **kept})

  def encode(
    self, inputs: dict[str, tf.Tensor], recomputes: bool = False
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """`Features.tensors()` of one problem -> [N, units] states of decisions and
    the [1, units] state of the graph.

    With `recomputes`, gradients cost a second computation instead of memory.
    """
    state = self._embed(inputs, recomputes)
    run = layers.recomputed if recomputes else layers.whole
    pooled = tf.concat(
      [tf.reduce_mean(state, axis=0), tf.reduce_max(state, axis=0)], axis=0
    )
    graph = self._graph(pooled[None])
    # Twice the sigmoid, so that a gate starts at 1.
    gates = [2.0 * gate(graph)[0] for gate in self._gates]
    gates = gates or [tf.ones(self.config.units)] * len(self._attention)
    for gate, attention in zip(gates, self._attention, strict=True):
      state = attention(state, gate, run)
    return _spread(state), graph

  def _embed(self, inputs: dict[str, tf.Tensor], recomputes: bool) -> tf.Tensor:
    """[N, units] states after message passing."""
    types = self._types(inputs["type_id"])
    state = self._node(tf.concat([inputs["node"], types], axis=-1))
    links = inputs["edge"], inputs["edge_src"], inputs["edge_dst"]
    for layer in self._sage:

      def passed(state: tf.Tensor, layer: Any = layer) -> tf.Tensor:
        graph = layer(layers.graph_tensor(state, *links))
        return graph.node_sets[layers.NODES][tfgnn.HIDDEN_STATE]

      state = (tf.recompute_grad(passed) if recomputes else passed)(state)
    return state


def _spread(state: tf.Tensor) -> tf.Tensor:
  """[N, units] states -> the same with mean 0 and variance 1 over decisions:
  what all have in common says nothing about which should part."""
  mean, variance = tf.nn.moments(state, axes=[0], keepdims=True)
  return (state - mean) * tf.math.rsqrt(variance + 1e-6)
