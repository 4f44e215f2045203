"""Twelve small models whose training steps recompute activations.

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


def series():
  x = start = keras.Input((12, 6))
  for dilation in (1, 2):
    y = layers.Conv1D(
      TOKEN, 3, padding="causal", dilation_rate=dilation, activation="relu"
    )(x)
    y = layers.SpatialDropout1D(0.2)(y)
    x = layers.Dense(TOKEN)(x) + layers.Conv1D(TOKEN, 1)(y)
  x = layers.Dense(TOKEN, activation="silu")(layers.MaxPooling1D(2)(x))
  x = layers.GRU(TOKEN)(x)
  return _compiled(keras.Model(start, layers.Dense(CLASSES)(x)))


def shared():
  first, second = keras.Input((WIDTH,)), keras.Input((WIDTH,))
  tower = keras.Sequential(
    [layers.Dense(4 * WIDTH, activation="relu") for _ in range(3)]
  )
  x = layers.Concatenate()([tower(first), tower(second)])
  return _compiled(keras.Model([first, second], layers.Dense(CLASSES)(x)))


class Block(layers.Layer):
  """Layer that `keras.RematScope` can recompute in a graph: `call(x)` alone."""

  def build(self, shape):
    self.wide = self.add_weight(shape=(shape[-1], 4 * WIDTH), name="wide")

  def call(self, x):
    return ops.tanh(ops.matmul(x, self.wide))


def rematerialized():
  x = start = keras.Input((WIDTH,))
  with keras.RematScope(mode="full"):
    for _ in range(2):
      x = Block()(x)
  for _ in range(3):
    x = layers.Dense(WIDTH, activation="gelu")(x)
  return _compiled(keras.Model(start, layers.Dense(CLASSES)(x)))


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


def subclassed():
  return _compiled(Residual())


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


def several_outputs():
  """Weighted losses of two heads, one of which is in the middle."""
  image, features = keras.Input((8, 8, 2)), keras.Input((TOKEN,))
  x = layers.SeparableConv2D(8, 3, activation="relu")(image)
  x = layers.GroupNormalization(2)(x)
  x = layers.Conv2DTranspose(4, 2, activation="elu")(x)
  x = layers.Dense(TOKEN)(layers.Flatten()(x)) * layers.Dense(TOKEN)(features)
  early = layers.Dense(CLASSES, activation="softmax", name="early")(x)
  for _ in range(2):
    x = layers.LayerNormalization()(layers.Dense(TOKEN, activation="mish")(x))
  model = keras.Model(
    [image, features], [early, layers.Dense(1, name="late")(x)]
  )
  model.compile(
    keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    {"early": "sparse_categorical_crossentropy", "late": "mse"},
    loss_weights={"early": 0.3, "late": 2.0},
    metrics={"early": "accuracy", "late": "mae"},
    jit_compile=False,
  )
  return model


def translator():
  """Reads one sequence beside another, with padding and a causal mask."""
  source = keras.Input((6,), dtype="int32")
  target = keras.Input((6,), dtype="int32")
  words = layers.Embedding(20, TOKEN, mask_zero=True)
  x = layers.Dense(TOKEN, activation="relu")(words(source))
  y = words(target)
  y = y + layers.MultiHeadAttention(2, 8, dropout=0.1)(
    y, y, use_causal_mask=True
  )
  y = layers.LayerNormalization()(y + layers.MultiHeadAttention(2, 8)(y, x))
  y = layers.Dense(TOKEN, activation="relu")(y)
  return _compiled(keras.Model([source, target], layers.Dense(CLASSES)(y)))


MODELS = {
  model.__name__: model
  for model in (
    transformer,
    convolutions,
    recurrent,
    series,
    shared,
    rematerialized,
    mixed_precision,
    random_layers,
    subclassed,
    custom_step,
    several_outputs,
    translator,
  )
}


def sample(model):
  """Returns a batch of a model that does not define its inputs, or None."""
  if not isinstance(model, Residual):
    return None
  rng = np.random.default_rng(1)
  x = rng.random((BATCH, WIDTH), np.float32)
  return x, rng.integers(0, CLASSES, (BATCH,))
