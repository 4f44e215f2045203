"""Unrolled LSTM layers, and the RNNLM language model.

Each time step has its own ops, such as
`rnnlm/language_model/step_7/lstm_layer_1/MatMul`, with gradients under
`gradient_tape/rnnlm/...`. Placement needs these separate steps, which the LSTM
layer of Keras hides. Weights are read once per training step. A model outputs
only the log-probability of each given word, so that no tensor of vocabulary
width leaves the softmax.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

Sampler = Callable[[np.random.Generator], tuple[Any, np.ndarray]]


class Softmax(NamedTuple):
  """Softmax weights: kernel [units, vocabulary], bias [vocabulary]."""

  kernel: keras.Variable
  bias: keras.Variable


def add_softmax(
  layer: keras.layers.Layer, units: int, vocabulary: int
) -> Softmax:
  """Adds the weights of a softmax over the vocabulary to a layer."""
  return Softmax(
    layer.add_weight((units, vocabulary), name="softmax_kernel"),
    layer.add_weight((vocabulary,), initializer="zeros", name="softmax_bias"),
  )


def word_scorer(
  softmax: Softmax,
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
  """Reads the softmax weights once and returns a scoring function.

  The function maps outputs [..., units] and int32 words [...] to the
  log-probabilities of the words. Its ops are in the name scope `softmax`.
  """
  with tf.name_scope("softmax"):
    kernel = tf.convert_to_tensor(softmax.kernel)
    bias = tf.convert_to_tensor(softmax.bias)

  def score(output: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    with tf.name_scope("softmax"):
      logits = tf.nn.bias_add(tf.matmul(output, kernel), bias)
      return -tf.nn.sparse_softmax_cross_entropy_with_logits(words, logits)

  return score


@keras.saving.register_keras_serializable("tfplace")
def word_loss(weights: tf.Tensor, log_probabilities: tf.Tensor) -> tf.Tensor:
  """Computes the negative log-likelihood; weights are 0 past the end."""
  return -tf.reduce_sum(weights * log_probabilities, axis=-1)


def random_words(
  rng: np.random.Generator, vocabulary: int, shape: tuple[int, ...]
) -> np.ndarray:
  """Samples int32 words uniformly."""
  return rng.integers(0, vocabulary, shape, np.int32)


def language_model(
  name: str,
  scorer: keras.layers.Layer,
  optimizer: keras.optimizers.Optimizer,
  *,
  batch_size: int,
  length: int,
  vocabulary: int,
  is_fixed: bool = False,
) -> tuple[keras.Model, Sampler]:
  """Builds a compiled language model and its batch sampler.

  A batch is `(words, weights)`: int32 [batch_size, length + 1], whose first
  word is given, and float32 [batch_size, length]. `scorer` maps words to the
  log-probabilities of all words but the first. The model accepts other batch
  sizes unless `is_fixed`.
  """
  words = keras.Input(
    (length + 1,), batch_size if is_fixed else None, dtype="int32", name="words"
  )
  model = keras.Model(words, scorer(words), name=name)
  model.compile(optimizer=optimizer, loss=word_loss, jit_compile=False)

  def sample(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    words = random_words(rng, vocabulary, (batch_size, length + 1))
    return words, np.ones((batch_size, length), np.float32)

  return model, sample


class Cell(NamedTuple):
  """LSTM weights: kernel [input + units, 4 * units], bias [4 * units]."""

  kernel: tf.Tensor
  bias: tf.Tensor


class State(NamedTuple):
  """State of an LSTM layer: output and cell, each [batch, units]."""

  output: tf.Tensor
  cell: tf.Tensor


class LstmWeights(keras.layers.Layer):
  """Holds the weights of one LSTM layer."""

  def __init__(self, units: int, **kwargs: Any) -> None:
    super().__init__(**kwargs)
    self.units = units

  def build(self, input_shape: tuple[Any, ...]) -> None:
    """Creates the weights for inputs [batch, input_shape[-1]]."""
    rows = input_shape[-1] + self.units
    self.kernel = self.add_weight((rows, 4 * self.units), name="kernel")
    self.bias = self.add_weight(
      (4 * self.units,), initializer="zeros", name="bias"
    )

  def read(self) -> Cell:
    """Reads the weights in the name scope of the layer."""
    with tf.name_scope(self.name):
      return Cell(
        tf.convert_to_tensor(self.kernel), tf.convert_to_tensor(self.bias)
      )


def lstm_step(inputs: list[tf.Tensor], state: State, cell: Cell) -> State:
  """Runs one LSTM step with forget bias 1 on concatenated inputs."""
  joined = tf.concat([*inputs, state.output], axis=1)
  gates = tf.nn.bias_add(tf.matmul(joined, cell.kernel), cell.bias)
  enter, update, forget, leave = tf.split(gates, 4, axis=1)
  kept = state.cell * tf.sigmoid(forget + 1.0)
  memory = kept + tf.sigmoid(enter) * tf.tanh(update)
  return State(tf.tanh(memory) * tf.sigmoid(leave), memory)


def zero_state(words: tf.Tensor, units: int) -> State:
  """Returns the initial state for words [batch, length]."""
  zeros = tf.zeros((tf.shape(words)[0], units))
  return State(zeros, zeros)


def residual(layer: int, value: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
  """Adds a residual connection from the third layer on (arXiv 1609.08144)."""
  return output + value if layer >= 2 else output


@keras.saving.register_keras_serializable("tfplace")
class LanguageModel(keras.layers.Layer):
  """Scores sentences word by word."""

  def __init__(
    self, layers: int, units: int, vocabulary: int, **kwargs: Any
  ) -> None:
    super().__init__(**kwargs)
    self.layers, self.units, self.vocabulary = layers, units, vocabulary
    self.cells = [
      LstmWeights(units, name=f"lstm_layer_{i}") for i in range(layers)
    ]
    self.embedding = keras.layers.Embedding(vocabulary, units, name="embedding")

  def build(self, *unused_shapes: Any, **unused: Any) -> None:
    """Creates all weights."""
    self.embedding.build((None, None))
    for cell in self.cells:
      cell.build((None, self.units))
    self.softmax = add_softmax(self, self.units, self.vocabulary)

  def compute_output_shape(self, words_shape: tuple) -> tuple:
    """Returns [batch, length]; avoids a trace of the unrolled layer."""
    return words_shape[0], words_shape[1] - 1

  def call(self, words: tf.Tensor) -> tf.Tensor:
    """Maps int32 words [batch, length + 1] to log-probabilities.

    The result, float32 [batch, length], scores each word but the first given
    the words before it.
    """
    following = tf.unstack(words, axis=1)[1:]
    inputs = tf.unstack(self.embedding(words[:, :-1]), axis=1)
    states = [zero_state(words, self.units)] * self.layers
    weights = [cell.read() for cell in self.cells]
    score = word_scorer(self.softmax)
    scores = []
    for step, embedded in enumerate(inputs):
      value = embedded
      with tf.name_scope(f"step_{step}"):
        for i, cell in enumerate(self.cells):
          with tf.name_scope(cell.name):
            states[i] = lstm_step([value], states[i], weights[i])
            value = states[i].output
        scores.append(score(value, following[step]))
    return tf.stack(scores, axis=1)


def rnnlm(
  *,
  batch_size: int = 64,
  layers: int = 2,
  units: int = 2048,
  vocabulary: int = 10000,
  length: int = 150,
) -> tuple[keras.Model, Sampler]:
  """Builds an LSTM language model.

  The model follows Jozefowicz et al., "Exploring the Limits of Language
  Modeling" (arXiv 1602.02410), which uses LSTM layers of 2048 units.
  Differences: no projection, no dropout, a zero state at the start of each
  sentence, and a full softmax over the 10,000 words of Zaremba et al. (arXiv
  1409.2329) instead of a sampled softmax over 793,471. Adam with learning rate
  1e-3, batch size 64 and length 150 are choices of this zoo. At this length 8
  layers have over 50,000 ops, as in the placement papers.

  Args:
    batch_size: Sentences per step.
    layers: LSTM layers; the placement papers use 2, 4 and 8.
    units: Units per layer, and embedding size.
    vocabulary: Number of words.
    length: Predicted words per sentence.
  """
  scorer = LanguageModel(layers, units, vocabulary, name="language_model")
  optimizer = keras.optimizers.Adam(1e-3)
  return language_model(
    "rnnlm",
    scorer,
    optimizer,
    batch_size=batch_size,
    length=length,
    vocabulary=vocabulary,
  )
