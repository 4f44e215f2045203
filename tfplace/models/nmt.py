"""Neural machine translation: an unrolled LSTM encoder-decoder with attention.

Every time step has ops of its own, as in the placement papers, so that a
placer may split layers and time alike. The model scores given translations
(training by teacher forcing); it has no beam search.

Ops are named by step and layer, such as `nmt/translator/decode_7/
decoder_layer_1/MatMul`, and their gradients `gradient_tape/nmt/...`. Each
weight is read once per training step, not once per time step: a layer that is
split over two devices sends its weights once.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfplace.models.lstm import LstmWeights, State, lstm_step


@keras.saving.register_keras_serializable("tfplace")
class Translator(keras.layers.Layer):
  """Scores target sentences given source sentences.

  Args:
    layers: LSTM layers of the encoder, and of the decoder.
    units: units of each, and size of embeddings and attention.
    vocabulary: words of each language.
  """

  def __init__(
    self, layers: int, units: int, vocabulary: int, **kwargs: Any
  ) -> None:
    super().__init__(**kwargs)
    self.layers, self.units, self.vocabulary = layers, units, vocabulary
    self.encoder = [
      LstmWeights(units, name=f"encoder_layer_{i}") for i in range(layers)
    ]
    self.decoder = [
      LstmWeights(units, name=f"decoder_layer_{i}") for i in range(layers)
    ]
    self.source = keras.layers.Embedding(
      vocabulary, units, name="encoder_embedding"
    )
    self.target = keras.layers.Embedding(
      vocabulary, units, name="decoder_embedding"
    )

  def build(self, *unused_shapes: Any, **unused: Any) -> None:
    """Makes all weights."""
    self.source.build((None, None))
    self.target.build((None, None))
    for cell in self.encoder:
      cell.build((None, self.units))
    for cell in self.decoder:  # the layer below, and the attention's context
      cell.build((None, 2 * self.units))
    square = (self.units, self.units)
    self.memory_kernel = self.add_weight(square, name="attention_memory")
    self.query_kernel = self.add_weight(square, name="attention_query")
    self.score_vector = self.add_weight((self.units, 1), name="attention_score")
    self.softmax_kernel = self.add_weight(
      (self.units, self.vocabulary), name="softmax_kernel"
    )
    self.softmax_bias = self.add_weight(
      (self.vocabulary,), initializer="zeros", name="softmax_bias"
    )

  def get_config(self) -> dict[str, Any]:
    """What rebuilds the layer."""
    sizes = {"layers": self.layers, "units": self.units}
    return {**super().get_config(), **sizes, "vocabulary": self.vocabulary}

  def call(self, source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """Log-probability of every target word but the first.

    Args:
      source: [batch, source_length] int32 words.
      target: [batch, target_length + 1] int32 words, start word first.

    Returns:
      [batch, target_length] float32.
    """
    outputs, states = self._encode(source)
    return self._decode(outputs, states, target)

  def _zero_state(self, words: tf.Tensor) -> State:
    zeros = tf.zeros((tf.shape(words)[0], self.units))
    return State(zeros, zeros)

  def _encode(self, source: tf.Tensor) -> tuple[list[tf.Tensor], list[State]]:
    """Outputs of the top layer at each step; last state of each layer."""
    inputs = tf.unstack(self.source(source), axis=1)
    states = [self._zero_state(source)] * self.layers
    cells = [layer.read() for layer in self.encoder]
    outputs = []
    for step, embedded in enumerate(inputs):
      value = embedded
      with tf.name_scope(f"encode_{step}"):
        for i, layer in enumerate(self.encoder):
          with tf.name_scope(layer.name):
            states[i] = lstm_step([value], states[i], cells[i])
            value = _residual(i, value, states[i].output)
      outputs.append(value)
    return outputs, states

  def _decode(
    self, memory: list[tf.Tensor], states: list[State], target: tf.Tensor
  ) -> tf.Tensor:
    words = tf.unstack(target, axis=1)
    inputs = tf.unstack(self.target(target[:, :-1]), axis=1)
    cells = [layer.read() for layer in self.decoder]
    attend, score = self._attention(memory), self._softmax()
    context = tf.zeros_like(memory[0])
    scores = []
    for step, embedded in enumerate(inputs):
      value = embedded
      with tf.name_scope(f"decode_{step}"):
        for i, layer in enumerate(self.decoder):
          with tf.name_scope(layer.name):
            states[i] = lstm_step([value, context], states[i], cells[i])
            value = _residual(i, value, states[i].output)
          if i == 0:
            context = attend(value)
        scores.append(score(value, words[step + 1]))
    return tf.stack(scores, axis=1)

  def _attention(
    self, memory: list[tf.Tensor]
  ) -> Callable[[tf.Tensor], tf.Tensor]:
    """Bahdanau et al.'s additive attention: query -> context."""
    with tf.name_scope("attention"):
      values = tf.stack(memory, axis=1)  # [batch, source_length, units]
      keys = tf.tensordot(values, tf.convert_to_tensor(self.memory_kernel), 1)
      kernel = tf.convert_to_tensor(self.query_kernel)
      vector = tf.convert_to_tensor(self.score_vector)

    def attend(query: tf.Tensor) -> tf.Tensor:
      with tf.name_scope("attention"):
        hidden = tf.tanh(keys + tf.matmul(query, kernel)[:, tf.newaxis])
        energies = tf.squeeze(tf.tensordot(hidden, vector, 1), 2)
        weights = tf.nn.softmax(energies)[:, tf.newaxis]
        return tf.squeeze(tf.matmul(weights, values), 1)

    return attend

  def _softmax(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """(output, word) -> log-probability of the word."""
    with tf.name_scope("softmax"):
      kernel = tf.convert_to_tensor(self.softmax_kernel)
      bias = tf.convert_to_tensor(self.softmax_bias)

    def score(output: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
      with tf.name_scope("softmax"):
        logits = tf.nn.bias_add(tf.matmul(output, kernel), bias)
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(words, logits)

    return score


def _residual(layer: int, value: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
  """Wu et al.: residual connections from the third layer on."""
  return output + value if layer >= 2 else output


@keras.saving.register_keras_serializable("tfplace")
def word_loss(weights: tf.Tensor, log_probabilities: tf.Tensor) -> tf.Tensor:
  """Negative log-likelihood per sentence; weights are 0 after its end."""
  return -tf.reduce_sum(weights * log_probabilities, axis=-1)


def nmt(
  batch_size: int = 64,
  layers: int = 2,
  units: int = 1024,
  vocabulary: int = 30000,
  length: int = 40,
) -> tuple[keras.Model, Callable[[np.random.Generator], tuple]]:
  """A 2-layer NMT model in the manner of Wu et al., "Google's Neural Machine
  Translation System" (arXiv 1609.08144).

  From the paper: 1024 units, attention asked by the bottom decoder layer and
  heard by all, residual connections from the third layer on. Not from it: one
  direction in the encoder, a vocabulary of 30,000 words (Bahdanau et al.,
  arXiv 1409.0473), length 40 and Adam of 1e-3; batch 64 and length 40 are
  chosen, about what placement papers ran.

  Args:
    batch_size: sentence pairs per step.
    layers: LSTM layers of the encoder, and of the decoder.
    units: units per layer.
    vocabulary: words of each language.
    length: words of a source sentence, and of a target sentence.
  """
  source = keras.Input((length,), dtype="int32", name="source")
  target = keras.Input((length + 1,), dtype="int32", name="target")
  translator = Translator(layers, units, vocabulary, name="translator")
  model = keras.Model([source, target], translator(source, target), name="nmt")
  model.compile(
    optimizer=keras.optimizers.Adam(1e-3), loss=word_loss, jit_compile=False
  )

  def sample(rng: np.random.Generator) -> tuple[list, np.ndarray]:
    words = [
      rng.integers(0, vocabulary, (batch_size, n), np.int32)
      for n in (length, length + 1)
    ]
    return words, np.ones((batch_size, length), np.float32)

  return model, sample
