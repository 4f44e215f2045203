"""A step in microbatches computes what the whole step does.

The reference is Keras itself: the same model, seed and data, not split.
"""

import functools

import keras
import pytest

from tests.testing.microbatched import (
  EXAMPLES,
  RNG,
  assert_equal,
  classes,
  compiled,
  normal,
  one,
)

layers = keras.layers


def regularized():
  return compiled(
    keras.Sequential(
      [
        keras.Input((8,)),
        layers.Dense(16, "relu", kernel_regularizer="l2"),
        layers.Dense(12, activity_regularizer="l1"),
        layers.Dense(3),
      ]
    ),
    optimizer="adam",
    metrics=["mae"],
  )


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


def summed():
  loss = keras.losses.MeanSquaredError(reduction="sum")
  model = keras.Sequential([keras.Input((8,)), layers.Dense(3)])
  return compiled(model, loss, keras.optimizers.SGD(1e-3))


def own_loss():
  def huber_like(y, predicted):
    return keras.ops.mean(keras.ops.abs(y - predicted) ** 1.5, axis=-1)

  model = keras.Sequential([keras.Input((8,)), layers.Dense(3)])
  return compiled(model, huber_like, "adagrad")


def tied_embedding():
  tokens = keras.Input((6,), dtype="int32")
  embedding = layers.Embedding(9, 8)
  x = layers.Dense(8)(embedding(tokens))
  logits = keras.ops.matmul(x, keras.ops.transpose(embedding.embeddings))
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  return compiled(keras.Model(tokens, logits), loss)


MODELS = {
  "regularized": (regularized, lambda: (normal(8), normal(3)), {}),
  "convolutional": (
    convolutional,
    lambda: (normal(8, 8, 2), classes(4, 1)),
    {"class_weight": {0: 1.0, 1: 0.3, 2: 2.0, 3: 1.5}},
  ),
  "masked": (
    lambda: masked(is_recurrent=True),
    lambda: (classes(11, 7), classes(4, 7)),
    {},
  ),
  "two_losses_masked": (
    lambda: masked(is_scored=True),
    lambda: (classes(11, 7), [classes(4, 7), normal(1)]),
    {},
  ),
  "two_inputs": (
    two_inputs,
    lambda: ([normal(4), normal(3)], {"one": normal(1), "two": normal(2)}),
    {},
  ),
  "attention_clipped": (
    attention,
    lambda: (classes(9, 6), classes(9, 6)),
    {},
  ),
  "added_loss": (with_added_loss, lambda: (normal(8), normal(3)), {}),
  "summed": (summed, lambda: (normal(8), normal(3)), {}),
  "own_loss_weighted": (
    own_loss,
    lambda: (normal(8), normal(3)),
    {"sample_weight": RNG.random(EXAMPLES).astype("float32")},
  ),
  "mean_by_weights": (
    lambda: compiled(
      keras.Sequential([keras.Input((8,)), layers.Dense(3)]),
      keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
    ),
    lambda: (normal(8), normal(3)),
    {"sample_weight": RNG.random(EXAMPLES).astype("float32")},
  ),
  "tied_embedding": (
    tied_embedding,
    lambda: (classes(9, 6), classes(9, 6)),
    {},
  ),
  "padded_weighted": (
    masked,
    lambda: (classes(11, 7), classes(4, 7)),
    {"sample_weight": RNG.random((EXAMPLES, 7)).astype("float32")},
  ),
}


@functools.cache
def whole(name, **fit):
  """The run of the model whose step is not split."""
  build, make, options = MODELS[name]
  return one(build, make, **options, **fit)[1]


NUMBERS = ((3, None), (4, 1))
# Sparse gradients; the others take turns.
BOTH = ("tied_embedding",)
CASES = [
  (name, numbers)
  for i, name in enumerate(MODELS)
  for j, numbers in enumerate(NUMBERS)
  if name in BOTH or i % 2 == j
]


@pytest.mark.parametrize(("name", "numbers"), CASES)
def test_equals_the_step_of_the_whole_batch(name, numbers):
  build, make, options = MODELS[name]
  _, run = one(build, make, numbers, **options)
  assert_equal(run, whole(name))


PARTLY = ("padded_weighted", "added_loss", "summed", "mean_by_weights")


@pytest.mark.parametrize("name", PARTLY)
def test_a_batch_smaller_than_its_microbatches_is_the_whole_one(name):
  # 22 examples in batches of 7: the last has 1, and 3 of 4 parts have none.
  build, make, options = MODELS[name]
  fit = {"batch_size": 7, "epochs": 2}
  _, run = one(build, make, (4,), **options, **fit)
  assert_equal(run, whole(name, **fit))
