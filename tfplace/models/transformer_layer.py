"""Transformer-XL layer: relative attention, feed-forward and memory.

The layer follows section 3.3 of Dai et al., "Transformer-XL" (arXiv
1901.02860). The score of key j for query i is the product of their contents
plus the product of the query with an embedding of the distance i - j. Weights
are read once per training step; each segment has its own ops.
"""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

# Epsilon of the layer normalization, a common framework default.
_EPSILON = 1e-5
_NEVER = -1e9  # added to the score of a key that a query must not see


class Span(NamedTuple):
  """Tensors that all layers and segments share.

  Attributes:
    positions: [memory + length, units] embeddings of the distances from memory
      + length - 1 down to 0.
    mask: [length, memory + length], 0 where a query sees a key, else a large
      negative number.
  """

  positions: tf.Tensor
  mask: tf.Tensor


def span(length: int, memory: int, units: int) -> Span:
  """Computes distance embeddings and the mask that hides later words."""
  keys = memory + length
  distances = tf.range(keys - 1.0, -1.0, -1.0)[:, tf.newaxis]
  rates = tf.pow(10000.0, -tf.range(0.0, units, 2.0) / units)[tf.newaxis]
  angles = distances * rates
  positions = tf.concat([tf.sin(angles), tf.cos(angles)], axis=1)
  seen = tf.linalg.band_part(tf.ones((length, keys)), -1, memory)
  return Span(positions, (1.0 - seen) * _NEVER)


class Affine(NamedTuple):
  """Kernel and bias of a dense layer, or scale and offset of a norm."""

  kernel: tf.Tensor
  bias: tf.Tensor


class Weights(NamedTuple):
  """Tensors that a layer reads once per training step.

  Attributes:
    query, key, value, output: [units, units] kernels of the attention.
    biases: Two tensors [heads, 1, units / heads] that are added to each query,
      for contents and for distances (u and v in the paper).
    distances: [heads, memory + length, units / heads] keys of the distances.
    norms: Norms after the attention and after the feed-forward part, [units]
      each.
    hidden: First feed-forward layer, kernel [units, feed_forward].
    last: Second feed-forward layer, kernel [feed_forward, units].
    mask: Mask of the span.
    memory: [batch, words, units] memory of the last training step.
  """

  query: tf.Tensor
  key: tf.Tensor
  value: tf.Tensor
  output: tf.Tensor
  biases: tuple[tf.Tensor, tf.Tensor]
  distances: tf.Tensor
  norms: tuple[Affine, Affine]
  hidden: Affine
  last: Affine
  mask: tf.Tensor
  memory: tf.Tensor


def attend(
  weights: Weights, hidden: tf.Tensor, context: tf.Tensor
) -> tf.Tensor:
  """Computes the attention of one segment to itself and the memory.

  Args:
    weights: Weights of the layer.
    hidden: [batch, length, units], the segment.
    context: [batch, memory + length, units], the memory followed by the
      segment.

  Returns:
    [batch, length, units].
  """
  content, position = weights.biases
  heads, _, depth = content.shape
  queries = split_heads(_product(hidden, weights.query), heads)
  keys = split_heads(_product(context, weights.key), heads)
  values = split_heads(_product(context, weights.value), heads)
  scores = relative_scores(
    queries + content, queries + position, keys, weights.distances
  )
  shares = tf.nn.softmax(scores * float(depth) ** -0.5 + weights.mask)
  mixed = tf.transpose(tf.matmul(shares, values), (0, 2, 1, 3))
  return _product(tf.reshape(mixed, tf.shape(hidden)), weights.output)


