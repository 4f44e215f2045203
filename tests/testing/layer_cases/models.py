"""Ways to write a Keras model: nested, mixed precision, steps of its own."""

import keras
import numpy as np
from keras import layers

from tests.testing import placed_models as at
from tests.testing.layer_cases.register import case, chain, floats, ints


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


@case
def sequential_without_input():
  stack = [layers.Dense(6, activation="relu"), layers.Dense(3)]
  return keras.Sequential(stack), (floats(8, 4), floats(8, 3))


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


def _mixed(policy):
  before = keras.config.dtype_policy()
  keras.config.set_dtype_policy(policy)
  try:
    return chain(
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


@case
def mixed_float16():
  model = _mixed("mixed_float16")
  batch = floats(8, 6, 4), floats(8, 3)
  return model, batch, {"optimizer": keras.optimizers.Adam(0.01)}


@case
def mixed_bfloat16():
  model = _mixed("mixed_bfloat16")
  batch = floats(8, 6, 4), floats(8, 3)
  return model, batch, {"optimizer": keras.optimizers.Adam(0.01)}


@case
def loss_scaled():
  # Its optimizer, most of the ops here, is inside a condition.
  model = chain((6,), layers.Dense(8), layers.Dense(3))
  inner = keras.optimizers.Adam(0.01)
  optimizer = keras.optimizers.LossScaleOptimizer(inner)
  return model, (floats(8, 6), floats(8, 3)), {"optimizer": optimizer}


@case
def double_precision():
  model = chain(
    (4,), layers.Dense(5, dtype="float64"), layers.Dense(3, dtype="float64")
  )
  return model, (floats(8, 4), floats(8, 3))


@case
def weighted_metrics():
  model = chain((6,), layers.Dense(8, "relu"), layers.Dense(1, "sigmoid"))
  metrics = ["accuracy", keras.metrics.AUC(), keras.metrics.Precision()]
  batch = floats(8, 6), ints(2, 8, 1), np.linspace(0.5, 2, 8)
  options = {"loss": "binary_crossentropy", "metrics": metrics}
  return model, batch, {**options, "weighted_metrics": ["mae"]}


class OwnStep(keras.Model):
  """A custom train_step and test_step, with a metric of its own."""

  def __init__(self):
    super().__init__()
    self.first = layers.Dense(6, activation="relu")
    self.norm = layers.BatchNormalization()
    self.last = layers.Dense(3)
    self.tracker = keras.metrics.Mean(name="loss")

  def call(self, x, training=False):
    return self.last(self.norm(self.first(x), training=training))

  @property
  def metrics(self):
    return [self.tracker]

  def train_step(self, data):
    import tensorflow as tf

    x, y = data
    with tf.GradientTape() as tape:
      loss = keras.ops.mean(keras.ops.abs(self(x, training=True) - y))
    gradients = tape.gradient(loss, self.trainable_variables)
    self.optimizer.apply(gradients, self.trainable_variables)
    self.tracker.reset_state()
    self.tracker.update_state(loss)
    return {"loss": self.tracker.result()}


@case
def own_train_step():
  return OwnStep(), (floats(8, 4), floats(8, 3)), {"loss": None}


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
    import tensorflow as tf

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


@case
def masked_lstm():
  model = chain(
    (7,),
    layers.Embedding(11, 5, mask_zero=True),
    layers.LSTM(6, return_sequences=True),
    layers.Dense(3),
    dtype="int32",
  )
  return model, (ints(11, 8, 7), floats(8, 7, 3)), {"optimizer": at.adam()}


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
