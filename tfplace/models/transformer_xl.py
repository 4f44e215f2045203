"""Transformer-XL: a language model with segment-level recurrence.

A training step processes several segments. Each has its own ops under a scope
such as `transformer_xl/segments/segment_2/transformer_layer_1`. The inputs of a
layer in one segment are its memory in the next; a variable keeps the memory of
the last segment for the next training step. No gradient flows into the memory.
Control edges make each layer process the segments in order, because no data
dependency does.
"""

from typing import Any

import keras
import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.models.lstm import (
  Sampler,
  add_softmax,
  scoring_model,
  word_scorer,
)
from tfplace.models.transformer_layer import TransformerLayer, span


@keras.saving.register_keras_serializable("tfplace")
class SegmentModel(keras.layers.Layer):
  """Scores segments of text; sizes are those of `transformer_xl`."""

  def __init__(
    self,
    *,
    batch_size: int,
    layers: int,
    units: int,
    heads: int,
    feed_forward: int,
    vocabulary: int,
    length: int,
    memory: int,
    **kwargs: Any,
  ) -> None:
    super().__init__(**kwargs)
    self.units, self.vocabulary = units, vocabulary
    self.length, self.memory = length, memory
    self.embedding = keras.layers.Embedding(vocabulary, units, name="embedding")
    self.layers = [
      TransformerLayer(
        (batch_size, memory, units),
        heads,
        feed_forward,
        name=f"transformer_layer_{i}",
      )
      for i in range(layers)
    ]

  def build(self, *unused_shapes: Any, **unused: Any) -> None:
    """Creates all weights."""
    self.embedding.build((None, None))
    for layer in self.layers:
      layer.build()
    self.softmax = add_softmax(self, self.units, self.vocabulary)

  def compute_output_shape(self, words_shape: tuple) -> tuple:
    """Returns [batch_size, segments * length]; avoids a trace."""
    return words_shape[0], words_shape[1] - 1

  def call(self, words: tf.Tensor) -> tf.Tensor:
    """Maps int32 words [batch_size, segments * length + 1] to scores.

    The result, float32 [batch_size, segments * length], contains the
    log-probability of each word but the first given the words before it.
    """
    length = self.length
    with tf.name_scope("position_embedding"):
      shared = span(length, self.memory, self.units)
    weights = [layer.read(shared) for layer in self.layers]
    memories = [layer_weights.memory for layer_weights in weights]
    outputs: list[tf.Tensor | None] = [None] * len(self.layers)
    score = word_scorer(self.softmax)
    scores = []
    for segment in range((words.shape[1] - 1) // length):
      first = segment * length
      with tf.name_scope(f"segment_{segment}"):
        value = self.embedding(words[:, first : first + length])
        for i, layer in enumerate(self.layers):
          value, memories[i] = layer.step(
            weights[i], value, memories[i], outputs[i]
          )
          outputs[i] = value
        scores.append(score(value, words[:, first + 1 : first + length + 1]))
    for layer, last in zip(self.layers, memories, strict=True):
      layer.remember(last)
    return tf.concat(scores, axis=1)


def transformer_xl(
  *,
  batch_size: int = 22,
  layers: int = 12,
  units: int = 512,
  heads: int = 8,
  feed_forward: int = 2048,
  vocabulary: int = 204,
  length: int = 512,
  memory: int = 512,
  segments: int = 4,
) -> tuple[keras.Model, Sampler]:
  """Builds Transformer-XL for the bytes of enwik8.

  Source: Dai et al., "Transformer-XL: Attentive Language Models Beyond a
  Fixed-Length Context" (arXiv 1901.02860). The paper and its published settings
  give 12 layers of 512 units in 8 heads, 2,048 hidden units, segments and
  memory of 512, batch size 22 and Adam with learning rate 2.5e-4. The placement
  papers use 2, 4 and 8 layers. Differences: 4 segments per training step, so
  that layers can run in parallel; no dropout; a plain softmax instead of the
  adaptive softmax, which 204 symbols do not need.

  Args:
    batch_size: Texts per step.
    layers: Layers of attention and feed-forward.
    units: Size of embeddings and layers.
    heads: Attention heads; must divide `units`, which must be even.
    feed_forward: Hidden units of a layer.
    vocabulary: Number of symbols.
    length: Symbols per segment.
    memory: Symbols before a segment that are remembered.
    segments: Segments per training step.

  Raises:
    ExtractionError: `units` is odd or not a multiple of `heads`.
  """
  if units % 2 or units % heads:
    raise ExtractionError(
      f"model 'transformer_xl': units must be even and a multiple of heads,"
      f" not {units} with {heads} heads"
    )
  scorer = SegmentModel(
    batch_size=batch_size,
    layers=layers,
    units=units,
    heads=heads,
    feed_forward=feed_forward,
    vocabulary=vocabulary,
    length=length,
    memory=memory,
    name="segments",
  )
  return scoring_model(
    "transformer_xl",
    scorer,
    keras.optimizers.Adam(2.5e-4),
    lengths={"words": segments * length + 1},
    batch_size=batch_size,
    is_fixed=True,
  )
