"""A model with its step in microbatches, and beside it the same one unsplit."""

import functools

import keras
import numpy as np
import tensorflow as tf

from tfplace.graph.microbatches import VariantConfig
from tfplace.variants.microbatches.microbatched_step import (
  microbatched_train_step,
)

RNG = np.random.default_rng(0)
_FIRST = RNG.bit_generator.state
EXAMPLES = 22


def normal(*shape):
  return RNG.normal(size=(EXAMPLES, *shape)).astype("float32")


def classes(count, *shape):
  return RNG.integers(0, count, size=(EXAMPLES, *shape))


class Own(keras.layers.Layer):
  """A layer of a user's own: any function of [batch, features]."""

  def __init__(self, function, name="own"):
    super().__init__(name=name)
    self.function = function

  def call(self, x):
    return self.function(x)


def numbered(h):
  """[examples, 2]: the number of each example, and 0."""
  numbers = tf.range(tf.shape(h)[0])
  return tf.stack([numbers, tf.zeros_like(numbers)], axis=1)


def in_microbatches(model, *numbers, **options):
  """The model, with its step in microbatches."""

  @functools.wraps(model.train_step)  # it is Keras' step in all that it does
  def train_step(data):
    return microbatched_train_step(
      model, data, VariantConfig(*numbers, **options)
    )[0]

  object.__setattr__(model, "train_step", train_step)
  return model


def compiled(model, loss="mse", optimizer="sgd", **options):
  model.compile(optimizer, loss, jit_compile=False, **options)
  return model


def traced_once(model, batch):
  """Creates the variables that `fit` would trace the step twice for."""
  model.optimizer.build(model.trainable_variables)
  model._symbolic_build(data_batch=batch)


def trained(model, data, batch_size=8, epochs=3, **options):
  """Histories and weights after 9 steps; the third batch has 6 examples."""
  traced_once(model, keras.tree.map_structure(lambda a: a[:batch_size], data))
  history = model.fit(
    *data,
    batch_size=batch_size,
    epochs=epochs,
    shuffle=False,
    verbose=0,
    **options,
  )
  return history.history, model.get_weights()


def assert_equal(mine, reference, rtol=1e-5):
  for name, values in reference[0].items():
    np.testing.assert_allclose(mine[0][name], values, rtol=rtol, atol=1e-7)
  for found, expected in zip(mine[1], reference[1], strict=True):
    # Adam makes 1e-8 of a gradient that is 0 but for rounding (biases of keys).
    scale = max(np.abs(expected).max(), 1e-2)
    np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * scale)


def assert_same_state(mine, reference, rtol=1e-5, least=1e-3):
  """Compares the optimizers' variables, each in relation to its largest."""
  states = zip(
    mine.optimizer.variables, reference.optimizer.variables, strict=True
  )
  for found, expected in states:
    scale = max(np.abs(expected.numpy()).max(), least)
    np.testing.assert_allclose(
      found.numpy(), expected.numpy(), rtol=0, atol=rtol * scale
    )


def one(build, make, numbers=(), options=None, **fit):
  """The trained model: split where there are numbers; same seed, same data."""
  RNG.bit_generator.state = _FIRST
  data = make()
  keras.utils.set_random_seed(1)
  model = build()
  if not model.built:
    model.build((None, 8))
  if numbers:
    in_microbatches(model, *numbers, **(options or {}))
  return model, trained(model, data, **fit)


def both(build, make, *numbers, options=None, **fit):
  """The trained models: split, and not."""
  split = one(build, make, numbers, options, **fit)
  whole = one(build, make, **fit)
  return zip(split, whole, strict=True)
