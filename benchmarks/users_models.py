"""The users' models: 24 training steps as users write them.

Weights are random and sizes small, so that a step takes seconds on a CPU;
layers, ops, losses and the way of writing them are what counts. Those of
`keras_hub` need that package; they have no preprocessor.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

_STEPS = 1  # Rounding grows with every step.


@dataclasses.dataclass(frozen=True)
class Case:
  """A model and the data of an epoch.

  Attributes:
    model: compiled, as a user would pass it to `fit`.
    data: nested arrays that `tf.data.Dataset.from_tensor_slices` takes: `x`,
      `(x, y)`, `(x, y, sample_weight)` or what the model's own step takes.
    batch_size: examples of a step.
  """

  model: Any
  data: Any
  batch_size: int


def siamese() -> Case:
  """Three images through one network; its batch is a tuple of three."""
  base = keras.applications.ResNet50(
    weights=None, include_top=False, input_shape=(64, 64, 3)
  )
  x = layers.Flatten()(base.output)
  x = layers.BatchNormalization()(layers.Dense(512, activation="relu")(x))
  x = layers.BatchNormalization()(layers.Dense(256, activation="relu")(x))
  embedding = keras.Model(base.input, layers.Dense(256)(x), name="embedding")
  is_trainable = False
  for layer in base.layers:
    is_trainable = is_trainable or layer.name == "conv5_block1_out"
    layer.trainable = is_trainable
  names = ("anchor", "positive", "negative")
  images = [keras.Input((64, 64, 3), name=name) for name in names]
  prepared = [
    embedding(keras.applications.resnet.preprocess_input(i)) for i in images
  ]
  model = Siamese(keras.Model(images, Distances()(*prepared)))
  model.compile(optimizer=keras.optimizers.Adam(1e-4))
  rng = np.random.default_rng(0)
  shape = (_STEPS * 8, 64, 64, 3)
  data = tuple(255 * rng.random(shape, np.float32) for _ in names)
  return Case(model, data, 8)


class Distances(layers.Layer):
  """Squared distances of an anchor to what is alike, and to what is not."""

  def call(self, anchor: Any, positive: Any, negative: Any) -> tuple[Any, Any]:
    near = ops.sum(ops.square(anchor - positive), -1)
    return near, ops.sum(ops.square(anchor - negative), -1)


class Siamese(keras.Model):
  """Trains a network that returns two distances by the triplet loss."""

  def __init__(self, network: keras.Model, margin: float = 0.5) -> None:
    super().__init__()
    self.network = network
    self.margin = margin
    self.loss_tracker = keras.metrics.Mean(name="loss")

  def call(self, inputs: Any) -> Any:
    return self.network(inputs)

  def train_step(self, data: Any) -> dict[str, Any]:
    with tf.GradientTape() as tape:
      near, far = self.network(data)
      loss = ops.maximum(near - far + self.margin, 0.0)
    gradients = tape.gradient(loss, self.network.trainable_weights)
    pairs = zip(gradients, self.network.trainable_weights, strict=True)
    self.optimizer.apply_gradients(pairs)
    self.loss_tracker.update_state(loss)
    return {"loss": self.loss_tracker.result()}

  @property
  def metrics(self) -> list[Any]:
    return [self.loss_tracker]


def gan() -> Case:
  """A generator and a discriminator that take turns in one step."""
  discriminator = keras.Sequential(
    [
      keras.Input((64, 64, 3)),
      layers.Conv2D(32, 4, strides=2, padding="same"),
      layers.LeakyReLU(negative_slope=0.2),
      layers.Conv2D(64, 4, strides=2, padding="same"),
      layers.LeakyReLU(negative_slope=0.2),
      layers.Conv2D(64, 4, strides=2, padding="same"),
      layers.LeakyReLU(negative_slope=0.2),
      layers.Flatten(),
      layers.Dropout(0.2),
      layers.Dense(1, activation="sigmoid"),
    ],
    name="discriminator",
  )
  generator = keras.Sequential(
    [
      keras.Input((128,)),
      layers.Dense(8 * 8 * 64),
      layers.Reshape((8, 8, 64)),
      layers.Conv2DTranspose(64, 4, strides=2, padding="same"),
      layers.LeakyReLU(negative_slope=0.2),
      layers.Conv2DTranspose(64, 4, strides=2, padding="same"),
      layers.LeakyReLU(negative_slope=0.2),
      layers.Conv2DTranspose(64, 4, strides=2, padding="same"),
      layers.LeakyReLU(negative_slope=0.2),
      layers.Conv2D(3, 5, padding="same", activation="sigmoid"),
    ],
    name="generator",
  )
  model = Gan(discriminator, generator, latent_dim=128)
  model.compile(
    d_optimizer=keras.optimizers.Adam(1e-4),
    g_optimizer=keras.optimizers.Adam(1e-4),
    loss_fn=keras.losses.BinaryCrossentropy(),
  )
  rng = np.random.default_rng(0)
  return Case(model, rng.random((_STEPS * 16, 64, 64, 3), np.float32), 16)


class Gan(keras.Model):
  """Two networks with an optimizer each."""

  def __init__(
    self, discriminator: keras.Model, generator: keras.Model, latent_dim: int
  ) -> None:
    super().__init__()
    self.discriminator = discriminator
    self.generator = generator
    self.latent_dim = latent_dim
    self.seeds = keras.random.SeedGenerator(1337)

  def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
    super().compile()
    self.d_optimizer = d_optimizer
    self.g_optimizer = g_optimizer
    self.loss_fn = loss_fn
    self.d_loss_metric = keras.metrics.Mean(name="d_loss")
    self.g_loss_metric = keras.metrics.Mean(name="g_loss")

  @property
  def metrics(self) -> list[Any]:
    return [self.d_loss_metric, self.g_loss_metric]

  def train_step(self, real_images: Any) -> dict[str, Any]:
    batch_size = ops.shape(real_images)[0]
    shape = (batch_size, self.latent_dim)
    noise = keras.random.normal(shape, seed=self.seeds)
    images = ops.concatenate([self.generator(noise), real_images], axis=0)
    labels = ops.concatenate(
      [ops.ones((batch_size, 1)), ops.zeros((batch_size, 1))], axis=0
    )
    labels += 0.05 * keras.random.uniform(ops.shape(labels), seed=self.seeds)
    with tf.GradientTape() as tape:
      d_loss = self.loss_fn(labels, self.discriminator(images))
    weights = self.discriminator.trainable_weights
    gradients = tape.gradient(d_loss, weights)
    self.d_optimizer.apply_gradients(zip(gradients, weights, strict=True))

    noise = keras.random.normal(shape, seed=self.seeds)
    misleading = ops.zeros((batch_size, 1))
    with tf.GradientTape() as tape:
      judged = self.discriminator(self.generator(noise))
      g_loss = self.loss_fn(misleading, judged)
    weights = self.generator.trainable_weights
    gradients = tape.gradient(g_loss, weights)
    self.g_optimizer.apply_gradients(zip(gradients, weights, strict=True))
    self.d_loss_metric.update_state(d_loss)
    self.g_loss_metric.update_state(g_loss)
    return {
      "d_loss": self.d_loss_metric.result(),
      "g_loss": self.g_loss_metric.result(),
    }


def vae() -> Case:
  """An encoder and a decoder, and a model that has no `call`."""
  images = keras.Input((28, 28, 1))
  x = layers.Conv2D(32, 3, 2, activation="relu", padding="same")(images)
  x = layers.Conv2D(64, 3, 2, activation="relu", padding="same")(x)
  x = layers.Dense(16, activation="relu")(layers.Flatten()(x))
  z_mean = layers.Dense(2, name="z_mean")(x)
  z_log_var = layers.Dense(2, name="z_log_var")(x)
  z = Sampling()([z_mean, z_log_var])
  encoder = keras.Model(images, [z_mean, z_log_var, z], name="encoder")
  latent = keras.Input((2,))
  x = layers.Dense(7 * 7 * 64, activation="relu")(latent)
  x = layers.Reshape((7, 7, 64))(x)
  x = layers.Conv2DTranspose(64, 3, 2, activation="relu", padding="same")(x)
  x = layers.Conv2DTranspose(32, 3, 2, activation="relu", padding="same")(x)
  x = layers.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x)
  decoder = keras.Model(latent, x, name="decoder")
  model = Vae(encoder, decoder)
  model.compile(optimizer=keras.optimizers.Adam())
  rng = np.random.default_rng(0)
  return Case(model, rng.random((_STEPS * 64, 28, 28, 1), np.float32), 64)


class Sampling(layers.Layer):
  """Draws a vector from a normal distribution: [examples, units]."""

  def __init__(self, **kwargs: Any) -> None:
    super().__init__(**kwargs)
    self.seeds = keras.random.SeedGenerator(1337)

  def call(self, inputs: Any) -> Any:
    mean, log_var = inputs
    noise = keras.random.normal(ops.shape(mean), seed=self.seeds)
    return mean + ops.exp(0.5 * log_var) * noise


class Vae(keras.Model):
  """Reconstructs images; its loss is of pixels and of the distribution."""

  def __init__(
    self, encoder: keras.Model, decoder: keras.Model, **kwargs: Any
  ) -> None:
    super().__init__(**kwargs)
    self.encoder = encoder
    self.decoder = decoder
    self.trackers = [
      keras.metrics.Mean(name=name)
      for name in ("loss", "reconstruction_loss", "kl_loss")
    ]

  @property
  def metrics(self) -> list[Any]:
    return self.trackers

  def train_step(self, data: Any) -> dict[str, Any]:
    with tf.GradientTape() as tape:
      mean, log_var, z = self.encoder(data)
      rebuilt = self.decoder(z)
      pixels = keras.losses.binary_crossentropy(data, rebuilt)
      rebuilt_loss = ops.mean(ops.sum(pixels, axis=(1, 2)))
      kl_loss = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
      kl_loss = ops.mean(ops.sum(kl_loss, axis=1))
      loss = rebuilt_loss + kl_loss
    gradients = tape.gradient(loss, self.trainable_weights)
    pairs = zip(gradients, self.trainable_weights, strict=True)
    self.optimizer.apply_gradients(pairs)
    values = (loss, rebuilt_loss, kl_loss)
    for tracker, value in zip(self.trackers, values, strict=True):
      tracker.update_state(value)
    return {tracker.name: tracker.result() for tracker in self.trackers}


def diffusion() -> Case:
  """A network that removes noise, and the moving average of its weights."""
  model = Diffusion(32, widths=(16, 32, 48), depth=2)
  rng = np.random.default_rng(0)
  images = rng.random((_STEPS * 16, 32, 32, 3), np.float32)
  model.normalizer.adapt(images)
  model.compile(
    optimizer=keras.optimizers.AdamW(1e-3, weight_decay=1e-4),
    loss=keras.losses.MeanAbsoluteError(),
  )
  return Case(model, images, 16)


class Diffusion(keras.Model):
  """Predicts the noise of images by a cosine schedule."""

  def __init__(self, size: int, widths: tuple[int, ...], depth: int) -> None:
    super().__init__()
    self.normalizer = layers.Normalization()
    self.network = _denoiser(size, widths, depth)
    self.ema_network = keras.models.clone_model(self.network)
    self.seeds = keras.random.SeedGenerator(42)

  def compile(self, **kwargs: Any) -> None:
    super().compile(**kwargs)
    self.noise_loss = keras.metrics.Mean(name="noise_loss")

  @property
  def metrics(self) -> list[Any]:
    return [self.noise_loss]

  def train_step(self, images: Any) -> dict[str, Any]:
    images = self.normalizer(images, training=True)
    noises = keras.random.normal(ops.shape(images), seed=self.seeds)
    times = keras.random.uniform(
      (ops.shape(images)[0], 1, 1, 1), seed=self.seeds
    )
    start, end = math.acos(0.95), math.acos(0.02)
    angles = start + times * (end - start)
    signals, noise_rates = ops.cos(angles), ops.sin(angles)
    noisy = signals * images + noise_rates * noises
    with tf.GradientTape() as tape:
      predicted = self.network([noisy, noise_rates**2], training=True)
      loss = self.loss(noises, predicted)
    weights = self.network.trainable_weights
    gradients = tape.gradient(loss, weights)
    self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
    self.noise_loss.update_state(loss)
    pairs = zip(self.network.weights, self.ema_network.weights, strict=True)
    for weight, average in pairs:
      average.assign(0.999 * average + 0.001 * weight)
    return {"noise_loss": self.noise_loss.result()}


def _denoiser(size: int, widths: tuple[int, ...], depth: int) -> keras.Model:
  noisy = keras.Input((size, size, 3))
  variances = keras.Input((1, 1, 1))
  level = layers.Lambda(_sinusoidal, output_shape=(1, 1, 32))(variances)
  level = layers.UpSampling2D(size, interpolation="nearest")(level)
  x = layers.Conv2D(widths[0], 1)(noisy)
  x = layers.Concatenate()([x, level])
  skips = []
  for width in widths[:-1]:
    for _ in range(depth):
      x = _residual(x, width)
      skips.append(x)
    x = layers.AveragePooling2D(2)(x)
  for _ in range(depth):
    x = _residual(x, widths[-1])
  for width in reversed(widths[:-1]):
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    for _ in range(depth):
      x = _residual(layers.Concatenate()([x, skips.pop()]), width)
  x = layers.Conv2D(3, 1, kernel_initializer="zeros")(x)
  return keras.Model([noisy, variances], x, name="denoiser")


@keras.saving.register_keras_serializable("users_models")
def _sinusoidal(x: Any) -> Any:
  frequencies = np.exp(np.linspace(0.0, math.log(1000.0), 16))
  angles = (2.0 * math.pi * frequencies).astype("float32")
  return ops.concatenate([ops.sin(angles * x), ops.cos(angles * x)], axis=3)


def _residual(x: Any, width: int) -> Any:
  past = x if x.shape[-1] == width else layers.Conv2D(width, 1)(x)
  x = layers.BatchNormalization(center=False, scale=False)(x)
  x = layers.Conv2D(width, 3, padding="same", activation="swish")(x)
  x = layers.Conv2D(width, 3, padding="same")(x)
  return layers.Add()([x, past])


_KINDS = {
  f"kind_{i}": [f"{i}_{j}" for j in range(count)]
  for i, count in enumerate((4, 40, 9, 7, 16, 6, 5, 2))
}
_NUMBERS = [f"number_{i}" for i in range(6)]


def wide_and_deep() -> Case:
  """Reads columns of text and of numbers by name."""
  inputs = {
    **{name: keras.Input((1,), name=name) for name in _NUMBERS},
    **{name: keras.Input((1,), name=name, dtype="string") for name in _KINDS},
  }
  wide, deep = [], []
  for name, words in _KINDS.items():
    index = layers.StringLookup(vocabulary=words)(inputs[name])
    count = len(words) + 1
    wide.append(layers.CategoryEncoding(count, output_mode="one_hot")(index))
    embedded = layers.Embedding(count, max(2, int(count**0.5)))(index)
    deep.append(layers.Flatten()(embedded))
  numbers = [inputs[name] for name in _NUMBERS]
  wide_features = layers.BatchNormalization()(layers.concatenate(wide))
  x = layers.concatenate([*deep, *numbers])
  for _ in range(2):
    x = layers.BatchNormalization()(layers.Dense(64)(x))
    x = layers.Dropout(0.1)(layers.ReLU()(x))
  merged = layers.concatenate([wide_features, x])
  outputs = layers.Dense(7, activation="softmax")(merged)
  model = keras.Model(inputs, outputs)
  model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
  )
  rng = np.random.default_rng(0)
  rows = _STEPS * 256
  x = {
    **{name: _numbers(rng, rows) for name in _NUMBERS},
    **{k: rng.choice(words, (rows, 1)) for k, words in _KINDS.items()},
  }
  return Case(model, (x, rng.integers(0, 7, rows).astype("int32")), 256)


def tab_transformer() -> Case:
  """Columns of categories attend to each other."""
  counts = [len(words) for words in _KINDS.values()]
  kinds = keras.Input((len(counts),), name="kinds", dtype="int32")
  numbers = keras.Input((6,), name="numbers")
  columns = [
    layers.Embedding(count, 32)(kinds[:, i]) for i, count in enumerate(counts)
  ]
  x = ops.stack(columns, axis=1)
  x = ColumnPositions()(x)
  for _ in range(3):
    y = layers.MultiHeadAttention(4, 32, dropout=0.2)(x, x)
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([x, y]))
    y = layers.Dense(32, activation="gelu")(x)
    y = layers.Dense(32)(layers.Dropout(0.2)(y))
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([x, y]))
  x = layers.Flatten()(x)
  x = layers.concatenate([x, layers.LayerNormalization(epsilon=1e-6)(numbers)])
  for units in (256, 128):
    x = layers.Dense(units, activation="selu")(layers.BatchNormalization()(x))
    x = layers.Dropout(0.2)(x)
  outputs = layers.Dense(1, activation="sigmoid")(x)
  model = keras.Model({"kinds": kinds, "numbers": numbers}, outputs)
  model.compile(
    optimizer=keras.optimizers.AdamW(1e-3, weight_decay=1e-4),
    loss=keras.losses.BinaryCrossentropy(),
    metrics=[keras.metrics.BinaryAccuracy(name="accuracy")],
  )
  rng = np.random.default_rng(0)
  rows = _STEPS * 256
  chosen = [rng.integers(0, count, rows) for count in counts]
  x = {
    "kinds": np.stack(chosen, axis=1).astype("int32"),
    "numbers": rng.normal(size=(rows, 6)).astype("float32"),
  }
  return Case(model, (x, rng.integers(0, 2, rows).astype("float32")), 256)


class ColumnPositions(layers.Layer):
  """Adds a trained vector to each column: [rows, columns, units]."""

  def build(self, input_shape: Any) -> None:
    self.table = self.add_weight(shape=input_shape[1:], name="table")

  def call(self, x: Any) -> Any:
    return x + self.table


def dlrm() -> Case:
  """Predicts clicks by products of embeddings."""
  model = Dlrm([1000 + 40 * i for i in range(26)], units=16)
  model.compile(
    optimizer=keras.optimizers.Adagrad(0.01),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.AUC(from_logits=True, name="auc")],
  )
  rng = np.random.default_rng(0)
  rows = _STEPS * 512
  x = {
    "dense": rng.normal(size=(rows, 13)).astype("float32"),
    "sparse": rng.integers(0, 1000, (rows, 26)).astype("int32"),
  }
  return Case(model, (x, rng.integers(0, 2, (rows, 1)).astype("float32")), 512)


class Dlrm(keras.Model):
  """Bottom network, embeddings, their products, top network."""

  def __init__(self, counts: list[int], units: int, **kwargs: Any) -> None:
    super().__init__(**kwargs)
    self.counts, self.units = counts, units
    self.tables = [
      layers.Embedding(count, units, name=f"table_{i}")
      for i, count in enumerate(counts)
    ]
    self.bottom = keras.Sequential(
      [layers.Dense(n, activation="relu") for n in (128, 64, units)]
    )
    self.top = keras.Sequential(
      [
        *(layers.Dense(n, activation="relu") for n in (256, 128)),
        layers.Dense(1),
      ]
    )

  def call(self, inputs: Any) -> Any:
    dense = self.bottom(inputs["dense"])
    rows = [
      table(inputs["sparse"][:, i]) for i, table in enumerate(self.tables)
    ]
    vectors = ops.stack([dense, *rows], axis=1)
    products = ops.matmul(vectors, ops.transpose(vectors, (0, 2, 1)))
    count = len(rows) + 1
    first, second = np.triu_indices(count, 1)
    flat = ops.reshape(products, (-1, count * count))
    pairs = ops.take(flat, first * count + second, axis=1)
    return self.top(ops.concatenate([dense, pairs], axis=1))


def graph_convolution() -> Case:
  """Classifies nodes of one graph, which the model holds."""
  rng = np.random.default_rng(0)
  features = rng.random((1000, 300), np.float32)
  edges = rng.integers(0, 1000, (2, 5000)).astype("int32")
  model = NodeClassifier(features, edges, num_classes=7, units=(32, 32))
  model.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
  )
  nodes = rng.integers(0, 1000, _STEPS * 256).astype("int32")
  labels = rng.integers(0, 7, _STEPS * 256).astype("int32")
  return Case(model, (nodes, labels), 256)


class GraphConvolution(layers.Layer):
  """Adds what neighbors say to each node: [nodes, units]."""

  def __init__(self, units: tuple[int, ...], **kwargs: Any) -> None:
    super().__init__(**kwargs)
    self.prepare = _feed_forward(units)
    self.update = _feed_forward(units)

  def call(self, inputs: Any) -> Any:
    nodes, edges, weights = inputs
    sources, targets = edges[0], edges[1]
    messages = self.prepare(tf.gather(nodes, targets))
    messages *= tf.expand_dims(weights, -1)
    gathered = tf.math.unsorted_segment_mean(
      messages, sources, num_segments=tf.shape(nodes)[0]
    )
    return tf.nn.l2_normalize(self.update(nodes + gathered), axis=-1)


class NodeClassifier(keras.Model):
  """Takes indices of nodes, and returns logits: [indices, classes]."""

  def __init__(
    self,
    features: np.ndarray,
    edges: np.ndarray,
    num_classes: int,
    units: tuple[int, ...],
  ) -> None:
    super().__init__()
    self.node_features = tf.constant(features)
    self.edges = tf.constant(edges)
    weights = np.ones(edges.shape[1], "float32")
    self.edge_weights = tf.constant(weights / weights.sum())
    self.preprocess = _feed_forward(units)
    self.first = GraphConvolution(units)
    self.second = GraphConvolution(units)
    self.postprocess = _feed_forward(units)
    self.logits = layers.Dense(num_classes)

  def call(self, indices: Any) -> Any:
    x = self.preprocess(self.node_features)
    x = self.first((x, self.edges, self.edge_weights)) + x
    x = self.second((x, self.edges, self.edge_weights)) + x
    x = self.postprocess(x)
    return self.logits(tf.gather(x, indices))


def _feed_forward(units: tuple[int, ...]) -> keras.Sequential:
  parts: list[Any] = []
  for count in units:
    parts += [
      layers.BatchNormalization(),
      layers.Dropout(0.2),
      layers.Dense(count, activation=keras.activations.gelu),
    ]
  return keras.Sequential(parts)


def _numbers(rng: np.random.Generator, rows: int) -> np.ndarray:
  return rng.normal(size=(rows, 1)).astype("float32")


def seq2seq() -> Case:
  """Translates characters; both inputs leave their length open."""
  encoder_inputs = keras.Input((None, 71))
  _, *states = layers.LSTM(128, return_state=True)(encoder_inputs)
  decoder_inputs = keras.Input((None, 93))
  lstm = layers.LSTM(128, return_sequences=True, return_state=True)
  decoded, _, _ = lstm(decoder_inputs, initial_state=states)
  outputs = layers.Dense(93, activation="softmax")(decoded)
  model = keras.Model([encoder_inputs, decoder_inputs], outputs)
  model.compile(
    optimizer="rmsprop", loss="categorical_crossentropy", metrics=["accuracy"]
  )
  rng = np.random.default_rng(0)

  def one_hot(length: int, count: int) -> np.ndarray:
    chosen = rng.integers(0, count, (_STEPS * 64, length))
    return np.eye(count, dtype="float32")[chosen]

  source, target = one_hot(16, 71), one_hot(40, 93)
  return Case(model, ((source, target), np.roll(target, -1, axis=1)), 64)


def ctc() -> Case:
  """Reads captchas; the loss is added by a layer that takes the labels."""
  image = keras.Input((200, 50, 1), name="image", dtype="float32")
  labels = keras.Input((None,), name="label", dtype="float32")
  x = layers.Conv2D(32, 3, activation="relu", padding="same")(image)
  x = layers.MaxPooling2D()(x)
  x = layers.Conv2D(64, 3, activation="relu", padding="same")(x)
  x = layers.MaxPooling2D()(x)
  x = layers.Reshape((50, 12 * 64))(x)
  x = layers.Dropout(0.2)(layers.Dense(64, activation="relu")(x))
  x = layers.Bidirectional(
    layers.LSTM(128, return_sequences=True, dropout=0.25)
  )(x)
  x = layers.Bidirectional(
    layers.LSTM(64, return_sequences=True, dropout=0.25)
  )(x)
  x = layers.Dense(21, activation="softmax", name="characters")(x)
  model = keras.Model([image, labels], Ctc(name="ctc_loss")(labels, x))
  model.compile(optimizer=keras.optimizers.Adam())
  rng = np.random.default_rng(0)
  data = {
    "image": rng.random((_STEPS * 16, 200, 50, 1), np.float32),
    "label": rng.integers(1, 20, (_STEPS * 16, 5)).astype("float32"),
  }
  return Case(model, data, 16)


class Ctc(layers.Layer):
  """Adds the CTC loss of [examples, steps, characters] to the model."""

  def call(self, labels: Any, predicted: Any) -> Any:
    ones = ops.ones((ops.shape(labels)[0],), "int32")
    loss = ops.ctc_loss(
      ops.cast(labels, "int32"),
      ops.log(predicted + 1e-7),
      ops.shape(labels)[1] * ones,
      ops.shape(predicted)[1] * ones,
      mask_index=0,
    )
    self.add_loss(ops.mean(loss))
    return predicted


def bilstm() -> Case:
  """Says of a review if it is positive; its length is open."""
  inputs = keras.Input((None,), dtype="int32")
  x = layers.Embedding(20000, 128)(inputs)
  x = layers.Bidirectional(layers.LSTM(64, return_sequences=True))(x)
  x = layers.Bidirectional(layers.LSTM(64))(x)
  model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
  model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
  rng = np.random.default_rng(0)
  x = rng.integers(0, 20000, (_STEPS * 32, 200)).astype("int32")
  y = rng.integers(0, 2, _STEPS * 32).astype("float32")
  return Case(model, (x, y), 32)


def audio() -> Case:
  """Tells speakers apart by residual convolutions over the spectrum."""
  inputs = keras.Input((4000, 1), name="spectrum")
  x = inputs
  for filters, depth in ((16, 2), (32, 2), (64, 3), (64, 3)):
    past = layers.Conv1D(filters, 1, padding="same")(x)
    for _ in range(depth - 1):
      x = layers.Conv1D(filters, 3, padding="same", activation="relu")(x)
    x = layers.Conv1D(filters, 3, padding="same")(x)
    x = layers.Activation("relu")(layers.Add()([x, past]))
    x = layers.MaxPool1D(2, strides=2)(x)
  x = layers.AveragePooling1D(3, strides=3)(x)
  x = layers.Dense(128, activation="relu")(layers.Flatten()(x))
  outputs = layers.Dense(5, activation="softmax", name="speaker")(x)
  model = keras.Model(inputs, outputs)
  model.compile(
    optimizer="Adam",
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
  )
  rng = np.random.default_rng(0)
  x = rng.random((_STEPS * 16, 4000, 1), np.float32)
  y = rng.integers(0, 5, _STEPS * 16).astype("int32")
  return Case(model, (x, y), 16)


def mobilenet_v3() -> Case:
  """The small one of `keras.applications`."""
  model = keras.applications.MobileNetV3Small(
    weights=None, input_shape=(96, 96, 3), classes=10
  )
  model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
  return Case(model, _images(16, 96, 10), 16)


def efficientnet() -> Case:
  """Augments its images, as in guides on transfer learning."""
  inputs = keras.Input((96, 96, 3))
  x = layers.RandomFlip("horizontal")(inputs)
  x = layers.RandomRotation(0.15)(x)
  x = layers.RandomTranslation(0.1, 0.1)(x)
  base = keras.applications.EfficientNetB0(
    include_top=False, input_tensor=x, weights=None
  )
  x = layers.GlobalAveragePooling2D(name="avg_pool")(base.output)
  x = layers.BatchNormalization()(x)
  x = layers.Dropout(0.2, name="top_dropout")(x)
  outputs = layers.Dense(10, activation="softmax", name="pred")(x)
  model = keras.Model(inputs, outputs, name="EfficientNet")
  model.compile(
    optimizer=keras.optimizers.Adam(1e-2),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
  )
  return Case(model, _images(8, 96, 10), 8)


def vit() -> Case:
  """Patches of images through a Transformer."""
  inputs = keras.Input((72, 72, 3))
  x = PatchEncoder(num_patches=144, units=64)(Patches(6)(inputs))
  for _ in range(4):
    y = layers.LayerNormalization(epsilon=1e-6)(x)
    y = layers.MultiHeadAttention(4, 64, dropout=0.1)(y, y)
    x = layers.Add()([y, x])
    y = layers.LayerNormalization(epsilon=1e-6)(x)
    for units in (128, 64):
      y = layers.Dense(units, activation=keras.activations.gelu)(y)
      y = layers.Dropout(0.1)(y)
    x = layers.Add()([y, x])
  x = layers.LayerNormalization(epsilon=1e-6)(x)
  x = layers.Dropout(0.5)(layers.Flatten()(x))
  for units in (256, 128):
    x = layers.Dense(units, activation=keras.activations.gelu)(x)
    x = layers.Dropout(0.5)(x)
  model = keras.Model(inputs, layers.Dense(100)(x))
  model.compile(
    optimizer=keras.optimizers.AdamW(1e-3, weight_decay=1e-4),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[
      keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
      keras.metrics.SparseTopKCategoricalAccuracy(5, name="top-5"),
    ],
  )
  return Case(model, _images(32, 72, 100), 32)


class Patches(layers.Layer):
  """Divides images into flat patches: [examples, patches, pixels]."""

  def __init__(self, patch_size: int, **kwargs: Any) -> None:
    super().__init__(**kwargs)
    self.patch_size = patch_size

  def call(self, images: Any) -> Any:
    size = self.patch_size
    shape = ops.shape(images)
    count = (shape[1] // size) * (shape[2] // size)
    patches = ops.image.extract_patches(images, size=size)
    return ops.reshape(patches, (shape[0], count, size * size * shape[3]))


class PatchEncoder(layers.Layer):
  """Projects patches and adds a trained vector for each position."""

  def __init__(self, num_patches: int, units: int, **kwargs: Any) -> None:
    super().__init__(**kwargs)
    self.num_patches, self.units = num_patches, units
    self.projection = layers.Dense(units)
    self.positions = layers.Embedding(num_patches, units)

  def call(self, patches: Any) -> Any:
    positions = ops.expand_dims(ops.arange(0, self.num_patches), axis=0)
    return self.projection(patches) + self.positions(positions)


def unet() -> Case:
  """Segments images by separable convolutions with residuals."""
  inputs = keras.Input((96, 96, 3))
  x = layers.Conv2D(32, 3, strides=2, padding="same")(inputs)
  x = layers.Activation("relu")(layers.BatchNormalization()(x))
  past = x
  for filters in (64, 128, 256):
    for _ in range(2):
      x = layers.Activation("relu")(x)
      x = layers.SeparableConv2D(filters, 3, padding="same")(x)
      x = layers.BatchNormalization()(x)
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    side = layers.Conv2D(filters, 1, strides=2, padding="same")(past)
    x = past = layers.add([x, side])
  for filters in (256, 128, 64, 32):
    for _ in range(2):
      x = layers.Activation("relu")(x)
      x = layers.Conv2DTranspose(filters, 3, padding="same")(x)
      x = layers.BatchNormalization()(x)
    x = layers.UpSampling2D(2)(x)
    side = layers.Conv2D(filters, 1, padding="same")(
      layers.UpSampling2D(2)(past)
    )
    x = past = layers.add([x, side])
  outputs = layers.Conv2D(3, 3, activation="softmax", padding="same")(x)
  model = keras.Model(inputs, outputs)
  model.compile(
    optimizer=keras.optimizers.Adam(1e-4),
    loss="sparse_categorical_crossentropy",
  )
  images, _ = _images(8, 96, 3)
  rng = np.random.default_rng(1)
  masks = rng.integers(0, 3, (_STEPS * 8, 96, 96, 1)).astype("uint8")
  return Case(model, (images, masks), 8)


def pointnet() -> Case:
  """Classifies clouds of points; two of its layers have a regularizer."""
  inputs = keras.Input((512, 3))
  x = _transformed(inputs, 3)
  x = _convolved(_convolved(x, 32), 32)
  x = _transformed(x, 32)
  x = _convolved(_convolved(_convolved(x, 32), 64), 512)
  x = layers.GlobalMaxPooling1D()(x)
  x = layers.Dropout(0.3)(_dense(x, 256))
  x = layers.Dropout(0.3)(_dense(x, 128))
  outputs = layers.Dense(10, activation="softmax")(x)
  model = keras.Model(inputs, outputs, name="pointnet")
  model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=keras.optimizers.Adam(1e-3),
    metrics=["sparse_categorical_accuracy"],
  )
  rng = np.random.default_rng(0)
  points = rng.normal(size=(_STEPS * 16, 512, 3)).astype("float32")
  labels = rng.integers(0, 10, _STEPS * 16).astype("int32")
  return Case(model, (points, labels), 16)


class Orthogonal(keras.regularizers.Regularizer):
  """Penalizes matrices whose rows are not orthonormal."""

  def __init__(self, size: int, weight: float = 0.001) -> None:
    self.size, self.weight = size, weight

  def __call__(self, x: Any) -> Any:
    x = ops.reshape(x, (-1, self.size, self.size))
    products = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
    return self.weight * ops.sum(ops.square(products - ops.eye(self.size)))


def _transformed(inputs: Any, size: int) -> Any:
  x = _convolved(_convolved(_convolved(inputs, 32), 64), 512)
  x = layers.GlobalMaxPooling1D()(x)
  x = _dense(_dense(x, 256), 128)
  x = layers.Dense(
    size * size,
    kernel_initializer="zeros",
    bias_initializer=keras.initializers.Constant(np.eye(size).flatten()),
    activity_regularizer=Orthogonal(size),
  )(x)
  return layers.Dot(axes=(2, 1))([inputs, layers.Reshape((size, size))(x)])


def _convolved(x: Any, filters: int) -> Any:
  x = layers.Conv1D(filters, 1, padding="valid")(x)
  x = layers.BatchNormalization(momentum=0.0)(x)
  return layers.Activation("relu")(x)


def _dense(x: Any, units: int) -> Any:
  x = layers.BatchNormalization(momentum=0.0)(layers.Dense(units)(x))
  return layers.Activation("relu")(x)


def _images(batch_size: int, size: int, classes: int) -> tuple[Any, Any]:
  rng = np.random.default_rng(0)
  count = _STEPS * batch_size
  images = 255 * rng.random((count, size, size, 3), np.float32)
  return images, rng.integers(0, classes, count).astype("int32")


def bert() -> Case:
  """A classifier of texts with segments, 4 layers."""
  sizes = {"num_heads": 2, "max_sequence_length": 128}
  body = _backbone("Bert", 30522, num_layers=4, **sizes)
  model = _task("BertTextClassifier", body, num_classes=2)
  _compile(model, keras.optimizers.AdamW(5e-5), metrics=["accuracy"])
  x = _tokens(8, 128, 30522)
  x["segment_ids"] = np.zeros_like(x["token_ids"])
  return Case(model, (x, _classes(8, 2)), 8)


def distilbert() -> Case:
  """A smaller classifier of texts."""
  sizes = {"hidden_dim": 256, "intermediate_dim": 1024}
  body = _backbone(
    "DistilBert", 30522, num_layers=4, max_sequence_length=128, **sizes
  )
  model = _task("DistilBertTextClassifier", body, num_classes=4)
  _compile(model, "adam", metrics=["accuracy"])
  return Case(model, (_tokens(16, 64, 30522), _classes(16, 4)), 16)


def gpt2() -> Case:
  """A language model with weights of examples, as its preprocessor gives."""
  sizes = {"num_heads": 2, "max_sequence_length": 128}
  body = _backbone("GPT2", 50257, num_layers=6, **sizes)
  return _language_model(_task("GPT2CausalLM", body), 50257)


def llama() -> Case:
  """A language model with grouped queries and rotary positions."""
  body = _backbone(
    "Llama", 32000, num_layers=4, intermediate_dim=384, **_GROUPED
  )
  return _language_model(_task("LlamaCausalLM", body), 32000)


def mixtral() -> Case:
  """A language model that routes each token to two of four experts."""
  sizes = {"intermediate_dim": 256, "num_experts": 4, "top_k": 2, **_GROUPED}
  body = _backbone("Mixtral", 32000, num_layers=2, **sizes)
  return _language_model(_task("MixtralCausalLM", body), 32000)


def t5() -> Case:
  """Encoder and decoder; the head is the transposed embedding."""
  body = _backbone("T5", 32128, num_layers=2, intermediate_dim=256)
  x = {
    **_tokens(8, 64, 32128, "encoder_"),
    **_tokens(8, 64, 32128, "decoder_"),
  }
  return Case(_tied(body), (x, _next(x["decoder_token_ids"])), 8)


def whisper() -> Case:
  """Encoder of speech, decoder of text; the transposed embedding as head."""
  sizes = {"max_encoder_sequence_length": 200}
  body = _backbone(
    "Whisper", 51865, num_layers=2, max_decoder_sequence_length=32, **sizes
  )
  x = _tokens(8, 32, 51865, "decoder_")
  sound = np.random.default_rng(0).normal(size=(_STEPS * 8, 200, 80))
  x["encoder_features"] = sound.astype("float32")
  return Case(_tied(body), (x, _next(x["decoder_token_ids"])), 8)


_GROUPED = {"num_query_heads": 4, "num_key_value_heads": 2}


def _backbone(name: str, vocabulary: int, **sizes: int) -> Any:
  import keras_hub

  heads = {} if "num_query_heads" in sizes else {"num_heads": 4}
  defaults = {"hidden_dim": 128, "intermediate_dim": 512, **heads}
  build = getattr(keras_hub.models, f"{name}Backbone")
  return build(vocabulary_size=vocabulary, **{**defaults, **sizes})


def _task(name: str, backbone: Any, **sizes: int) -> keras.Model:
  import keras_hub

  build = getattr(keras_hub.models, name)
  return build(backbone, preprocessor=None, **sizes)


def _tied(backbone: Any) -> keras.Model:
  hidden = backbone(backbone.input)["decoder_sequence_output"]
  logits = backbone.token_embedding(hidden, reverse=True)
  model = keras.Model(backbone.input, logits)
  _compile(model, keras.optimizers.Adam(5e-5), weighted_metrics=["accuracy"])
  return model


def _language_model(model: keras.Model, vocabulary: int) -> Case:
  _compile(model, keras.optimizers.Adam(5e-5), weighted_metrics=["accuracy"])
  x = _tokens(8, 64, vocabulary)
  weights = x["padding_mask"].astype("float32")
  return Case(model, (x, _next(x["token_ids"]), weights), 8)


def _compile(model: keras.Model, optimizer: Any, **metrics: Any) -> None:
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(optimizer=optimizer, loss=loss, **metrics)


def _tokens(
  batch_size: int, length: int, vocabulary: int, prefix: str = ""
) -> dict[str, Any]:
  """Returns token ids, and a mask of which the last eighth is padding."""
  rng = np.random.default_rng(0)
  shape = (_STEPS * batch_size, length)
  mask = np.ones(shape, "int32")
  mask[:, length - length // 8 :] = 0
  return {
    f"{prefix}token_ids": rng.integers(0, vocabulary, shape).astype("int32"),
    f"{prefix}padding_mask": mask,
  }


def _next(tokens: np.ndarray) -> np.ndarray:
  return np.roll(tokens, -1, axis=1)


def _classes(batch_size: int, count: int) -> np.ndarray:
  rng = np.random.default_rng(1)
  return rng.integers(0, count, _STEPS * batch_size).astype("int32")


# They need keras-hub.
HUB = ("bert", "distilbert", "gpt2", "llama", "mixtral", "t5", "whisper")
MODELS: Mapping[str, Callable[[], Case]] = {
  build.__name__: build
  for build in (
    *(bert, distilbert, gpt2, llama, mixtral, t5, whisper),
    *(siamese, gan, vae, diffusion),
    *(wide_and_deep, tab_transformer, dlrm, graph_convolution),
    *(seq2seq, ctc, bilstm, audio),
    *(mobilenet_v3, efficientnet, vit, unet, pointnet),
  )
}
