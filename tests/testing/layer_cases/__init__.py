"""Models that between them use what Keras offers, with a batch for each."""

import keras

from tests.testing.layer_cases import layers, models  # registers the cases
from tests.testing.layer_cases.register import CASES
from tfplace.extraction import keras_step


def names():
  return list(CASES)


def build(name):
  """The compiled model of that case and its batch, the same every time."""
  keras.utils.set_random_seed(11)
  with keras_step.fresh_names():
    model, batch, *options = CASES[name]()
    given = {"optimizer": keras.optimizers.SGD(0.02), "loss": "mse"}
  given.update(*options)
  model.compile(jit_compile=False, **given)
  return model, batch
