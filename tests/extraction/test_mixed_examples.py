"""A step that mixes the examples of a batch is refused, whatever the op."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.testing.microbatched import Own, compiled, numbered
from tfplace.errors import ExtractionError
from tfplace.graph.microbatches import VariantConfig
from tfplace.variants.keras_step import trace_keras

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 6)).astype("float32")
Y = RNG.normal(size=(8, 3)).astype("float32")
WEIGHTS = RNG.random(8).astype("float32")


def with_layer(function):
  return keras.Sequential(
    [keras.Input((6,)), layers.Dense(8), Own(function), layers.Dense(3)]
  )


def trace(model, *data, microbatches=4, **options):
  config = VariantConfig(microbatches, **options)
  return trace_keras(model, sample=data, microbatches=config)


def static(function, otherwise=lambda h: h):
  """The function where the number of examples is known while tracing."""
  return lambda h: function(h) if h.shape[0] else otherwise(h)


@tf.custom_gradient
def clipped(h):
  """Clips the norm of the gradient of the batch, if it is ever that long."""
  return tf.identity(h), lambda dy: tf.clip_by_norm(dy, 1e6)


TABLE = tf.Variable(tf.range(24.0))
MIXING = {
  "mean": lambda h: h - ops.mean(h, axis=0),
  "max": lambda h: h - ops.max(h, axis=0),
  "softmax": lambda h: ops.softmax(h, axis=0),
  "sort": lambda h: ops.sort(h, axis=0),
  "take": lambda h: ops.take(h, ops.argsort(h[:, 0]), axis=0),
  "cumsum": lambda h: ops.cumsum(h, axis=0),
  "roll": lambda h: ops.roll(h, 1, axis=0),
  "reversed": lambda h: tf.reverse_sequence(h, [3] * 8, 0, 1),
  "first": lambda h: h + h[:1],
  "gram": lambda h: ops.matmul(ops.matmul(h, ops.transpose(h)), h),
  "pairs": lambda h: ops.mean(h[:, None] - h[None], axis=1),
  "shape": lambda h: h * tf.cast(tf.shape(h)[0], h.dtype),
  "static_shape": static(lambda h: h * float(h.shape[0])),
  "size": lambda h: h / tf.cast(tf.size(h), h.dtype),
  "range": lambda h: (
    h + ops.cast(ops.arange(ops.shape(h)[0]), h.dtype)[:, None]
  ),
  "numbers_in_columns": lambda h: (
    h + tf.cast(tf.expand_dims(numbered(h), 1), h.dtype)[:, 0, :1]
  ),
  "scatter_to_others": static(
    lambda h: tf.scatter_nd(numbered(h)[::-1, :1], h, (h.shape[0], h.shape[1]))
  ),
  "scatter_to_every_other": static(
    lambda h: tf.scatter_nd(
      numbered(h)[:, :1], h, (2 * h.shape[0], h.shape[1])
    )[::2]
  ),
  "update_of_first": static(
    lambda h: tf.tensor_scatter_nd_update(h, [[0]], h[1:2])
  ),
  "traced_for_small": static(
    lambda h: h * (1.0 if h.shape[0] < 4 else float(h.shape[0]))
  ),
  "wired_for_small": static(
    lambda h: (lambda a, b: tf.nn.relu(a if h.shape[0] < 4 else b))(
      h + 1.0, h + 2.0
    )
  ),
  "eye": static(lambda h: ops.matmul(ops.eye(h.shape[0]), h)),
  "unstack": static(lambda h: ops.stack(ops.unstack(h, axis=0)[::-1])),
  "reshape": static(
    lambda h: ops.reshape(ops.reshape(h, (8, -1)) + 1, (-1, 8))
  ),
  "weights_by_number": static(
    lambda h: (
      h + tf.reduce_sum(tf.reshape(TABLE, (h.shape[0], -1)), 1, keepdims=True)
    )
  ),
  "columns_by_size": lambda h: (
    h + tf.reduce_mean(h[:, : tf.shape(h)[0] // 2 + 1], 1, keepdims=True)
  ),
  "shuffle": tf.random.shuffle,
  "custom_gradient": clipped,
  "while": lambda h: tf.while_loop(
    lambda a: tf.reduce_max(a) > 1.0, lambda a: (a / 2,), [h]
  )[0],
  "map": lambda h: tf.map_fn(lambda row: row / tf.reduce_sum(row), h),
  "cond": lambda h: tf.cond(tf.reduce_mean(h) > 0, lambda: h, lambda: -h),
  "selected": lambda h: (
    h + ops.cast(tf.shape(tf.boolean_mask(h, h[:, 0] > 0))[0], h.dtype)
  ),
  "py_function": lambda h: tf.ensure_shape(
    tf.py_function(lambda a: a, [h], h.dtype), h.shape
  ),
}


@pytest.mark.parametrize("name", MIXING)
def test_layer_that_mixes_examples_is_refused_by_name(name):
  model = compiled(with_layer(MIXING[name]))
  with pytest.raises(ExtractionError, match="layer 'own' mixes") as caught:
    trace(model, X, Y)
  assert "/own" in caught.value.op
  assert "microbatches=1" in str(caught.value)


def contrastive(y, predicted):
  logits = ops.matmul(predicted, ops.transpose(predicted))
  numbers = ops.arange(ops.shape(predicted)[0])
  return ops.sparse_categorical_crossentropy(numbers, logits, from_logits=True)


def squared(y, predicted):
  return ops.mean(ops.square(y - predicted), axis=-1)


MIXING_LOSSES = {
  "contrastive": contrastive,
  "times_shape": lambda y, p: squared(y, p) * tf.cast(tf.shape(y)[0], p.dtype),
  "mean_inside": lambda y, p: squared(ops.mean(y, axis=0), p),
  "root_of_mean": lambda y, p: ops.sqrt(ops.mean(ops.square(y - p))),
  "dice": keras.losses.Dice(),
  "tversky": keras.losses.Tversky(),
}


@pytest.mark.parametrize("name", MIXING_LOSSES)
def test_loss_that_mixes_examples_is_refused(name):
  model = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
  compiled(model, MIXING_LOSSES[name])
  is_weighted = [*MIXING_LOSSES].index(name) % 2
  data = (X, Y, WEIGHTS) if is_weighted else (X, Y)
  with pytest.raises(ExtractionError, match="cannot be split"):
    trace(model, *data)


def mean_of_batch(y, predicted):
  return ops.mean(ops.square(y - predicted))


def test_scalar_loss_with_sample_weights_is_refused():
  model = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
  compiled(model, mean_of_batch)
  with pytest.raises(ExtractionError, match="no value per example") as caught:
    trace(model, X, Y, WEIGHTS)
  assert "microbatches=1" in str(caught.value)


class SquaredPenalty(layers.Layer):
  """Adds a loss that is not."""

  def call(self, x):
    self.add_loss(ops.sum(ops.square(ops.mean(x, axis=0))))
    return x


def test_added_loss_not_linear_in_a_mean_is_refused():
  model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(3), SquaredPenalty()]
  )
  with pytest.raises(ExtractionError, match=r"neither a sum nor a mean|mixes"):
    trace(compiled(model), X, Y)
