"""Attention by content and relative position, with memory of what came before.

Dai et al., "Transformer-XL" (arXiv 1901.02860), section 3.3: the score of key
j for query i adds, to the product of their contents, the product of the query
and an embedding of their distance i - j.
"""

from typing import NamedTuple

import tensorflow as tf

_NEVER = -1e9  # added to the score of a key that a query must not see


class Span(NamedTuple):
  """What is the same in every layer and every segment.

  Attributes:
    positions: [memory + length, units] embeddings of the distances from
      memory + length - 1 down to 0.
    mask: [length, memory + length], 0 where a query sees a key, else about
      minus infinity.
  """

  positions: tf.Tensor
  mask: tf.Tensor


def span(length: int, memory: int, units: int) -> Span:
  """Sinusoids of the distances, and the mask that hides later words."""
  keys = memory + length
  distances = tf.range(keys - 1.0, -1.0, -1.0)[:, tf.newaxis]
  rates = tf.pow(10000.0, -tf.range(0.0, units, 2.0) / units)[tf.newaxis]
  angles = distances * rates
  positions = tf.concat([tf.sin(angles), tf.cos(angles)], axis=1)
  seen = tf.linalg.band_part(tf.ones((length, keys)), -1, memory)
  return Span(positions, (1.0 - seen) * _NEVER)


class Kernels(NamedTuple):
  """Weights of the attention, as read.

  Attributes:
    query, key, value, output: [units, units].
    content_bias, position_bias: [heads, 1, units / heads]; what every query
      asks for besides (u and v in the paper).
    distances: [heads, memory + length, units / heads] keys of the distances.
  """

  query: tf.Tensor
  key: tf.Tensor
  value: tf.Tensor
  output: tf.Tensor
  content_bias: tf.Tensor
  position_bias: tf.Tensor
  distances: tf.Tensor


def attend(
  kernels: Kernels, mask: tf.Tensor, hidden: tf.Tensor, context: tf.Tensor
) -> tf.Tensor:
  """One segment's attention to itself and to what came before.

  Args:
    kernels: of the layer.
    mask: of the span.
    hidden: [batch, length, units], the segment.
    context: [batch, memory + length, units], the memory, then the segment.

  Returns:
    [batch, length, units].
  """
  heads, _, depth = kernels.content_bias.shape
  queries = split_heads(_product(hidden, kernels.query), heads)
  keys = split_heads(_product(context, kernels.key), heads)
  values = split_heads(_product(context, kernels.value), heads)
  scores = relative_scores(
    queries + kernels.content_bias,
    queries + kernels.position_bias,
    keys,
    kernels.distances,
  )
  weights = tf.nn.softmax(scores * float(depth) ** -0.5 + mask)
  mixed = tf.transpose(tf.matmul(weights, values), (0, 2, 1, 3))
  return _product(tf.reshape(mixed, tf.shape(hidden)), kernels.output)


def split_heads(value: tf.Tensor, heads: int) -> tf.Tensor:
  """[batch, length, units] -> [batch, heads, length, units / heads]."""
  _, length, units = value.shape
  parts = tf.reshape(value, (-1, length, heads, units // heads))
  return tf.transpose(parts, (0, 2, 1, 3))


def relative_scores(
  by_content: tf.Tensor,
  by_position: tf.Tensor,
  keys: tf.Tensor,
  distances: tf.Tensor,
) -> tf.Tensor:
  """Scores of keys for queries, before scaling.

  Args:
    by_content: [batch, heads, length, depth] queries about contents.
    by_position: [batch, heads, length, depth] queries about distances.
    keys: [batch, heads, memory + length, depth].
    distances: [heads, memory + length, depth], from the largest to 0.

  Returns:
    [batch, heads, length, memory + length]; meaningless where a key comes
    after its query.
  """
  contents = tf.matmul(by_content, keys, transpose_b=True)
  positions = tf.matmul(by_position, distances, transpose_b=True)
  return contents + _shift(positions)


def _shift(scores: tf.Tensor) -> tf.Tensor:
  """Row i moves left by length - 1 - i: from distances to keys.

  The paper's appendix B: pad a column, and read the buffer in rows that are
  one shorter than they were.
  """
  _, heads, length, keys = scores.shape
  padded = tf.pad(scores, ((0, 0), (0, 0), (0, 0), (1, 0)))
  turned = tf.reshape(padded, (-1, heads, keys + 1, length))
  return tf.reshape(turned[:, :, 1:], (-1, heads, length, keys))


def _product(value: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
  """[batch, length, units] times [units, columns], as one plain product."""
  _, length, units = value.shape
  flat = tf.matmul(tf.reshape(value, (-1, units)), kernel)
  return tf.reshape(flat, (-1, length, kernel.shape[1]))
