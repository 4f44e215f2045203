"""Sparse gradients have the slices that the whole step has.

Keras squares the values of slices without adding those of equal index, so an
optimizer with second moments tells them apart. The reference is Keras itself.
"""

import keras
import pytest
from keras import layers, ops, optimizers

from tests.testing.microbatched import (
  assert_equal,
  assert_same_state,
  both,
  classes,
  compiled,
  normal,
)

LENGTH, TOKENS, WIDTH = 7, 11, 6


class Positions(layers.Layer):
  """Adds a learned vector for each position: a lookup without a batch."""

  def __init__(self, table=None):
    super().__init__()
    self.table = table or layers.Embedding(LENGTH, WIDTH)

  def build(self, shape):
    if not self.table.built:
      self.table.build((None,))
    self.built = True

  def call(self, x):
    return x + self.table(ops.arange(LENGTH))


class RepeatedPositions(Positions):
  """The same, looked up again for each example."""

  def call(self, x):
    numbers = ops.broadcast_to(ops.arange(LENGTH), ops.shape(x)[:2])
    return x + self.table(numbers)


class Tied(layers.Layer):
  """Projects on the table of an embedding: its gradient is dense."""

  def __init__(self, table):
    super().__init__()
    self.table = table

  def call(self, x):
    return ops.matmul(x, ops.transpose(self.table.embeddings))


def built(kind, optimizer):
  words = layers.Embedding(TOKENS, WIDTH)
  tokens = keras.Input((LENGTH,), dtype="int32")
  x = words(tokens)
  if kind == "positions":
    x = Positions()(x)
  elif kind == "repeated":
    x = RepeatedPositions()(x)
  elif kind == "shared":  # one table for tokens and for positions
    x = Positions(words)(x)
  elif kind == "tied":
    x = Tied(words)(Positions()(x))
  x = layers.Dense(8, "tanh")(layers.Flatten()(x))
  model = keras.Model(tokens, layers.Dense(3)(x))
  return compiled(model, optimizer=optimizer())


OPTIMIZERS = {
  "rmsprop": lambda: optimizers.RMSprop(0.01),
  "clipped": lambda: optimizers.Adam(0.01, global_clipnorm=0.01),
}
KINDS = ("tokens", "positions", "repeated", "shared", "tied")
CASES = [(kind, "rmsprop") for kind in KINDS]
CASES.append(("shared", "clipped"))


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_updates_of_lookups_equal_those_of_the_whole_batch(kind, name):
  def data():
    return classes(TOKENS, LENGTH), normal(3)

  models, runs = both(lambda: built(kind, OPTIMIZERS[name]), data, 3, epochs=2)
  assert_equal(*runs)
  assert_same_state(*models, rtol=1e-4, least=1e-6)
