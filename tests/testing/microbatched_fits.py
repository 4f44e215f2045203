"""Models whose microbatched fit is compared with the unplaced one."""

import functools

import keras
import numpy as np
from keras import layers

from tests.testing import placed_models as at
from tfplace.extraction import trace_keras

EXAMPLES, BATCH = 22, 8  # the third batch has 6 examples


EPOCHS = 3


RNG = np.random.default_rng(0)


def masked_lstm():
  return keras.Sequential(
    [
      keras.Input((7,), dtype="int32"),
      layers.Embedding(11, 5, mask_zero=True, name="first"),
      layers.LSTM(6, return_sequences=True, name="second"),
      layers.Dense(3, name="last"),
    ],
    name="net",
  )


def convolutional():
  return keras.Sequential(
    [
      keras.Input((6, 6, 2)),
      layers.Conv2D(4, 3, activation="relu", name="first"),
      layers.MaxPooling2D(name="second"),
      layers.Flatten(),
      layers.Dense(3, name="last"),
    ],
    name="net",
  )


def normal(*shape):
  return RNG.normal(size=(EXAMPLES, *shape)).astype("float32")


MODELS = {
  "dense": (lambda: at.dense("net"), normal(6), normal(3)),
  "masked_lstm": (
    masked_lstm,
    RNG.integers(0, 11, size=(EXAMPLES, 7)),
    normal(7, 3),
  ),
  "convolutional": (convolutional, normal(6, 6, 2), normal(3)),
}


def build(name, function=None):
  keras.utils.set_random_seed(7)
  model = (function or MODELS[name][0])()
  model.compile(at.adam(), "mse", metrics=["mae"], jit_compile=False)
  return model


def fitted(model, name, epochs=EPOCHS, batch_size=BATCH):
  """The history, and the weights at the end."""
  _, x, y = MODELS[name]
  history = model.fit(
    x, y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0
  )
  return history.history, model.get_weights()


@functools.cache
def unplaced(name, epochs=EPOCHS):
  """`fitted` of the model of that name, on which nothing is placed."""
  return fitted(build(name), name, epochs)


def assert_same(found, expected, share=1e-5):
  """Losses and metrics to 1e-5, weights to a share of the largest one."""
  for name, values in expected[0].items():
    np.testing.assert_allclose(found[0][name], values, rtol=1e-5)
  for mine, theirs in zip(found[1], expected[1], strict=True):
    atol = share * max(np.abs(theirs).max(), 1e-3)
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol)


def placement_of(model, microbatches, seed=0):
  """A random placement of the split step on all devices."""
  traced = trace_keras(model, BATCH, microbatches=microbatches)
  return at.random_placement(traced, seed)
