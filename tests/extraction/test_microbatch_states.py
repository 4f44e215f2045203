"""State kept for each example is split like the batch.

The reference is Keras itself: the same model, seed and data, not split.
"""

import keras
import numpy as np
import pytest

from tests.testing.microbatched import (
  EXAMPLES,
  assert_equal,
  both,
  classes,
  compiled,
  in_microbatches,
  normal,
)
from tfplace.errors import ExtractionError
from tfplace.models.transformer_xl import transformer_xl

layers = keras.layers
BATCH = EXAMPLES // 2


def recurrent():
  inputs = keras.Input((7, 4), batch_size=BATCH)
  x = layers.Dense(5, "tanh")(inputs)
  x = layers.Bidirectional(layers.SimpleRNN(3, stateful=True))(x)
  return compiled(keras.Model(inputs, layers.Dense(2)(x)), optimizer="adam")


class Remembering(layers.Layer):
  """Adds what it heard last time, and a table that is no state.

  The table has as many rows as there are examples, and is the same for all.
  """

  def build(self, shape):
    size = (BATCH, shape[-1])
    self.memory = self.add_weight(
      size, initializer="zeros", trainable=False, name="memory"
    )
    self.table = self.add_weight(
      size, initializer="uniform", trainable=False, name="table"
    )

  def call(self, inputs):
    heard = keras.ops.concatenate([self.memory, inputs], axis=1)
    first = self.memory + 0.0
    self.memory.assign(0.5 * self.memory + keras.ops.stop_gradient(inputs))
    scores = keras.ops.softmax(inputs @ keras.ops.transpose(self.table))
    return keras.ops.concatenate(
      [heard, first + self.memory, scores @ self.table], axis=1
    )


def remembering():
  inputs = keras.Input((4,), batch_size=BATCH)
  x = Remembering()(layers.Dense(5)(inputs))
  return compiled(keras.Model(inputs, layers.Dense(2)(x)), optimizer="adam")


def test_states_of_recurrent_layers():
  _, runs = both(
    recurrent, lambda: (normal(7, 4), normal(2)), 4, 1, batch_size=BATCH
  )
  assert_equal(*runs)
  assert np.abs(runs[0][1][-3]).max() > 0


def test_a_memory_of_a_layer():
  models, runs = both(
    remembering, lambda: (normal(4), normal(2)), 4, 2, batch_size=BATCH
  )
  assert_equal(*runs)
  memory = models[0].layers[-2].memory
  assert np.abs(memory.numpy()).max() > 0


def test_transformer_xl():
  sizes = {"layers": 1, "units": 8, "heads": 2, "feed_forward": 16}
  lengths = {"length": 3, "memory": 4, "segments": 2, "vocabulary": 11}

  def build():
    return transformer_xl(batch_size=BATCH, **sizes, **lengths)[0]

  def make():
    words = classes(11, 7)
    return words, np.zeros((EXAMPLES, 6), "float32")

  _, runs = both(build, make, 3, batch_size=BATCH)
  assert_equal(*runs, rtol=1e-4)


class Codebook(layers.Layer):
  """Moving means of what is near each of so many entries; no state."""

  def build(self, shape):
    self.entries = self.add_weight(
      (BATCH, shape[-1]), initializer="uniform", trainable=False
    )

  def call(self, inputs):
    near = keras.ops.argmax(inputs @ keras.ops.transpose(self.entries), axis=1)
    chosen = keras.ops.one_hot(near, BATCH)
    sums = keras.ops.transpose(chosen) @ keras.ops.stop_gradient(inputs)
    self.entries.assign(0.9 * self.entries + 0.1 * sums)
    return inputs + keras.ops.take(self.entries, near, axis=0)


def test_what_the_whole_batch_updates_is_refused_by_name():
  inputs = keras.Input((4,), batch_size=BATCH)
  model = compiled(keras.Model(inputs, Codebook()(inputs)))
  with pytest.raises(ExtractionError, match=r"'functional.*' cannot be split"):
    in_microbatches(model, 2).fit(
      normal(4), normal(4), batch_size=BATCH, verbose=0
    )
