"""What models that predict words share: softmax, loss, random sentences.

A model's output is the log-probability of each given word, so that the
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
