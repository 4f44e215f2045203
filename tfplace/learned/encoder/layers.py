"""Layers of the encoder: GraphSAGE and segment attention."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfplace.learned.train import tfgnn

NODES = "decisions"
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


class NextState(tf.keras.layers.Layer):
  """LN(h + relu(W [h, pooled in, pooled out])), the update of GraphSAGE."""

  def __init__(self, units: int) -> None:
    super().__init__()
    self._dense = tf.keras.layers.Dense(units, activation="relu")
    self._norm = tf.keras.layers.LayerNormalization()

  def call(self, inputs: tuple[Any, ...]) -> tf.Tensor:
    """Maps [N, units] states and pooled messages to [N, units]."""
    state, messages, _ = inputs
    joined = tf.concat([state, *messages.values()], axis=-1)
    return self._norm(state + self._dense(joined))


def sage_layer(units: int) -> tf.keras.layers.Layer:
  """Builds one round of message passing in both edge directions."""
  return tfgnn.keras.layers.GraphUpdate(
    node_sets={
      NODES: tfgnn.keras.layers.NodeSetUpdate(
        {direction: MaxPoolConv(units) for direction in DIRECTIONS},
        NextState(units),
      )
    }
  )


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
  the inputs of the dense layers. The cost is linear in N.
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
