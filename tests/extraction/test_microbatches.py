"""A step in microbatches computes what the whole step does.

The reference is Keras itself: the same model, seed and data, not split.
"""

import functools

import keras
import pytest
import tensorflow as tf

from tests.testing.microbatched import (
  EXAMPLES,
  RNG,
  Own,
  assert_equal,
  classes,
  compiled,
  normal,
  numbered,
  one,
)

layers, ops = keras.layers, keras.ops


def convolutional():
  return compiled(
    keras.Sequential(
      [
        keras.Input((8, 8, 2)),
        layers.Conv2D(8, 3, activation="relu"),
        layers.GroupNormalization(2),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(4, "softmax"),
      ]
    ),
    "sparse_categorical_crossentropy",
    metrics=["accuracy"],
  )


def masked(is_recurrent=False, is_scored=False):
  tokens = keras.Input((7,), dtype="int32")
  x = layers.Embedding(11, 5, mask_zero=True)(tokens)
  if is_recurrent:
    x = layers.LSTM(6, return_sequences=True)(x)
  words = layers.Dense(4, "softmax", name="words")(x)
  if not is_scored:
    model = keras.Model(tokens, words)
    return compiled(model, "sparse_categorical_crossentropy", "rmsprop")
  score = layers.Dense(1, name="score")(layers.GlobalAveragePooling1D()(x))
  return compiled(
    keras.Model(tokens, [words, score]),
    ["sparse_categorical_crossentropy", "mse"],
    loss_weights=[1.0, 0.3],
    metrics=[["accuracy"], ["mae"]],
  )


def two_inputs():
  a, b = keras.Input((4,)), keras.Input((3,))
  x = layers.Dense(5, "tanh")(layers.Concatenate()([a, b]))
  outputs = {"one": layers.Dense(1, name="one")(x), "two": layers.Dense(2)(x)}
  return compiled(
    keras.Model([a, b], outputs), {"one": "mse", "two": "mae"}, "adamw"
  )


def attention():
  tokens = keras.Input((6,), dtype="int32")
  x = layers.Embedding(9, 8)(tokens)
  x = x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
  x = layers.LayerNormalization()(x)
  logits = layers.Dense(9)(x)
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  optimizer = keras.optimizers.Adam(global_clipnorm=0.1)
  return compiled(keras.Model(tokens, logits), loss, optimizer)


class Divergence(layers.Layer):
  """Adds a mean over examples, as a variational autoencoder does."""

  def call(self, x):
    self.add_loss(-0.5 * keras.ops.mean(keras.ops.sum(1.0 - x**2, axis=1)))
    return x


def with_added_loss():
  return compiled(
    keras.Sequential(
      [keras.Input((8,)), layers.Dense(6), Divergence(), layers.Dense(3)]
    )
  )


def linear(loss="mse", activation=None, optimizer="sgd", **options):
  model = keras.Sequential([keras.Input((6,)), layers.Dense(3, activation)])
  return compiled(model, loss, optimizer, **options)


def summed():
  loss = keras.losses.MeanSquaredError(reduction="sum")
  return linear(loss, optimizer=keras.optimizers.SGD(1e-3))


def own_loss():
  def huber_like(y, predicted):
    return ops.mean(ops.abs(y - predicted) ** 1.5, axis=-1)

  return linear(huber_like, optimizer="adagrad")


def mean_of_batch(y, predicted):
  return ops.mean(ops.square(y - predicted))


def sum_of_batch(y, predicted):
  return ops.sum(ops.square(y - predicted)) / 100.0


class Penalty(layers.Layer):
  """Adds a loss that is linear in a mean over the batch."""

  def call(self, x):
    weights = ops.arange(1.0, x.shape[-1] + 1.0)
    self.add_loss(ops.sum(ops.mean(x, axis=0) * weights) / 50.0)
    return x


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


def own_metrics():
  return [
    *(root, largest, mean_of_batch, Spread(), "mae"),
    keras.metrics.R2Score(),
    keras.metrics.CosineSimilarity(),
    keras.metrics.RootMeanSquaredError(),
  ]


def metrics_of_classes():
  return [
    keras.metrics.AUC(num_thresholds=7, name="auc"),
    keras.metrics.F1Score(threshold=0.5),
    keras.metrics.MeanIoU(
      2, sparse_y_pred=False, sparse_y_true=False, name="iou"
    ),
    keras.metrics.TopKCategoricalAccuracy(2),
  ]


class LastWord(layers.Layer):
  """Looks up an entry of each example by the example's number."""

  def call(self, x):
    numbers = tf.range(tf.shape(x)[0])
    best = tf.argmax(x[:, :, 0], 1, output_type=tf.int32)
    return tf.gather_nd(x, tf.stack([numbers, best], axis=1))


@tf.custom_gradient
def reversed_gradient(h):
  weights = tf.reduce_sum(tf.abs(h), 1, keepdims=True)
  return h / 2, lambda dy: -dy * weights / tf.norm(h, axis=1, keepdims=True)


