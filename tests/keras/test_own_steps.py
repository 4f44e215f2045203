"""A model whose steps are its own, planned and placed.

Every number equals the unplaced model's, in whatever order it is used.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

import tfplace
from tests.testing import placed_models as at
from tests.testing.layer_cases import floats
from tfplace.variants import keras_step

BATCH = 4
ORDER = ("predict", "evaluate", "fit", "evaluate", "predict")


class _OwnSteps(keras.Model):
  """Each step takes a batch that the model cannot be called with."""

  def __init__(self):
    super().__init__(name="net")
    self.tower = keras.Sequential(
      [layers.Dense(6, "relu", name="wide"), layers.Dense(3, name="narrow")],
      name="tower",
    )

  def call(self, x):
    return self.tower(x)

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


def _dataset(data):
  return tf.data.Dataset.from_tensor_slices(data).batch(BATCH)


PAIR = _dataset({"pair": (floats(8, 4), floats(8, 4, seed=9))})
SIDES = _dataset({"left": floats(8, 4), "right": floats(8, 4, seed=2)})


def _built():
  keras.utils.set_random_seed(5)
  with keras_step.fresh_names():
    model = _OwnSteps()
  model.compile(keras.optimizers.Adam(0.05), jit_compile=False)
  return model


def _numbers(model):
  """All numbers that a model gives."""
  uses = {
    "fit": lambda: model.fit(PAIR, validation_data=SIDES, verbose=0).history,
    "evaluate": lambda: model.evaluate(SIDES, verbose=0),
    "predict": lambda: model.predict(SIDES, verbose=0),
  }
  leaves = keras.tree.flatten([uses[use]() for use in ORDER])
  return [np.asarray(leaf) for leaf in leaves]


def test_all_numbers_equal_the_unplaced_models():
  expected = _numbers(_built())
  model = tfplace.place_model(_built(), at.linked(), strategy="m_etf")
  with at.recorded() as ran:
    got = _numbers(model)
  assert len(got) == len(expected) > 2
  for one, other in zip(got, expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
  assert model.placement.training
  assert len({node.device for node in ran}) > 1
