"""Unrolled LSTM layers, and the RNNLM language model.

Each time step has its own ops, such as
`rnnlm/language_model/step_7/lstm_layer_1/MatMul`, with gradients under
`gradient_tape/rnnlm/...`. Placement needs these separate steps, which the LSTM
layer of Keras hides. Weights are read once per training step. A model outputs
only the log-probability of each given word, so that no tensor of vocabulary
width leaves the softmax.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

Sampler = Callable[[np.random.Generator], tuple[Any, np.ndarray]]


Variables = tuple[keras.Variable, keras.Variable]


def add_softmax(
  layer: keras.layers.Layer, units: int, vocabulary: int
) -> Variables:
  """Adds the weights of a softmax over the vocabulary to a layer.

  Returns:
    Kernel [units, vocabulary] and bias [vocabulary].
  """
  return (
    layer.add_weight((units, vocabulary), name="softmax_kernel"),
    layer.add_weight((vocabulary,), initializer="zeros", name="softmax_bias"),
  )


def word_scorer(
  softmax: Variables,
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
  """Reads the softmax weights once and returns a scoring function.

  The function maps outputs [..., units] and int32 words [...] to the
  log-probabilities of the words. Its ops are in the name scope `softmax`.
  """
  with tf.name_scope("softmax"):
    kernel, bias = map(tf.convert_to_tensor, softmax)

  def score(output: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    with tf.name_scope("softmax"):
      logits = tf.nn.bias_add(tf.matmul(output, kernel), bias)
      return -tf.nn.sparse_softmax_cross_entropy_with_logits(words, logits)

  return score


@keras.saving.register_keras_serializable("tfplace")
def word_loss(weights: tf.Tensor, log_probabilities: tf.Tensor) -> tf.Tensor:
  """Computes the negative log-likelihood; weights are 0 past the end."""
  return -tf.reduce_sum(weights * log_probabilities, axis=-1)


def scoring_model(
  name: str,
  scorer: keras.layers.Layer,
  optimizer: keras.optimizers.Optimizer,
  *,
  lengths: Mapping[str, int],
  batch_size: int,
  is_fixed: bool = False,
) -> tuple[keras.Model, Sampler]:
  """Builds a compiled model that scores words, and its batch sampler.

  A batch is `(words, weights)`: int32 [batch_size, length] per input, and
  float32 [batch_size, length - 1] for the last one, whose first word is given.

  Args:
    name: Name of the model, the first scope of the op names.
    scorer: Layer from the inputs to the log-probabilities of all words of the
      last input but the first. Its `vocabulary` is the number of words.
    optimizer: Optimizer of the model.
    lengths: Input name -> words per sentence.
    batch_size: Sentences per step.
    is_fixed: Whether the model accepts no other batch size.
  """
  size = batch_size if is_fixed else None
  inputs = [
    keras.Input((length,), size, dtype="int32", name=key)
    for key, length in lengths.items()
  ]
  model = keras.Model(_only(inputs), scorer(*inputs), name=name)
  model.compile(optimizer=optimizer, loss=word_loss, jit_compile=False)
  weights_shape = batch_size, [*lengths.values()][-1] - 1

  def sample(rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    words = [
      rng.integers(0, scorer.vocabulary, (batch_size, length), np.int32)
      for length in lengths.values()
    ]
    return _only(words), np.ones(weights_shape, np.float32)

  return model, sample


def _only(values: list[Any]) -> Any:
  """Returns the only value of a list, or the list if there are several."""
  return values[0] if len(values) == 1 else values


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
  return scoring_model(
    "rnnlm",
    LanguageModel(layers, units, vocabulary, name="language_model"),
    keras.optimizers.Adam(1e-3),
    lengths={"words": length + 1},
    batch_size=batch_size,
  )
