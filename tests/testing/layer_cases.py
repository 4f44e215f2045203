"""Models that between them use what Keras offers, with a batch for each.

Several inputs and outputs, dictionaries, shared and frozen layers, added
losses, statistics, loops, masks, random layers, tables, mixed precision, an
optimizer in a condition, a step of two optimizers.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.testing import placed_models as at
from tfplace.variants import keras_step

CASES = {}


def case(function):
  """Registers a function that returns model, batch and compile options."""
  CASES[function.__name__] = function
  return function


def build(name):
  """The compiled model of that case and its batch, the same every time."""
  keras.utils.set_random_seed(11)
  with keras_step.fresh_names():
    model, batch, *options = CASES[name]()
    given = {"optimizer": keras.optimizers.SGD(0.02), "loss": "mse"}
  given.update(*options)
  model.compile(jit_compile=False, **given)
  return model, batch


def floats(*shape, seed=5):
  return np.random.default_rng(seed).normal(size=shape).astype("float32")


def ints(high, *shape, seed=6):
  return np.random.default_rng(seed).integers(0, high, shape).astype("int32")


def chain(shape, *stages, dtype="float32", name="net"):
  """A functional model of layers one after the other."""
  x = inputs = keras.Input(shape, dtype=dtype)
  for stage in stages:
    x = stage(x)
  return keras.Model(inputs, x, name=name)


@case
def noises():
  model = chain(
    (6, 8),
    layers.Dropout(0.3),
    layers.SpatialDropout1D(0.2),
    layers.GaussianNoise(0.1),
    layers.Dense(8, activation="selu"),
    layers.AlphaDropout(0.2),
    layers.GaussianDropout(0.2),
    layers.Flatten(),
    layers.Dense(3),
  )
  return model, (floats(8, 6, 8), floats(8, 3))


@case
def masked_recurrences():
  model = chain(
    (7,),
    layers.Embedding(30, 6, mask_zero=True),
    layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
    layers.Bidirectional(layers.GRU(3, dropout=0.2, return_sequences=True)),
    layers.LSTM(4, recurrent_dropout=0.2, return_sequences=True),
    layers.TimeDistributed(layers.Dense(4)),
    layers.SimpleRNN(5),
    layers.Dense(3),
    dtype="int32",
  )
  return model, (ints(30, 8, 7), floats(8, 3))


@case
def text_and_tables():
  words = keras.Input((), dtype="string", name="words")
  numbers = keras.Input((1,), name="numbers")
  text = layers.TextVectorization(output_sequence_length=4)
  text.adapt(["a b c", "c d e f", "a a"])
  ids = layers.StringLookup(vocabulary=["a b", "c"])(words)
  x = layers.GlobalAveragePooling1D()(layers.Embedding(10, 4)(text(words)))
  y = layers.Embedding(4, 4)(ids)
  bins = layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0])(numbers)
  z = layers.CategoryEncoding(4, output_mode="one_hot")(bins)
  h = layers.Embedding(7, 4)(layers.Hashing(7)(words))
  x = layers.Concatenate()([x, y, z, h])
  model = keras.Model([words, numbers], layers.Dense(3)(x))
  texts = np.array(["a b", "c", "d e", "f"], dtype=object)
  return model, ([texts, floats(4, 1)], floats(4, 3))


@case
def several_inputs_and_outputs():
  left, right = keras.Input((6,), name="a"), keras.Input((4,), name="b")
  shared = layers.Dense(5, activation="relu", name="shared")
  x = shared(layers.Dense(4)(left))
  y = shared(right)
  one = layers.Dense(3, name="one")(layers.Concatenate()([x, y]))
  two = layers.Dense(1, activation="sigmoid", name="two")(layers.Add()([x, y]))
  model = keras.Model({"a": left, "b": right}, {"one": one, "two": two})
  batch = (
    {"a": floats(8, 6), "b": floats(8, 4)},
    {"one": floats(8, 3), "two": ints(2, 8, 1)},
  )
  losses = {"one": "mse", "two": "binary_crossentropy"}
  weights = {"one": 1.0, "two": 0.3}
  return model, batch, {"loss": losses, "loss_weights": weights}


class Block(keras.Model):
  """A subclassed model inside another."""

  def __init__(self, width):
    super().__init__()
    self.norm = layers.LayerNormalization()
    self.stack = [layers.Dense(width, activation="relu") for _ in range(2)]

  def call(self, x, training=False):
    for layer in self.stack:
      x = x + layer(self.norm(x))
    return x


class Nested(keras.Model):
  """Dictionaries in and out, models in a dictionary, an added loss."""

  def __init__(self):
    super().__init__()
    self.embed = layers.Embedding(20, 8)
    self.blocks = {"one": Block(8), "two": Block(8)}
    self.head = layers.Dense(3, kernel_regularizer="l2")

  def call(self, inputs, training=False):
    x = keras.ops.mean(self.embed(inputs["ids"]), axis=1) + inputs["x"]
    for block in self.blocks.values():
      x = block(x, training=training)
    self.add_loss(0.01 * keras.ops.mean(keras.ops.square(x)))
    return {"y": self.head(x)}


@case
def nested_subclassed():
  batch = {"ids": ints(20, 8, 5), "x": floats(8, 8)}, {"y": floats(8, 3)}
  return Nested(), batch, {"loss": {"y": "mse"}, "metrics": {"y": ["mae"]}}


@case
def siamese():
  backbone = chain((5,), layers.Dense(6, "tanh"), layers.Dense(4), name="b")
  frozen = layers.Dense(4, name="frozen", trainable=False)
  one, two = keras.Input((5,)), keras.Input((5,))
  x, y = backbone(one), frozen(backbone(two))
  out = keras.ops.sum(keras.ops.abs(x - y), axis=-1, keepdims=True)
  model = keras.Model([one, two], out)
  return model, ([floats(8, 5), floats(8, 5, seed=1)], floats(8, 1))


@case
def mixed_float16():
  before = keras.config.dtype_policy()
  keras.config.set_dtype_policy("mixed_float16")
  try:
    model = chain(
      (6, 4),
      layers.LSTM(6, return_sequences=True),
      layers.Conv1D(6, 3),
      layers.BatchNormalization(),
      layers.Flatten(),
      layers.Dropout(0.2),
      layers.Dense(3, dtype="float32"),
    )
  finally:
    keras.config.set_dtype_policy(before)
  batch = floats(8, 6, 4), floats(8, 3)
  return model, batch, {"optimizer": at.adam()}


@case
def loss_scaled():
  # Its optimizer, most of the ops here, is inside a condition.
  model = chain((6,), layers.Dense(8), layers.Dense(3))
  inner = keras.optimizers.Adam(0.01)
  optimizer = keras.optimizers.LossScaleOptimizer(inner)
  return model, (floats(8, 6), floats(8, 3)), {"optimizer": optimizer}


class Adversarial(keras.Model):
  """Two networks and two optimizers, as a GAN has them."""

  def __init__(self):
    super().__init__()
    self.maker = keras.Sequential([layers.Dense(6, "relu"), layers.Dense(4)])
    self.judge = keras.Sequential([layers.Dense(6, "relu"), layers.Dense(1)])
    self.seeds = keras.random.SeedGenerator(3)

  def compile(self, judge_optimizer, **options):
    super().compile(**options)
    self.judge_optimizer = judge_optimizer

  @property
  def metrics(self):
    return []  # else Keras shows its own mean loss, which this step has not

  def call(self, noise):
    return self.maker(noise)

  def train_step(self, data):
    real = data[0] if isinstance(data, tuple) else data
    noise = keras.random.normal((keras.ops.shape(real)[0], 3), seed=self.seeds)
    with tf.GradientTape() as tape:
      gap = self.judge(self.maker(noise)) - self.judge(real)
      judged = keras.ops.mean(keras.ops.softplus(gap))
    weights = self.judge.trainable_variables
    self.judge_optimizer.apply(tape.gradient(judged, weights), weights)
    with tf.GradientTape() as tape:
      made = keras.ops.mean(-self.judge(self.maker(noise)))
    weights = self.maker.trainable_variables
    self.optimizer.apply(tape.gradient(made, weights), weights)
    return {"loss": judged + made}


@case
def two_optimizers():
  model = Adversarial()
  options = {"judge_optimizer": keras.optimizers.Adam(0.01), "loss": None}
  return model, (floats(8, 4),), options


@case
def batch_norm():
  model = at.conv_norm("net")
  options = {"optimizer": at.adam(), "metrics": ["mae"]}
  return model, at.batch("conv_norm"), options


class CtcLoss(layers.Layer):
  """Adds the mean CTC loss of scores [batch, frames, symbols] for labels."""

  def call(self, labels, scores):
    count = keras.ops.shape(scores)[0]
    losses = keras.ops.ctc_loss(
      labels,
      scores,
      keras.ops.full((count,), labels.shape[1], "int32"),
      keras.ops.full((count,), scores.shape[1], "int32"),
    )
    self.add_loss(keras.ops.mean(losses))
    return scores


@case
def ctc_loss():
  # Grappler cannot estimate its loops.
  sound = keras.Input((12, 8), name="sound")
  labels = keras.Input((4,), dtype="int32", name="labels")
  hidden = layers.Dense(16, activation="relu")(sound)
  scores = layers.Dense(6, name="scores")(hidden)
  model = keras.Model([sound, labels], CtcLoss(name="ctc")(labels, scores))
  batch = ([floats(8, 12, 8), 1 + ints(5, 8, 4)],)
  return model, batch, {"loss": None, "optimizer": at.adam()}
