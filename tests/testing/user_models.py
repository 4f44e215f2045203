"""Registry of two small models: one that can be placed, one that fails."""

import keras
import numpy as np

from benchmarks.user_models.registry import Case, UserModel


def chain():
  """Two branches; learns what the sum of its inputs is."""
  inputs = keras.Input((8,))
  left = keras.layers.Dense(4, name="left")(inputs)
  right = keras.layers.Dense(4, name="right")(inputs)
  model = keras.Model(inputs, keras.layers.Dense(1, name="head")(left + right))
  model.compile("sgd", "mse")
  x = np.random.default_rng(0).normal(size=(8, 8)).astype("float32")
  return Case(model, (x, x.sum(axis=1, keepdims=True)), 4)


def broken():
  """Cannot be built."""
  raise ValueError("no such layer:\nits second line")


MODELS = {
  name: UserModel("tests.testing.user_models", name)
  for name in ("chain", "broken")
}
