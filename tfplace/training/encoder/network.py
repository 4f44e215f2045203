"""Graph encoder (training process only)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfplace.learned import features
from tfplace.training.libraries import tfgnn

NODES = "decisions"
# TF-GNN concatenates messages in alphabetic order of these names.
FEEDS = "feeds"  # link from producer to consumer
FED_BY = "fed_by"  # the same link in the other direction
DIRECTIONS = (FEEDS, FED_BY)


class MaxPoolConv(tfgnn.keras.layers.AnyToAnyConvolutionBase):
  """Max pooling aggregator of GraphSAGE, as used by GDP.

  Computes the maximum over neighbors u of sigmoid(W [h_u, e_uv] + b), or 0
  without neighbors (Hamilton et al. 2017, eq. 3).
  """

  def __init__(self, units: int, **kwargs: Any) -> None:
    super().__init__(
      receiver_tag=tfgnn.TARGET,
      receiver_feature=None,
      sender_node_feature=tfgnn.HIDDEN_STATE,
      sender_edge_feature=tfgnn.HIDDEN_STATE,
      **kwargs,
    )
    self._of_node = tf.keras.layers.Dense(units, use_bias=False)
    self._of_edge = tf.keras.layers.Dense(units)

  def convolve(
    self,
    *,
    sender_node_input: tf.Tensor,
    sender_edge_input: tf.Tensor,
    broadcast_from_sender_node: Callable[[tf.Tensor], tf.Tensor],
    pool_to_receiver: Callable[..., tf.Tensor],
    **unused: Any,
  ) -> tf.Tensor:
    """Aggregates [num_links] messages to [num_decisions, units]."""
    # Computes W h_u once per node, not once per link.
    message = broadcast_from_sender_node(self._of_node(sender_node_input))
    message = tf.sigmoid(message + self._of_edge(sender_edge_input))
    return pool_to_receiver(message, reduce_type="max_no_inf")


def sage_layer(units: int) -> tf.keras.layers.Layer:
  """Builds one round of message passing in both edge directions.

  The next state is LN(h + relu(W [h, pooled in, pooled out])).
  """
  update = tfgnn.keras.layers.NodeSetUpdate(
    {direction: MaxPoolConv(units) for direction in DIRECTIONS},
    tfgnn.keras.layers.ResidualNextState(
      tf.keras.layers.Dense(units, activation="relu"),
      activation=tf.keras.layers.LayerNormalization(),
    ),
  )
  return tfgnn.keras.layers.GraphUpdate(node_sets={NODES: update})


def graph_tensor(
  state: tf.Tensor, edge: tf.Tensor, src: tf.Tensor, dst: tf.Tensor
) -> tfgnn.GraphTensor:
  """Builds a bidirectional graph from [N, units] states, [E, F] links."""

  def edge_set(source: tf.Tensor, target: tf.Tensor) -> tfgnn.EdgeSet:
    return tfgnn.EdgeSet.from_fields(
      sizes=tf.shape(src)[:1],
      features={tfgnn.HIDDEN_STATE: edge},
      adjacency=tfgnn.Adjacency.from_indices(
        source=(NODES, source), target=(NODES, target)
      ),
    )

  return tfgnn.GraphTensor.from_pieces(
    node_sets={
      NODES: tfgnn.NodeSet.from_fields(
        sizes=tf.shape(state)[:1], features={tfgnn.HIDDEN_STATE: state}
      )
    },
    edge_sets={FEEDS: edge_set(src, dst), FED_BY: edge_set(dst, src)},
  )


class SegmentAttention(tf.keras.layers.Layer):
  """Attention over segments with the previous segment as memory.

  Follows Transformer-XL (Dai et al. 2019) as used by GDP: a segment attends to
  itself and to the cached states of the previous segment, without gradient and
  without positional encoding. `gate` is GDP's superposition, which multiplies
  the inputs of attention and of the dense layers. The cost is linear in N.
  """

  def __init__(self, units: int, heads: int, segment: int) -> None:
    super().__init__()
    self._units, self._segment = units, segment
    self._attention = tf.keras.layers.MultiHeadAttention(heads, units // heads)
    self._wide = tf.keras.layers.Dense(2 * units, activation="relu")
    self._narrow = tf.keras.layers.Dense(units)
    self._norms = [tf.keras.layers.LayerNormalization() for _ in range(2)]

  def call(self, state: tf.Tensor, gate: tf.Tensor) -> tf.Tensor:
    """Maps [N, units] states in topological order to [N, units].

    `gate` is [units].
    """
    size, units = self._segment, self._units
    count = tf.shape(state)[0]
    segments = (count + size - 1) // size
    padded = tf.pad(state * gate, [[size, segments * size - count], [0, 0]])
    # [1 + segments, size, units]; the first segment is padding.
    cut = tf.reshape(padded, [-1, size, units])
    context = tf.concat([tf.stop_gradient(cut[:-1]), cut[1:]], axis=1)
    # Position of each key. Keys before the start of the sequence and past its
    # end are padding.
    at = tf.range(segments)[:, None] * size + tf.range(-size, size)[None]
    valid = (at >= 0) & (at < count)
    mixed = self._attention(cut[1:], context, attention_mask=valid[:, None])
    mixed = tf.reshape(mixed, [-1, units])[:count]
    state = self._norms[0](state + mixed)
    return self._norms[1](state + self._narrow(self._wide(state * gate)))


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
    self._sage = [sage_layer(config.units) for _ in range(config.sage_layers)]
    self._graph = dense(config.units, activation="tanh")
    self._gates = [
      dense(config.units, activation="sigmoid")
      for _ in range(config.attention_layers)
    ]
    self._attention = [
      SegmentAttention(config.units, config.heads, config.segment)
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
        graph = layer(graph_tensor(state, *links))
        return graph.node_sets[NODES][tfgnn.HIDDEN_STATE]

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
