"""Models that between them use what Keras offers, with a batch for each."""

import keras
import numpy as np
from keras import layers

from tfplace.graph.extract import keras_names

_CASES = {}


def case(function):
  """Registers a function that returns model, batch and compile options."""
  _CASES[function.__name__] = function
  return function


def names():
  return list(_CASES)


def build(name):
  """The compiled model of that case and its batch, the same every time."""
  keras.utils.set_random_seed(11)
  with keras_names.fresh_names():
    model, batch, *options = _CASES[name]()
    given = {"optimizer": keras.optimizers.SGD(0.02), "loss": "mse"}
  given.update(*options)
  model.compile(jit_compile=False, **given)
  return model, batch


def floats(*shape, seed=5):
  return np.random.default_rng(seed).normal(size=shape).astype("float32")


def ints(high, *shape, seed=6):
  return np.random.default_rng(seed).integers(0, high, shape).astype("int32")


def _chain(shape, *stages, dtype="float32", name="net"):
  inputs = keras.Input(shape, dtype=dtype)
  x = inputs
  for stage in stages:
    x = stage(x)
  return keras.Model(inputs, x, name=name)


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
  backbone = _chain((5,), layers.Dense(6, "tanh"), layers.Dense(4), name="b")
  frozen = layers.Dense(4, name="frozen", trainable=False)
  one, two = keras.Input((5,)), keras.Input((5,))
  x, y = backbone(one), frozen(backbone(two))
  out = keras.ops.sum(keras.ops.abs(x - y), axis=-1, keepdims=True)
  model = keras.Model([one, two], out)
  return model, ([floats(8, 5), floats(8, 5, seed=1)], floats(8, 1))


@case
def normalizations():
  model = _chain(
    (6, 6, 4),
    layers.Conv2D(8, 3, padding="same"),
    layers.BatchNormalization(),
    layers.GroupNormalization(4),
    layers.LayerNormalization(),
    layers.RMSNormalization(),
    layers.UnitNormalization(),
    layers.SpectralNormalization(layers.Conv2D(4, 3)),
    layers.GlobalAveragePooling2D(),
    layers.Dense(3, kernel_constraint="max_norm", bias_regularizer="l1"),
  )
  return model, (floats(8, 6, 6, 4), floats(8, 3))


@case
def noises():
  model = _chain(
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
  model = _chain(
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
def stateful_and_unrolled_recurrences():
  inputs = keras.Input(batch_shape=(8, 5, 4))
  cells = [layers.LSTMCell(4), layers.GRUCell(3, reset_after=False)]
  x = layers.LSTM(4, stateful=True, return_sequences=True)(inputs)
  x = layers.RNN(cells, return_sequences=True)(x)
  x, h, c = layers.LSTM(3, unroll=True, return_state=True)(x)
  x = layers.Dense(3)(layers.Concatenate()([x, h, c]))
  return keras.Model(inputs, x), (floats(8, 5, 4), floats(8, 3))


@case
def convolutional_recurrence():
  model = _chain(
    (3, 6, 6, 2),
    layers.ConvLSTM2D(3, 3, return_sequences=True),
    layers.Conv3D(2, 2),
    layers.MaxPooling3D((1, 2, 2)),
    layers.Flatten(),
    layers.Dense(3),
  )
  return model, (floats(4, 3, 6, 6, 2), floats(4, 3))


@case
def attentions():
  inputs = keras.Input((6, 8))
  x = layers.MultiHeadAttention(2, 4, dropout=0.1)(inputs, inputs)
  x = layers.GroupQueryAttention(4, 4, 2)(x, x, use_causal_mask=True)
  x = layers.Attention(use_scale=True)([x, inputs])
  x = layers.AdditiveAttention()([x, inputs])
  x = layers.EinsumDense("abc,cd->abd", (6, 5), bias_axes="d")(x)
  x = layers.Dense(3)(layers.GlobalMaxPooling1D()(x))
  return keras.Model(inputs, x), (floats(8, 6, 8), floats(8, 3))


@case
def convolutions():
  model = _chain(
    (12, 12, 4),
    layers.Conv2D(8, 3, groups=2, padding="same"),
    layers.DepthwiseConv2D(3, padding="same"),
    layers.PReLU(shared_axes=[1, 2]),
    layers.SeparableConv2D(6, 3, strides=2, padding="same"),
    layers.Conv2DTranspose(5, 3, strides=2, padding="same"),
    layers.AveragePooling2D(2),
    layers.UpSampling2D(interpolation="bilinear"),
    layers.ZeroPadding2D(1),
    layers.Cropping2D(2),
    layers.Permute((2, 1, 3)),
    layers.MaxPooling2D(),
    layers.Reshape((-1, 5)),
    layers.Conv1D(6, 2, dilation_rate=2, padding="causal"),
    layers.SeparableConv1D(4, 2),
    layers.Conv1DTranspose(3, 2),
    layers.Flatten(),
    layers.Dense(3),
  )
  return model, (floats(4, 12, 12, 4), floats(4, 3))


@case
def augmentation():
  normalization = layers.Normalization()
  normalization.adapt(floats(32, 10, 10, 3))
  model = _chain(
    (10, 10, 3),
    normalization,
    layers.Rescaling(0.5),
    layers.RandomFlip(),
    layers.RandomRotation(0.1),
    layers.RandomZoom(0.1),
    layers.RandomTranslation(0.1, 0.1),
    layers.RandomContrast(0.1),
    layers.RandomBrightness(0.1, value_range=(-1, 1)),
    layers.RandomCrop(8, 8),
    layers.Resizing(6, 6),
    layers.Conv2D(3, 3, activation="relu"),
    layers.Flatten(),
    layers.Dense(3),
  )
  return model, (floats(4, 10, 10, 3), floats(4, 3))


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
def lambdas_and_operations():
  inputs = keras.Input((6,))
  x = layers.Lambda(lambda t: t * 2.0)(inputs)
  x = keras.ops.where(x > 0, x, 0.1 * x)
  parts = keras.ops.split(x, 2, axis=-1)
  x = layers.Dot(axes=-1)([layers.Dense(4)(part) for part in parts])
  x = layers.ActivityRegularization(l2=0.01)(x)
  x = layers.Dense(4, activity_regularizer="l1")(x)
  return (
    keras.Model(inputs, layers.Softmax()(x)),
    (
      floats(8, 6),
      ints(4, 8),
    ),
    {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]},
  )


def _mixed(policy):
  before = keras.config.dtype_policy()
  keras.config.set_dtype_policy(policy)
  try:
    return _chain(
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
def double_precision():
  model = _chain(
    (4,), layers.Dense(5, dtype="float64"), layers.Dense(3, dtype="float64")
  )
  return model, (floats(8, 4), floats(8, 3))


@case
def weighted_metrics():
  model = _chain((6,), layers.Dense(8, "relu"), layers.Dense(1, "sigmoid"))
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
