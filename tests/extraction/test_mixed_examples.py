"""A step that mixes the examples of a batch is refused, whatever the op."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.testing.microbatched import assert_equal, both, compiled, normal
from tfplace.core.microbatches import VariantConfig
from tfplace.errors import ExtractionError
from tfplace.extraction import trace_keras

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 6)).astype("float32")
Y = RNG.normal(size=(8, 3)).astype("float32")
WEIGHTS = RNG.random(8).astype("float32")


class Own(layers.Layer):
  """A layer of a user's own: any function of [batch, features]."""

  def __init__(self, function, name="own"):
    super().__init__(name=name)
    self.function = function

  def call(self, x):
    return self.function(x)


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


def numbered(h):
  """[examples, 2]: the number of each example, and 0."""
  numbers = tf.range(tf.shape(h)[0])
  return tf.stack([numbers, tf.zeros_like(numbers)], axis=1)


MIXING = {
  "mean": lambda h: h - ops.mean(h, axis=0),
  "max": lambda h: h - ops.max(h, axis=0),
  "softmax": lambda h: ops.softmax(h, axis=0),
  "sort": lambda h: ops.sort(h, axis=0),
  "take": lambda h: ops.take(h, ops.argsort(h[:, 0]), axis=0),
  "cumsum": lambda h: ops.cumsum(h, axis=0),
  "roll": lambda h: ops.roll(h, 1, axis=0),
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
  "shuffle": tf.random.shuffle,
  "while": lambda h: tf.while_loop(
    lambda a: tf.reduce_max(a) > 1.0, lambda a: (a / 2,), [h]
  )[0],
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
  with pytest.raises(ExtractionError, match="no value per example"):
    trace(model, X, Y, WEIGHTS)


def sum_of_batch(y, predicted):
  return ops.sum(ops.square(y - predicted)) / 100.0


@pytest.mark.parametrize("loss", [mean_of_batch, sum_of_batch])
def test_scalar_loss_without_weights_equals_the_whole_step(loss):
  def build():
    return compiled(
      keras.Sequential([keras.Input((6,)), layers.Dense(3)]), loss
    )

  _, runs = both(build, lambda: (normal(6), normal(3)), 3)
  assert_equal(*runs)


class Penalty(layers.Layer):
  """Adds a loss that is linear in a mean over the batch."""

  def call(self, x):
    weights = ops.arange(1.0, x.shape[-1] + 1.0)
    self.add_loss(ops.sum(ops.mean(x, axis=0) * weights) / 50.0)
    return x


class SquaredPenalty(layers.Layer):
  """Adds a loss that is not."""

  def call(self, x):
    self.add_loss(ops.sum(ops.square(ops.mean(x, axis=0))))
    return x


def test_added_loss_linear_in_a_mean_equals_the_whole_step():
  def build():
    return compiled(
      keras.Sequential([keras.Input((6,)), layers.Dense(4), Penalty()])
    )

  # The third batch has 6 examples, the others 8.
  _, runs = both(build, lambda: (normal(6), normal(4)), 3)
  assert_equal(*runs)


def test_added_loss_not_linear_in_a_mean_is_refused():
  model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(3), SquaredPenalty()]
  )
  with pytest.raises(ExtractionError, match=r"neither a sum nor a mean|mixes"):
    trace(compiled(model), X, Y)


def root(y, predicted):
  return ops.sqrt(ops.mean(ops.square(y - predicted)))


def largest(y, predicted):
  return ops.max(ops.abs(y - predicted))


class Spread(keras.metrics.Metric):
  """Keeps the largest error: its update is no sum."""

  def __init__(self):
    super().__init__(name="spread")
    self.largest = self.add_variable((), "zeros", name="largest")

  def update_state(self, y_true, y_pred, sample_weight=None):
    error = ops.max(ops.abs(y_true - y_pred))
    self.largest.assign(ops.maximum(self.largest, error))

  def result(self):
    return self.largest


def test_metrics_equal_those_of_the_whole_batch():
  def build():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
    own = [root, largest, mean_of_batch, squared, Spread()]
    theirs = [
      "mae",
      keras.metrics.R2Score(),
      keras.metrics.CosineSimilarity(),
      keras.metrics.RootMeanSquaredError(),
    ]
    return compiled(model, metrics=[*own, *theirs])

  # 8 examples are parts of 3, 3 and 2; the third batch has 6.
  _, runs = both(build, lambda: (normal(6), normal(3)), 3)
  assert len(runs[0][0]) == 10  # the loss too
  assert_equal(*runs)