def split_heads(value: tf.Tensor, heads: int) -> tf.Tensor:
  """Maps [batch, length, units] to [batch, heads, length, units / heads]."""
  _, length, units = value.shape
  parts = tf.reshape(value, (-1, length, heads, units // heads))
  return tf.transpose(parts, (0, 2, 1, 3))


def relative_scores(
  by_content: tf.Tensor,
  by_position: tf.Tensor,
  keys: tf.Tensor,
  distances: tf.Tensor,
) -> tf.Tensor:
  """Computes the unscaled scores of keys for queries.

  Args:
    by_content: [batch, heads, length, depth] queries for contents.
    by_position: [batch, heads, length, depth] queries for distances.
    keys: [batch, heads, memory + length, depth].
    distances: [heads, memory + length, depth], from the largest to 0.

  Returns:
    [batch, heads, length, memory + length]. Entries of keys that come after
    their query are meaningless.
  """
  contents = tf.matmul(by_content, keys, transpose_b=True)
  positions = tf.matmul(by_position, distances, transpose_b=True)
  return contents + _shift(positions)


def _shift(scores: tf.Tensor) -> tf.Tensor:
  """Shifts row i left by length - 1 - i, from distances to keys.

  Pads a column, then reshapes to rows one shorter (appendix B of the paper).
  """
  _, heads, length, keys = scores.shape
  padded = tf.pad(scores, ((0, 0), (0, 0), (0, 0), (1, 0)))
  turned = tf.reshape(padded, (-1, heads, keys + 1, length))
  return tf.reshape(turned[:, :, 1:], (-1, heads, length, keys))


def _product(value: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
  _, length, units = value.shape
  flat = tf.matmul(tf.reshape(value, (-1, units)), kernel)
  return tf.reshape(flat, (-1, length, kernel.shape[1]))


class TransformerLayer(keras.layers.Layer):
  """Weights and memory of one layer.

  Args:
    memory_shape: [batch, words, units] of the memory.
    heads: Attention heads.
    feed_forward: Hidden units.
  """

  def __init__(
    self,
    memory_shape: tuple[int, int, int],
    heads: int,
    feed_forward: int,
    **kwargs: Any,
  ) -> None:
    super().__init__(**kwargs)
    self.memory_shape, self.heads = memory_shape, heads
    self.feed_forward = feed_forward

  def build(self, *unused_shapes: Any, **unused: Any) -> None:
    """Creates the weights and a zero memory."""
    units, hidden = self.memory_shape[2], self.feed_forward
    square, bias = (units, units), (self.heads, 1, units // self.heads)
    self.attention = {
      name: self.add_weight(square, name=name)
      for name in ("query", "key", "value", "output", "distance")
    }
    self.biases = [
      self.add_weight(bias, initializer="zeros", name=name)
      for name in ("content_bias", "position_bias")
    ]
    self.norms = [self._affine(f"norm_{i}", (units,), "ones") for i in (0, 1)]
    self.hidden = self._affine("hidden", (units, hidden))
    self.output_weights = self._affine("feed_forward", (hidden, units))
    self.memory = self.add_weight(
      self.memory_shape, initializer="zeros", trainable=False, name="memory"
    )

  def _affine(
    self, name: str, shape: tuple[int, ...], initializer: str | None = None
  ) -> list[keras.Variable]:
    return [
      self.add_weight(shape, initializer=initializer, name=f"{name}_kernel"),
      self.add_weight(shape[-1:], initializer="zeros", name=f"{name}_bias"),
    ]

  def read(self, span: Span) -> Weights:
    """Reads all weights in the name scope of the layer."""
    with tf.name_scope(self.name):
      read = {k: tf.convert_to_tensor(v) for k, v in self.attention.items()}
      distances = tf.matmul(span.positions, read.pop("distance"))
      biases = [tf.convert_to_tensor(v) for v in self.biases]
      per_head = split_heads(distances[tf.newaxis], self.heads)[0]
      first, second, hidden, last = (
        Affine(*(tf.convert_to_tensor(v) for v in pair))
        for pair in (*self.norms, self.hidden, self.output_weights)
      )
      return Weights(
        **read,
        biases=(biases[0], biases[1]),
        distances=per_head,
        norms=(first, second),
        hidden=hidden,
        last=last,
        mask=span.mask,
        memory=tf.convert_to_tensor(self.memory),
      )

  def remember(self, memory: tf.Tensor) -> None:
    """Stores [batch, words, units] for the next training step."""
    with tf.name_scope(f"remember/{self.name}"):
      self.memory.assign(memory)

  def step(
    self,
    weights: Weights,
    value: tf.Tensor,
    memory: tf.Tensor,
    before: tf.Tensor | None,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Processes one segment.

    Args:
      weights: Result of `read`.
      value: [batch, length, units], the output of the layer below.
      memory: [batch, words, units], earlier outputs of the layer below.
      before: Output of this layer for the previous segment, which becomes a
        control dependency.

    Returns:
      The output of the layer, shaped like `value`, and the new memory.
    """
    waits = [] if before is None else [before]
    with tf.name_scope(self.name):
      with tf.control_dependencies(waits):
        context = tf.concat([memory, value], axis=1)
      heard = attend(weights, value, context)
      value = _normalised(value + heard, weights.norms[0])
      value = _normalised(
        value + _feed_forward(value, weights), weights.norms[1]
      )
      kept = tf.stop_gradient(context[:, -self.memory_shape[1] :])
      return value, kept


def _feed_forward(value: tf.Tensor, weights: Weights) -> tf.Tensor:
  flat = tf.reshape(value, (-1, value.shape[2]))
  (kernel, bias), (back, last) = weights.hidden, weights.last
  hidden = tf.nn.relu(tf.nn.bias_add(tf.matmul(flat, kernel), bias))
  result = tf.nn.bias_add(tf.matmul(hidden, back), last)
  return tf.reshape(result, tf.shape(value))


def _normalised(value: tf.Tensor, norm: Affine) -> tf.Tensor:
  mean, variance = tf.nn.moments(value, axes=[-1], keepdims=True)
  scaled = (value - mean) * tf.math.rsqrt(variance + _EPSILON)
  return scaled * norm.kernel + norm.bias
