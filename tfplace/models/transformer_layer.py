"""One layer of Transformer-XL: relative attention, feed-forward, memory.

Its weights are read once per training step; its step over a segment then
takes them as tensors, so that every segment has ops of its own.
"""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfplace.models import relative_attention as attention

_EPSILON = 1e-5  # of the layer normalisation; chosen, as frameworks do


class Affine(NamedTuple):
  """A dense layer, or the scale and offset of a normalisation, as read."""

  kernel: tf.Tensor
  bias: tf.Tensor


class Weights(NamedTuple):
  """All that a layer reads once per training step.

  Attributes:
    kernels: of the attention.
    norms: after the attention and after the feed-forward part, [units] each.
    hidden: [units, feed_forward].
    output: [feed_forward, units].
    mask: of the span.
    memory: [batch, words, units] of the last training step.
  """

  kernels: attention.Kernels
  norms: tuple[Affine, Affine]
  hidden: Affine
  output: Affine
  mask: tf.Tensor
  memory: tf.Tensor


class TransformerLayer(keras.layers.Layer):
  """Weights and memory of one layer.

  Args:
    memory_shape: [batch, words, units] of what is remembered.
    heads: of the attention.
    feed_forward: hidden units.
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
    """Makes the weights, and a memory of zeros."""
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

  def read(self, span: attention.Span) -> Weights:
    """Reads all weights, under the layer's name."""
    with tf.name_scope(self.name):
      read = {k: tf.convert_to_tensor(v) for k, v in self.attention.items()}
      distances = tf.matmul(span.positions, read.pop("distance"))
      biases = [tf.convert_to_tensor(v) for v in self.biases]
      per_head = attention.split_heads(distances[tf.newaxis], self.heads)[0]
      kernels = attention.Kernels(
        **read,
        content_bias=biases[0],
        position_bias=biases[1],
        distances=per_head,
      )
      first, second, hidden, output = (
        Affine(*(tf.convert_to_tensor(v) for v in pair))
        for pair in (*self.norms, self.hidden, self.output_weights)
      )
      memory = tf.convert_to_tensor(self.memory)
      return Weights(
        kernels, (first, second), hidden, output, span.mask, memory
      )

  def remember(self, memory: tf.Tensor) -> None:
    """Keeps [batch, words, units] for the next training step."""
    with tf.name_scope(f"remember/{self.name}"):
      self.memory.assign(memory)

  def step(
    self,
    weights: Weights,
    value: tf.Tensor,
    memory: tf.Tensor,
    before: tf.Tensor | None,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """One segment.

    Args:
      weights: as read.
      value: [batch, length, units], what the layer below says.
      memory: [batch, words, units], what it said before.
      before: this layer's output of the segment before, to wait for.

    Returns:
      The layer's output, like `value`, and its memory of `value`.
    """
    waits = [] if before is None else [before]
    with tf.name_scope(self.name):
      with tf.control_dependencies(waits):
        context = tf.concat([memory, value], axis=1)
      heard = attention.attend(weights.kernels, weights.mask, value, context)
      value = _normalised(value + heard, weights.norms[0])
      value = _normalised(
        value + _feed_forward(value, weights), weights.norms[1]
      )
      kept = tf.stop_gradient(context[:, -self.memory_shape[1] :])
      return value, kept


def _feed_forward(value: tf.Tensor, weights: Weights) -> tf.Tensor:
  flat = tf.reshape(value, (-1, value.shape[2]))
  (kernel, bias), (back, last) = weights.hidden, weights.output
  hidden = tf.nn.relu(tf.nn.bias_add(tf.matmul(flat, kernel), bias))
  result = tf.nn.bias_add(tf.matmul(hidden, back), last)
  return tf.reshape(result, tf.shape(value))


def _normalised(value: tf.Tensor, norm: Affine) -> tf.Tensor:
  """Layer normalisation over units."""
  mean, variance = tf.nn.moments(value, axes=[-1], keepdims=True)
  scaled = (value - mean) * tf.math.rsqrt(variance + _EPSILON)
  return scaled * norm.kernel + norm.bias
