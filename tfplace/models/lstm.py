"""LSTM layers unrolled step by step, and the scoring of words.

Weights are read once, and every step has ops of its own: Keras' own LSTM layer
loops over time or hides the steps, and placement needs them separate. A model
that predicts words puts out the log-probability of each given word, so that the
vocabulary's width never leaves the softmax.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

Sampler = Callable[[np.random.Generator], tuple[Any, np.ndarray]]


class Softmax(NamedTuple):
  """Weights of the layer that scores words.

  Attributes:
    kernel: [units, vocabulary].
    bias: [vocabulary].
  """

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

  The function takes outputs of [..., units] and int32 words of [...], and
  puts its ops under `softmax`.
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


def language_sampler(batch_size: int, length: int, vocabulary: int) -> Sampler:
  """Batches of a language model that predicts `length` words.

  Each is `(words, weights)`: [batch_size, length + 1] int32, the first word
  being given, and [batch_size, length] float32.
  """

  def sample(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    words = random_words(rng, vocabulary, (batch_size, length + 1))
    return words, np.ones((batch_size, length), np.float32)

  return sample


class Cell(NamedTuple):
  """Weights of an LSTM layer, as read.

  Attributes:
    kernel: [input + units, 4 * units].
    bias: [4 * units].
  """

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
  """Wu et al. (arXiv 1609.08144): residual connections from the third layer
  on.

  Args:
    layer: number of the layer, from 0.
    value: what the layer below gave to this one, [batch, units].
    output: of this layer, [batch, units].
  """
  return output + value if layer >= 2 else output
