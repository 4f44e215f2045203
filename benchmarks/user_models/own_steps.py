"""Subclasses of `keras.Model` with a `train_step` of their own."""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from benchmarks.user_models.registry import Case

_STEPS = 2


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


@keras.saving.register_keras_serializable("user_models")
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
