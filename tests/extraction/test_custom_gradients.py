"""Custom gradients of traces end with their graphs, and no sooner."""

import gc

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from tfplace.extraction import functions
from tfplace.variants import keras_step

LAYERS = keras.layers


@tf.custom_gradient
def _tripled(x):
  """The identity, with a gradient that only this function has."""
  return tf.identity(x), lambda upstream: 3.0 * upstream


def _registered():
  return {n for n in ops.gradient_registry.list() if n.startswith("CustomGrad")}


class Gate(LAYERS.Layer):
  """Keeps a function that is traced once, by whoever calls it first."""

  def __init__(self):
    super().__init__()
    self._dense = LAYERS.Dense(5)
    self._function = tf.function(lambda x: _tripled(self._dense(x)))

  def build(self, input_shape):
    self._dense.build(input_shape)

  def call(self, inputs):
    return self._function(inputs)


def _losses(is_extracted):
  keras.utils.set_random_seed(0)
  model = keras.Sequential([keras.Input((4,)), LAYERS.Dense(6), Gate()])
  model.compile("adam", "mse")
  if is_extracted:
    keras_step.trace_keras(model, 8)
    gc.collect()
  rng = np.random.default_rng(0)
  x, y = rng.random((8, 4)), rng.random((8, 5))
  return model.fit(x, y, epochs=3, verbose=0).history["loss"]


def test_a_model_with_its_own_function_trains_after_extraction():
  assert _losses(is_extracted=True) == _losses(is_extracted=False)


def test_a_loaded_model_keeps_its_gradients_after_extraction(tmp_path):
  module = tf.Module()
  module.x = tf.Variable(2.0)
  module.call = tf.function(
    lambda factor: {"y": _tripled(module.x) * module.x * factor},
    input_signature=[tf.TensorSpec([], name="factor")],
  )
  options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
  tf.saved_model.save(module, str(tmp_path), module.call, options)
  before = _registered()
  loaded = tf.saved_model.load(str(tmp_path))
  own = _registered() - before
  assert own
  functions.trace_saved_model(str(tmp_path))
  assert own <= _registered()
  with tf.GradientTape() as tape:
    y = loaded.call(tf.constant(1.0))["y"]
  assert tape.gradient(y, loaded.x).numpy() == 3 * 2.0 + 2.0
