"""Translators, NMT and GNMT: an unrolled LSTM encoder-decoder with attention.

The model scores given translations (training by teacher forcing); it has no
beam search. Every time step has ops of its own, named by step and layer, such
as `nmt/translator/decode_7/decoder_layer_1/MatMul`, and their gradients
`gradient_tape/nmt/...`; those of the bottom encoder layer's backward direction
are under `encode_back_7/encoder_layer_0_backward`, 7 being the word's position.
Each weight is read once per training step: a layer that is split over two
devices sends its weights once.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.models.lstm import (
  LstmWeights,
  Sampler,
  State,
  add_softmax,
  lstm_step,
  random_words,
  residual,
  word_loss,
  word_scorer,
  zero_state,
)


@keras.saving.register_keras_serializable("tfplace")
class Translator(keras.layers.Layer):
  """Scores target sentences given source sentences.

  Args:
    layers: LSTM layers of the encoder, and of the decoder.
    units: units of each, and size of embeddings and attention.
    vocabulary: words of each language.
    bidirectional: whether the bottom encoder layer reads both ways, as in Wu
      et al. (arXiv 1609.08144); then there are at least 2 layers.
  """

  def __init__(
    self,
    layers: int,
    units: int,
    vocabulary: int,
    bidirectional: bool = False,
    **kwargs: Any,
  ) -> None:
    super().__init__(**kwargs)
    self.layers, self.units, self.vocabulary = layers, units, vocabulary
    self.bidirectional = bidirectional
    if bidirectional:
      self.backward = LstmWeights(units, name="encoder_layer_0_backward")
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
    for i, cell in enumerate(self.encoder):
      both = self.bidirectional and i == 1
      cell.build((None, 2 * self.units if both else self.units))
    if self.bidirectional:
      self.backward.build((None, self.units))
    for cell in self.decoder:  # the layer below, and the attention's context
      cell.build((None, 2 * self.units))
    square = (self.units, self.units)
    self.memory_kernel = self.add_weight(square, name="attention_memory")
    self.query_kernel = self.add_weight(square, name="attention_query")
    self.score_vector = self.add_weight((self.units, 1), name="attention_score")
    self.softmax = add_softmax(self, self.units, self.vocabulary)

  def compute_output_shape(
    self, source_shape: tuple, target_shape: tuple
  ) -> tuple:
    """[batch, target_length]; spares Keras an unrolled trace."""
    return source_shape[0], target_shape[1] - 1

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

  def _encode(self, source: tf.Tensor) -> tuple[list[tf.Tensor], list[State]]:
    """Outputs of the top layer at each step; last state of each layer.

    Of a bottom layer that reads both ways, the state is the backward one's.
    """
    inputs = tf.unstack(self.source(source), axis=1)
    states = [zero_state(source, self.units)] * self.layers
    cells = [layer.read() for layer in self.encoder]
    backward = self._backward(inputs, states[0]) if self.bidirectional else []
    outputs = []
    for step, embedded in enumerate(inputs):
      value = embedded
      with tf.name_scope(f"encode_{step}"):
        for i, layer in enumerate(self.encoder):
          with tf.name_scope(layer.name):
            states[i] = lstm_step([value], states[i], cells[i])
            value = residual(i, value, states[i].output)
            if i == 0 and backward:
              value = tf.concat([value, backward[step].output], axis=1)
      outputs.append(value)
    return outputs, [*(backward[:1] or states[:1]), *states[1:]]

  def _backward(self, inputs: list[tf.Tensor], state: State) -> list[State]:
    """By position, states of the bottom layer that reads backwards."""
    cell = self.backward.read()
    states = []
    for step in reversed(range(len(inputs))):
      with tf.name_scope(f"encode_back_{step}/{self.backward.name}"):
        state = lstm_step([inputs[step]], state, cell)
      states.append(state)
    return states[::-1]

  def _decode(
    self, memory: list[tf.Tensor], states: list[State], target: tf.Tensor
  ) -> tf.Tensor:
    words = tf.unstack(target, axis=1)
    inputs = tf.unstack(self.target(target[:, :-1]), axis=1)
    cells = [layer.read() for layer in self.decoder]
    attend, score = self._attention(memory), word_scorer(self.softmax)
    context = tf.zeros_like(memory[0])
    scores = []
    for step, embedded in enumerate(inputs):
      value = embedded
      with tf.name_scope(f"decode_{step}"):
        for i, layer in enumerate(self.decoder):
          with tf.name_scope(layer.name):
            states[i] = lstm_step([value, context], states[i], cells[i])
            value = residual(i, value, states[i].output)
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


def translation_model(
  name: str,
  translator: Translator,
  optimizer: keras.optimizers.Optimizer,
  batch_size: int,
  length: int,
) -> tuple[keras.Model, Sampler]:
  """A compiled model around a translator, and its random batches.

  Sentences of `length` words, in `batch_size` pairs. The name is the first
  scope in the names of the model's ops.
  """
  source = keras.Input((length,), dtype="int32", name="source")
  target = keras.Input((length + 1,), dtype="int32", name="target")
  model = keras.Model([source, target], translator(source, target), name=name)
  model.compile(optimizer=optimizer, loss=word_loss, jit_compile=False)

  def sample(rng: np.random.Generator) -> tuple[list, np.ndarray]:
    words = [
      random_words(rng, translator.vocabulary, (batch_size, n))
      for n in (length, length + 1)
    ]
    return words, np.ones((batch_size, length), np.float32)

  return model, sample


def nmt(
  batch_size: int = 64,
  layers: int = 2,
  units: int = 1024,
  vocabulary: int = 30000,
  length: int = 40,
) -> tuple[keras.Model, Sampler]:
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
  translator = Translator(layers, units, vocabulary, name="translator")
  optimizer = keras.optimizers.Adam(1e-3)
  return translation_model("nmt", translator, optimizer, batch_size, length)


def gnmt(
  batch_size: int = 128,
  layers: int = 8,
  units: int = 1024,
  vocabulary: int = 32000,
  length: int = 64,
) -> tuple[keras.Model, Sampler]:
  """GNMT of Wu et al., "Google's Neural Machine Translation System" (arXiv
  1609.08144); sizes as of `nmt`.

  From the paper: 8 layers of 1024 units, the bottom one of the encoder in two
  directions, residual connections from the third layer on, attention asked by
  the bottom decoder layer and heard by all, 32,000 word pieces, batches of 128
  sentence pairs, Adam of 2e-4. Not from it: the decoder starts from the
  encoder's last states, every layer of it hears the attention of its own step
  (the bottom one, of the step before), nothing is dropped out, and gradients
  are not clipped (Keras would send them all through one op). The paper gives
  no one length; 64 is chosen so that 8 layers make over 50,000 ops, as in the
  placement papers.

  Raises:
    ExtractionError: fewer than 2 layers.
  """
  if layers < 2:
    raise ExtractionError(
      f"model 'gnmt': layers must be at least 2, not {layers}"
    )
  translator = Translator(
    layers, units, vocabulary, bidirectional=True, name="translator"
  )
  optimizer = keras.optimizers.Adam(2e-4)
  return translation_model("gnmt", translator, optimizer, batch_size, length)
