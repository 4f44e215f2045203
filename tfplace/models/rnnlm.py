"""An LSTM language model, unrolled: 2, 4 or 8 layers.

Every time step has ops of its own, named by step and layer, such as `rnnlm/
language_model/step_7/lstm_layer_1/MatMul`, and their gradients `gradient_tape/
rnnlm/...`. Each weight is read once per training step.
"""

from typing import Any

import keras
import tensorflow as tf

from tfplace.models.lstm import (
  LstmWeights,
  Sampler,
  add_softmax,
  language_sampler,
  lstm_step,
  word_loss,
  word_scorer,
  zero_state,
)


@keras.saving.register_keras_serializable("tfplace")
class LanguageModel(keras.layers.Layer):
  """Scores sentences, word by word.

  Args:
    layers: LSTM layers.
    units: units of each, and size of the embedding.
    vocabulary: number of words.
  """

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

  def get_config(self) -> dict[str, Any]:
    """What rebuilds the layer."""
    return {
      **super().get_config(),
      "layers": self.layers,
      "units": self.units,
      "vocabulary": self.vocabulary,
    }

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
    units: units per layer.
    vocabulary: number of words.
    length: words that are predicted in each sentence.
  """
  words = keras.Input((length + 1,), dtype="int32", name="words")
  scorer = LanguageModel(layers, units, vocabulary, name="language_model")
  model = keras.Model(words, scorer(words), name="rnnlm")
  model.compile(
    optimizer=keras.optimizers.Adam(1e-3), loss=word_loss, jit_compile=False
  )
  return model, language_sampler(batch_size, length, vocabulary)
