"""NMT and GNMT: unrolled LSTM encoder-decoders with attention.

The model scores given translations (teacher forcing); it has no beam search.
Each time step has its own ops, named by step and layer, such as
`nmt/translator/decode_7/decoder_layer_1/MatMul`, with gradients under
`gradient_tape/nmt/...`. The backward direction of the bottom encoder layer is
under `encode_back_7/encoder_layer_0_backward`, where 7 is the position of the
word. Weights are read once per training step, so that a layer on two devices
transfers its weights once.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.models.lstm import (
  LstmWeights,
  Sampler,
  State,
  add_softmax,
  lstm_step,
  scoring_model,
  word_scorer,
  zero_state,
)


@keras.saving.register_keras_serializable("tfplace")
class Translator(keras.layers.Layer):
  """Scores target sentences given source sentences.

  Args:
    layers: LSTM layers of the encoder, and of the decoder.
    units: Units per layer, and size of embeddings and attention.
    vocabulary: Number of words of each language.
    bidirectional: Makes the bottom encoder layer bidirectional, as in Wu et al.
      (arXiv 1609.08144). Requires at least 2 layers.
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
    """Creates all weights."""
    self.source.build((None, None))
    self.target.build((None, None))
    for i, cell in enumerate(self.encoder):
      both = self.bidirectional and i == 1
      cell.build((None, 2 * self.units if both else self.units))
    if self.bidirectional:
      self.backward.build((None, self.units))
    # Inputs: the layer below and the attention context.
    for cell in self.decoder:
      cell.build((None, 2 * self.units))
    square = (self.units, self.units)
    self.memory_kernel = self.add_weight(square, name="attention_memory")
    self.query_kernel = self.add_weight(square, name="attention_query")
    self.score_vector = self.add_weight((self.units, 1), name="attention_score")
    self.softmax = add_softmax(self, self.units, self.vocabulary)

  def compute_output_shape(
    self, source_shape: tuple, target_shape: tuple
  ) -> tuple:
    """Returns [batch, target_length]; avoids an unrolled trace."""
    return source_shape[0], target_shape[1] - 1

  def call(self, source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """Computes the log-probability of each target word but the first.

    Maps int32 words [batch, source_length] and [batch, target_length + 1],
    which begins with the start word, to float32 [batch, target_length].
    """
    outputs, states = self._encode(source)
    return self._decode(outputs, states, target)

  def _encode(self, source: tf.Tensor) -> tuple[list[tf.Tensor], list[State]]:
    """Returns the top layer's output per step and each layer's last state.

    The state of a bidirectional bottom layer is that of its backward direction.
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
            value = _residual(i, value, states[i].output)
            if i == 0 and backward:
              value = tf.concat([value, backward[step].output], axis=1)
      outputs.append(value)
    return outputs, [*(backward[:1] or states[:1]), *states[1:]]

  def _backward(self, inputs: list[tf.Tensor], state: State) -> list[State]:
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
            value = _residual(i, value, states[i].output)
          if i == 0:
            context = attend(value)
        scores.append(score(value, words[step + 1]))
    return tf.stack(scores, axis=1)

  def _attention(
    self, memory: list[tf.Tensor]
  ) -> Callable[[tf.Tensor], tf.Tensor]:
    """Builds the additive attention of Bahdanau et al.: query -> context."""
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


def _residual(layer: int, value: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
  """Adds a residual connection from the third layer on (arXiv 1609.08144)."""
  return output + value if layer >= 2 else output


def nmt(
  *,
  batch_size: int = 64,
  layers: int = 2,
  units: int = 1024,
  vocabulary: int = 30000,
  length: int = 40,
) -> tuple[keras.Model, Sampler]:
  """Builds an LSTM translation model with attention.

  The model follows Wu et al., "Google's Neural Machine Translation System"
  (arXiv 1609.08144): 1024 units, attention that the bottom decoder layer
  queries and all decoder layers read, residual connections from the third layer
  on. Differences: a unidirectional encoder, a vocabulary of 30,000 words
  (Bahdanau et al., arXiv 1409.0473) and Adam with learning rate 1e-3. Batch
  size 64 and length 40 are about those of the placement papers.

  Args:
    batch_size: Sentence pairs per step.
    layers: LSTM layers of the encoder, and of the decoder.
    units: Units per layer.
    vocabulary: Number of words of each language.
    length: Words of a source sentence, and of a target sentence.
  """
  return scoring_model(
    "nmt",
    Translator(layers, units, vocabulary, name="translator"),
    keras.optimizers.Adam(1e-3),
    lengths={"source": length, "target": length + 1},
    batch_size=batch_size,
  )


def gnmt(
  *,
  batch_size: int = 128,
  layers: int = 8,
  units: int = 1024,
  vocabulary: int = 32000,
  length: int = 64,
) -> tuple[keras.Model, Sampler]:
  """Builds GNMT; the sizes are those of `nmt`.

  Wu et al., "Google's Neural Machine Translation System" (arXiv 1609.08144)
  give 8 layers of 1024 units, a bidirectional bottom encoder layer, residual
  connections from the third layer on, attention that the bottom decoder layer
  queries and all decoder layers read, 32,000 word pieces, batches of 128
  sentence pairs and Adam with learning rate 2e-4. Differences: the decoder
  starts from the last states of the encoder; each decoder layer reads the
  attention of its own step, the bottom layer that of the previous step; no
  dropout; no gradient clipping, for which Keras would send all gradients
  through one op. The paper gives no single length; at 64, 8 layers have over
  50,000 ops, as in the placement papers.

  Raises:
    ExtractionError: `layers` is less than 2.
  """
  if layers < 2:
    raise ExtractionError(
      f"model 'gnmt': layers must be at least 2, not {layers}"
    )
  return scoring_model(
    "gnmt",
    Translator(
      layers, units, vocabulary, bidirectional=True, name="translator"
    ),
    keras.optimizers.Adam(2e-4),
    lengths={"source": length, "target": length + 1},
    batch_size=batch_size,
  )
