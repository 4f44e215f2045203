"""LSTM layers unrolled step by step, and a language model of them.

Weights are read once per training step, and every time step has ops of its own,
such as `rnnlm/language_model/step_7/lstm_layer_1/MatMul` and their gradients
`gradient_tape/rnnlm/...`: Keras' own LSTM layer hides the steps, and placement
needs them separate. A model puts out the log-probability of each given word, so
that the vocabulary's width never leaves the softmax.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

Sampler = Callable[[np.random.Generator], tuple[Any, np.ndarray]]


class Softmax(NamedTuple):
  """Weights that score words: [units, vocabulary] and [vocabulary]."""

  kernel: keras.Variable
  bias: keras.Variable


def add_softmax(
  layer: keras.layers.Layer, units: int, vocabulary: int
) -> Softmax:
  """Gives a layer the weights of a softmax over its vocabulary."""
  return Softmax(
    layer.add_weight((units, vocabulary), name="softmax_kernel"),
    layer.add_weight((vocabulary,), initializer="zeros", name="softmax_bias"),
  )


def word_scorer(
  softmax: Softmax,
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
  """Reads the weights once; (output, word) -> log-probability of the word.

  For outputs of [..., units] and int32 words of [...], under `softmax`.
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
  """Negative log-likelihood per sentence; weights are 0 after its end."""
  return -tf.reduce_sum(weights * log_probabilities, axis=-1)


def random_words(
  rng: np.random.Generator, vocabulary: int, shape: tuple[int, ...]
) -> np.ndarray:
  """int32 words, each as likely as any other."""
  return rng.integers(0, vocabulary, shape, np.int32)


def language_model(
  name: str,
  scorer: keras.layers.Layer,
  optimizer: keras.optimizers.Optimizer,
  batch_size: int,
  length: int,
  vocabulary: int,
  is_fixed: bool = False,
) -> tuple[keras.Model, Sampler]:
  """A compiled model that predicts words, and its random batches.

  Each batch is `(words, weights)`: [batch_size, length + 1] int32, the first
  word being given, and [batch_size, length] float32. `scorer` maps words to the
  log-probability of all but the first; the model takes other batch sizes, too,
  unless `is_fixed`.
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
  """Weights of an LSTM layer: [input + units, 4 * units] and [4 * units]."""

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
    """Makes the weights for inputs of [batch, input_shape[-1]]."""
    rows = input_shape[-1] + self.units
    self.kernel = self.add_weight((rows, 4 * self.units), name="kernel")
    self.bias = self.add_weight(
      (4 * self.units,), initializer="zeros", name="bias"
    )

  def read(self) -> Cell:
    """Reads the weights, under the layer's name."""
    with tf.name_scope(self.name):
      return Cell(
        tf.convert_to_tensor(self.kernel), tf.convert_to_tensor(self.bias)
      )


def lstm_step(inputs: list[tf.Tensor], state: State, cell: Cell) -> State:
  """One step of an LSTM with forget bias 1; inputs are concatenated."""
  joined = tf.concat([*inputs, state.output], axis=1)
  gates = tf.nn.bias_add(tf.matmul(joined, cell.kernel), cell.bias)
  enter, update, forget, leave = tf.split(gates, 4, axis=1)
  kept = state.cell * tf.sigmoid(forget + 1.0)
  memory = kept + tf.sigmoid(enter) * tf.tanh(update)
  return State(tf.tanh(memory) * tf.sigmoid(leave), memory)


def zero_state(words: tf.Tensor, units: int) -> State:
  """Where a sentence starts, for words of [batch, length]."""
  zeros = tf.zeros((tf.shape(words)[0], units))
  return State(zeros, zeros)


def residual(layer: int, value: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
  """Adds what the layer below gave, from the third layer on.

  As Wu et al. (arXiv 1609.08144) do; both are [batch, units].
  """
  return output + value if layer >= 2 else output


@keras.saving.register_keras_serializable("tfplace")
class LanguageModel(keras.layers.Layer):
  """Scores sentences, word by word."""

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
    """Makes all weights."""
    self.embedding.build((None, None))
    for cell in self.cells:
      cell.build((None, self.units))
    self.softmax = add_softmax(self, self.units, self.vocabulary)

  def compute_output_shape(self, words_shape: tuple) -> tuple:
    """[batch, length]; spares Keras an unrolled trace."""
    return words_shape[0], words_shape[1] - 1

  def call(self, words: tf.Tensor) -> tf.Tensor:
    """Log-probability of every word but the first, given those before it.

    Args:
      words: [batch, length + 1] int32.

    Returns:
      [batch, length] float32.
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
  batch_size: int = 64,
  layers: int = 2,
  units: int = 2048,
  vocabulary: int = 10000,
  length: int = 150,
) -> tuple[keras.Model, Sampler]:
  """A language model in the manner of Jozefowicz et al., "Exploring the Limits
  of Language Modeling" (arXiv 1602.02410).

  From the paper: LSTM layers of 2048 units. Not from it: no projection; 10,000
  words with a full softmax, those of Zaremba et al. (arXiv 1409.2329), instead
  of 793,471 with a sampled one; nothing is dropped out; each sentence starts
  from zeros. Adam of 1e-3, batch 64 and length 150 are chosen, the length so
  that 8 layers make over 50,000 ops, as in the placement papers.

  Args:
    batch_size: sentences per step.
    layers: LSTM layers; the placement papers have 2, 4 and 8.
    units: units per layer, and size of the embedding.
    vocabulary: number of words.
    length: words that are predicted in each sentence.
  """
  scorer = LanguageModel(layers, units, vocabulary, name="language_model")
  optimizer = keras.optimizers.Adam(1e-3)
  return language_model(
    "rnnlm", scorer, optimizer, batch_size, length, vocabulary
  )
