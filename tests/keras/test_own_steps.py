"""Models with steps, a `call` or a `compile` of their own, planned and placed.

Every number equals the unplaced model's, in whatever order it is used.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfplace
from tests.testing import placed_models as at
from tests.testing.layer_cases import floats
from tfplace.variants import keras_step

BATCH = 4


def _tower():
  return keras.Sequential(
    [layers.Dense(6, "relu", name="wide"), layers.Dense(3, name="narrow")],
    name="tower",
  )


class _Plain(keras.Model):
  """One tower, with Keras' own steps."""

  def __init__(self):
    super().__init__(name="net")
    self.tower = _tower()

  def call(self, x):
    return self.tower(x)


class _OwnAll(_Plain):
  """Each step takes a batch that the model cannot be called with."""

  def train_step(self, data):
    first, second = data["pair"]
    with tf.GradientTape() as tape:
      loss = ops.mean(ops.square(self(first + second)))
    weights = self.trainable_weights
    self.optimizer.apply(tape.gradient(loss, weights), weights)
    return {"loss": loss}

  def test_step(self, data):
    return {"gap": ops.mean(self(data["left"]) - self(data["right"]))}

  def predict_step(self, data):
    return self(data["left"]) + self(data["right"])


class _Keywords(_Plain):
  """A call with a mask, a flag, and an input that may be lacking."""

  def call(self, inputs, mask=None, training=False, scale=2.0):
    x = self.tower(inputs["x"]) * scale
    shift = inputs.get("shift")
    return x if shift is None else x + shift


def _pairs():
  return {"left": floats(8, 4), "right": floats(8, 4, seed=2)}


def _dataset(data):
  return tf.data.Dataset.from_tensor_slices(data).batch(BATCH)


_X, _Y = floats(8, 4), floats(8, 3)
_PAIR = _dataset({"pair": (_X, floats(8, 4, seed=9))})
# Name -> the model, its compile options, and what `fit`, `evaluate` and
# `predict` are given.
CASES = {
  "steps": (_OwnAll, {}, _PAIR, _dataset(_pairs()), _dataset(_pairs())),
  "keywords": (
    *(_Keywords, {"loss": "mse"}, _dataset(({"x": _X, "shift": _Y}, _Y))),
    *(_dataset(({"x": _X}, _Y)), _dataset({"x": _X})),
  ),
}
FIT_FIRST = ("fit", "evaluate", "predict")
FIT_LATER = ("predict", "evaluate", "fit", "evaluate", "predict")


def _built(kind):
  keras.utils.set_random_seed(5)
  with keras_step.fresh_names():
    model_class, options, *_ = CASES[kind]
    model = model_class()
  optimizer = keras.optimizers.Adam(0.05)
  model.compile(optimizer, jit_compile=False, **options)
  return model


def _numbers(model, kind, order):
  """All numbers that a model gives, used in that order."""
  train, test, predict = CASES[kind][2:]
  uses = {
    "fit": lambda: model.fit(train, validation_data=test, verbose=0).history,
    "evaluate": lambda: model.evaluate(test, verbose=0),
    "predict": lambda: model.predict(predict, verbose=0),
  }
  leaves = keras.tree.flatten([uses[use]() for use in order])
  return [np.asarray(leaf) for leaf in leaves]


@pytest.mark.parametrize(
  ("kind", "order"), [("steps", FIT_LATER), ("keywords", FIT_FIRST)]
)
def test_all_numbers_equal_the_unplaced_models(kind, order):
  expected = _numbers(_built(kind), kind, order)
  model = tfplace.place_model(_built(kind), at.linked(), strategy="m_etf")
  with at.recorded() as ran:
    got = _numbers(model, kind, order)
  assert len(got) == len(expected) > 2
  for one, other in zip(got, expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
  assert model.placement.training
  assert len({node.device for node in ran}) > 1