KEEPING = {
  "reversed_gradient": reversed_gradient,
  "silu": tf.nn.silu,
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
  "reversed": lambda h: tf.reverse_sequence(
    h, tf.fill(tf.shape(h)[:1], 3), seq_axis=1, batch_axis=0
  ),
  "zeros": lambda h: h + ops.zeros_like(h) + ops.zeros(ops.shape(h)),
  "vectorized_map": lambda h: tf.vectorized_map(
    lambda row: row - tf.reduce_mean(row), h
  ),
  "map_over_features": lambda h: tf.transpose(
    tf.map_fn(lambda column: column * 2.0, tf.transpose(h))
  ),
  "list_of_features": lambda h: tf.transpose(
    functools.reduce(
      lambda array, i: array.write(i, h[:, i] * (i + 1.0)),
      range(3),
      tf.TensorArray(h.dtype, 3),
    ).gather([2, 0])
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


def vectors(inputs=6):
  return normal(inputs), normal(3)


def words():
  return classes(11, 7), classes(4, 7)


def tokens():
  return classes(9, 6), classes(9, 6)


def weighted(*shape):
  return {"sample_weight": RNG.random((EXAMPLES, *shape)).astype("float32")}


# Name -> model, data, and options of `fit`.
MODELS = {
  "convolutional": (
    convolutional,
    lambda: (normal(8, 8, 2), classes(4, 1)),
    {"class_weight": {0: 1.0, 1: 0.3, 2: 2.0, 3: 1.5}},
  ),
  "masked": (lambda: masked(is_recurrent=True), words),
  "two_losses_masked": (
    lambda: masked(is_scored=True),
    lambda: (classes(11, 7), [classes(4, 7), normal(1)]),
  ),
  "two_inputs": (
    two_inputs,
    lambda: ([normal(4), normal(3)], {"one": normal(1), "two": normal(2)}),
  ),
  "attention_clipped": (attention, tokens),
  "added_loss": (with_added_loss, lambda: vectors(8)),
  "summed": (summed, vectors),
  "own_loss_weighted": (own_loss, vectors, weighted()),
  "mean_by_weights": (
    lambda: linear(
      keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    ),
    vectors,
    weighted(),
  ),
  "padded_weighted": (masked, words, weighted(7)),
  "mean_of_batch": (lambda: linear(mean_of_batch), vectors),
  "sum_of_batch": (lambda: linear(sum_of_batch), vectors),
  "added_mean": (
    lambda: compiled(
      keras.Sequential([keras.Input((6,)), layers.Dense(3), Penalty()])
    ),
    vectors,
  ),
  "metrics": (lambda: linear(metrics=own_metrics()), vectors),
  "metrics_of_classes": (
    lambda: linear(
      "binary_crossentropy", "sigmoid", metrics=metrics_of_classes()
    ),
    lambda: (normal(6), (normal(3) > 0).astype("float32")),
  ),
  "kept_apart": (side_by_side, vectors),
}


@functools.cache
def whole(name, **fit):
  """The run of the model whose step is not split."""
  build, make, *options = MODELS[name]
  return one(build, make, **dict(*options), **fit)[1]


def check(name, *numbers, sizes=None, **fit):
  """The split model trains as the whole one; its third batch has 6 examples."""
  build, make, *options = MODELS[name]
  config = {} if sizes is None else {"sizes": sizes}
  _, run = one(build, make, numbers, config, **dict(*options), **fit)
  assert_equal(run, whole(name, **fit))


NUMBERS = ((3, None), (4, 1))  # microbatches, in flight: models take turns
CASES = [(name, NUMBERS[i % 2]) for i, name in enumerate(MODELS)]
CASES.append(("masked", NUMBERS[1]))  # sparse gradients have both


@pytest.mark.parametrize(("name", "numbers"), CASES)
def test_equals_the_step_of_the_whole_batch(name, numbers):
  check(name, *numbers)


PARTLY = ("padded_weighted", "added_loss", "summed", "mean_by_weights")


@pytest.mark.parametrize("name", PARTLY)
def test_a_batch_smaller_than_its_microbatches_is_the_whole_one(name):
  # 22 examples in batches of 7: the last has 1, and 3 of 4 parts have none.
  check(name, 4, batch_size=7, epochs=2)


# Model -> in flight, sizes of the microbatches.
SIZES = {
  "convolutional": (1, (1, 5, 1, 1)),
  "summed": (2, (4, 3, 1)),
  "padded_weighted": (None, (5, 2, 1)),
}


@pytest.mark.parametrize("name", SIZES)
def test_given_sizes_equal_the_step_of_the_whole_batch(name):
  in_flight, sizes = SIZES[name]
  check(name, len(sizes), in_flight, sizes=sizes)


def test_batches_of_less_examples_than_sizes_are_whole_batches():
  check("mean_by_weights", 4, sizes=(3, 2, 1, 1), batch_size=7, epochs=2)