def test_metrics_of_classes_equal_those_of_the_whole_batch():
  def build():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, "sigmoid")])
    metrics = [
      keras.metrics.AUC(num_thresholds=7, name="auc"),
      keras.metrics.Precision(name="precision"),
      keras.metrics.F1Score(threshold=0.5),
      keras.metrics.MeanIoU(
        2, sparse_y_pred=False, sparse_y_true=False, name="iou"
      ),
      keras.metrics.BinaryAccuracy(),
      keras.metrics.TopKCategoricalAccuracy(2),
    ]
    return compiled(model, "binary_crossentropy", metrics=metrics)

  def data():
    return normal(6), (normal(3) > 0).astype("float32")

  _, runs = both(build, data, 3)
  assert len(runs[0][0]) == 7  # the loss too
  assert_equal(*runs)


class LastWord(layers.Layer):
  """Looks up an entry of each example by the example's number."""

  def call(self, x):
    numbers = tf.range(tf.shape(x)[0])
    best = tf.argmax(x[:, :, 0], 1, output_type=tf.int32)
    return tf.gather_nd(x, tf.stack([numbers, best], axis=1))


KEEPING = {
  "pairs_of_features": lambda h: ops.mean(
    ops.einsum("bi,bj->bij", h, h), axis=-1
  ),
  "sort_features": lambda h: ops.sort(h, axis=-1),
  "two_halves": lambda h: ops.split(
    ops.concatenate([h, 2 * h], axis=0), 2, axis=0
  )[1],
  "merged": lambda h: ops.reshape(
    ops.matmul(ops.reshape(h, (-1, 2)), ops.ones((2, 2))), (-1, 8)
  ),
  "repeated": lambda h: ops.mean(
    ops.reshape(ops.repeat(h, 3, axis=0), (-1, 3, 8)), axis=1
  ),
  "last_word": lambda h: LastWord()(ops.reshape(h, (-1, 4, 2))),
  "scatter_to_own": lambda h: tf.scatter_nd(
    numbered(h), h[:, 0], tf.shape(h[:, :2])
  ),
  "update_of_features": lambda h: tf.transpose(
    tf.tensor_scatter_nd_update(tf.transpose(h), [[1]], [2 * h[:, 0]])
  ),
  "gather_nd_batched": lambda h: tf.gather_nd(
    h, tf.argmax(h, 1)[:, None], batch_dims=1
  )[:, None],
  "solve": lambda h: tf.linalg.solve(
    tf.matmul(h[:, None] + 0.1 * h[:, :, None], tf.eye(8)) + 9 * tf.eye(8),
    h[:, :, None],
  )[:, :, 0],
  "searchsorted": lambda h: (
    h * tf.cast(tf.searchsorted(tf.sort(h), h), h.dtype)
  ),
  "bucketize": lambda h: (
    h * tf.cast(tf.raw_ops.Bucketize(input=h, boundaries=[-1, 0, 1]), h.dtype)
  ),
  "along_axis": lambda h: ops.take_along_axis(
    h, ops.argsort(h, axis=1), axis=1
  ),
  "zeros": lambda h: h + ops.zeros_like(h) + ops.zeros(ops.shape(h)),
  "vectorized_map": lambda h: tf.vectorized_map(
    lambda row: row - tf.reduce_mean(row), h
  ),
  "in_a_function": tf.function(lambda a: tf.nn.relu(a) * 2.0),
}


def side_by_side():
  """A model of which each of `KEEPING` is a layer, beside the others."""
  start = keras.Input((6,))
  hidden = layers.Dense(8)(start)
  kept = [Own(f, name)(hidden) for name, f in KEEPING.items()]
  return compiled(
    keras.Model(start, layers.Dense(3)(layers.Concatenate()(kept)))
  )


def test_layers_that_keep_examples_apart_equal_the_whole_step():
  _, runs = both(side_by_side, lambda: (normal(6), normal(3)), 3, epochs=2)
  assert_equal(*runs)
