"""Small models whose training steps recompute activations.

Each returns a compiled model; `sample` is a batch where its inputs do not tell.
"""

import keras
import numpy as np
from keras import layers, ops

from tfplace import split_gradients

# A tensor of up to 1 KiB is kept: WIDTH floats of 4 examples are more.
BATCH, WIDTH, CLASSES = 8, 80, 5
TOKEN = 16  # Units of a token of a sequence.


def _compiled(model):
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(
    keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"], jit_compile=False
  )
  return model


def transformer(depth=2, width=TOKEN):
  tokens = keras.Input((8,), dtype="int32")
  x = layers.Embedding(50, width, mask_zero=True)(tokens)
  for i in range(depth):
    y = layers.LayerNormalization()(x)
    y = layers.MultiHeadAttention(
      2, width // 2, dropout=0.1, name=f"attend_{i}"
    )(y, y)
    x = x + layers.Dropout(0.2)(y)
    y = layers.Dense(2 * width, activation="gelu", name=f"wide_{i}")(x)
    x = x + layers.Dense(width)(y)
  return _compiled(keras.Model(tokens, layers.Dense(CLASSES)(x)))


def convolutions():
  x = image = keras.Input((8, 8, 3))
  for _ in range(3):
    x = layers.Conv2D(4, 3, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
  x = layers.GlobalAveragePooling2D()(x)
  return _compiled(keras.Model(image, layers.Dense(CLASSES)(x)))


def recurrent():
  x = series = keras.Input((5, 6))
  x = layers.LSTM(WIDTH, return_sequences=True)(layers.Masking()(x))
  x = layers.Dense(WIDTH, activation="tanh")(x)
  x = layers.GRU(WIDTH, return_sequences=True)(x)
  return _compiled(keras.Model(series, layers.Dense(CLASSES)(x)))


def shared():
  first, second = keras.Input((WIDTH,)), keras.Input((WIDTH,))
  tower = keras.Sequential(
    [layers.Dense(4 * WIDTH, activation="relu") for _ in range(3)]
  )
  x = layers.Concatenate()([tower(first), tower(second)])
  return _compiled(keras.Model([first, second], layers.Dense(CLASSES)(x)))


def mixed_precision():
  policy = keras.mixed_precision.dtype_policy()
  keras.mixed_precision.set_global_policy("mixed_float16")
  try:
    return transformer(depth=1)
  finally:
    keras.mixed_precision.set_global_policy(policy)


class Noise(layers.Layer):
  """Draws from a seed generator of its own, and scales by the mean draw."""

  def __init__(self):
    super().__init__()
    self.seeds = keras.random.SeedGenerator(3)

  def call(self, x, training=False):
    if not training:
      return x
    scale = keras.random.uniform((WIDTH,), 0.5, 1.5, seed=self.seeds)
    return x * scale + 0.1 * keras.random.normal((WIDTH,), seed=self.seeds)


def random_layers():
  x = start = keras.Input((WIDTH,))
  for _ in range(2):
    x = layers.Dense(WIDTH, activation="selu")(x)
    x = Noise()(layers.AlphaDropout(0.1)(layers.GaussianNoise(0.1)(x)))
  x = layers.Dense(WIDTH, activation="softplus")(x)
  return _compiled(keras.Model(start, layers.Dense(CLASSES)(x)))


class Residual(keras.Model):
  """A subclass with blocks in a list, an added loss and a metric of its own."""

  def __init__(self):
    super().__init__(name="residual")
    self.blocks = [
      keras.Sequential(
        [
          layers.Dense(2 * WIDTH, activation="gelu", kernel_regularizer="l2"),
          layers.Dropout(0.1),
          layers.Dense(WIDTH),
        ]
      )
      for _ in range(3)
    ]
    self.head = layers.Dense(CLASSES)
    self.size = keras.metrics.Mean(name="size")

  def call(self, x, training=False):
    for block in self.blocks:
      x = ops.tanh(x + block(x, training=training))
    return self.head(x)


class Custom(Residual):
  """Clips what `split_gradients` returns, and adds to the loss."""

  def train_step(self, data):
    def forward(x, y, sample_weight):
      predicted = self(x, training=True)
      loss = self.compute_loss(x, y, predicted, sample_weight)
      self.compute_metrics(x, y, predicted, sample_weight)
      self.size.update_state(ops.abs(predicted))
      return loss + 0.1 * ops.mean(ops.square(predicted))

    _, gradients = split_gradients(self, data, forward)
    gradients = [ops.clip(g, -0.01, 0.01) for g in gradients]
    self.optimizer.apply_gradients(
      zip(gradients, self.trainable_weights, strict=True)
    )
    return self.get_metrics_result()


def custom_step():
  return _compiled(Custom())


MODELS = {
  model.__name__: model
  for model in (
    transformer,
    convolutions,
    recurrent,
    shared,
    mixed_precision,
    random_layers,
    custom_step,
  )
}


def sample(model):
  """Returns a batch of a model that does not define its inputs, or None."""
  if not isinstance(model, Residual):
    return None
  rng = np.random.default_rng(1)
  x = rng.random((BATCH, WIDTH), np.float32)
  return x, rng.integers(0, CLASSES, (BATCH,))
