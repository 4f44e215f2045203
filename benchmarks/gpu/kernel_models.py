"""Models of the published steps, with the kernels of the programs measured.

Those programs normalize by fused kernels (`FusedBatchNorm`; layer
normalization of PyTorch), where Keras 3 traces several elementwise ops.
`FusedBatchNormalization` stands in for both. Optimizers: SGD with momentum for
image models, Adam for Transformer-XL, plain SGD for the rest.
"""

import functools
import itertools
import math
from collections.abc import Callable
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

# Assumed shares of the words in the tails of Transformer-XL's softmax.
_TAIL_SHARES = (0.05, 0.04, 0.01)
_CUTOFFS = (20000, 40000, 200000, 267735)


class FusedBatchNormalization(keras.layers.BatchNormalization):
  """Batch normalization by TensorFlow's fused kernel."""

  def call(self, x, training=False):
    channels = x.shape[-1]
    moving = (self.moving_mean, self.moving_variance)
    gamma = tf.ones([channels]) if self.gamma is None else self.gamma
    beta = tf.zeros([channels]) if self.beta is None else self.beta
    y, *batch = tf.compat.v1.nn.fused_batch_norm(
      x,
      tf.cast(gamma, "float32"),
      tf.cast(beta, "float32"),
      *(None if training else tf.cast(value, "float32") for value in moving),
      epsilon=self.epsilon,
      is_training=bool(training),
    )
    if training:
      for old, new in zip(moving, batch, strict=True):
        old.assign(old * self.momentum + new * (1 - self.momentum))
    return y


class FusedLayerNormalization(keras.layers.Layer):
  """Layer normalization by the fused batch normalization of its rows."""

  def call(self, x):
    shape = tf.shape(x)
    rows = math.prod(x.shape[:-1])
    flat = tf.reshape(x, [1, rows, x.shape[-1], 1])
    ones, zeros = tf.ones([rows]), tf.zeros([rows])
    y, _, _ = tf.compat.v1.nn.fused_batch_norm(
      flat, ones, zeros, data_format="NCHW", is_training=True
    )
    return tf.reshape(y, shape)


class Block(keras.layers.Layer):
  """A transformer layer; with memory, one of Transformer-XL.

  That one is written as the program measured: attention with two biases, a
  causal mask, a softmax over the second axis, dropout, and layer normalization
  of elementwise kernels.
  """

  def __init__(self, units: int, heads: int, memory: int, fused: bool) -> None:
    super().__init__()
    self.units, self.heads, self.memory = units, heads, memory
    dense = keras.layers.Dense
    self.query, self.key, self.value, self.out = (dense(units) for _ in "qkvo")
    self.position = dense(units, use_bias=False)
    self.inner, self.outer = dense(4 * units), dense(units)
    fused = fused and not memory
    norm = FusedLayerNormalization if fused else keras.layers.LayerNormalization
    self.norms = [norm(), norm()]

  def build(self, *unused_shapes) -> None:
    """Each layer is built where it is called first."""
    width = self.units // self.heads
    self.biases = [
      self.add_weight(shape=(self.heads, 1, width), name=name)
      for name in ("content", "place")
    ]

  def call(self, x):
    attend = self._attend_memory if self.memory else self._attend
    heard = tf.transpose(attend(x), [0, 2, 1, 3])
    heard = self._dropped(self.out(tf.reshape(heard, x.shape)))
    x = self.norms[0](x + heard)
    # One elementwise kernel each way, as a fused GELU is.
    inner = self._dropped(tf.nn.relu(self.inner(x)))
    return self.norms[1](x + self._dropped(self.outer(inner)))

  def _attend(self, x):
    layers = (self.query, self.key, self.value)
    query, key, value = (self._split(layer(x)) for layer in layers)
    scores = tf.matmul(query, key, transpose_b=True)
    scale = (self.units // self.heads) ** -0.5
    return tf.matmul(tf.nn.softmax(scores * scale), value)

  def _attend_memory(self, x):
    old = tf.zeros([x.shape[0], self.memory, self.units], x.dtype)
    context = tf.concat([old, x], axis=1)
    query = self._split(self.query(x))
    key, value = (
      self._split(layer(context)) for layer in (self.key, self.value)
    )
    content, place = (tf.cast(bias, x.dtype) for bias in self.biases)
    scores = tf.matmul(query + content, key, transpose_b=True)
    scores += self._relative(query + place, context)
    # Scores of [rows, columns, batch, heads] there: the softmax turns them.
    scores = tf.transpose(scores, [2, 3, 0, 1])
    scores *= (self.units // self.heads) ** -0.5
    mask = tf.ones([*scores.shape[:2], 1, 1], scores.dtype)
    scores = scores * (1 - mask) - 1e4 * mask
    weights = tf.nn.softmax(tf.transpose(scores, [2, 3, 0, 1]))
    weights = self._dropped(tf.transpose(weights, [2, 3, 0, 1]))
    return tf.matmul(tf.transpose(weights, [2, 3, 0, 1]), value)

  def _dropped(self, x):
    return tf.nn.dropout(x, 0.1) if self.memory else x

  def _split(self, x):
    shape = [x.shape[0], x.shape[1], self.heads, self.units // self.heads]
    return tf.transpose(tf.reshape(x, shape), [0, 2, 1, 3])

  def _relative(self, query, context):
    """Scores by distance: a product, then each row is shifted."""
    length = context.shape[1]
    places = tf.zeros([1, length, self.units], context.dtype)
    keys = self._split(self.position(places))
    scores = tf.matmul(
      query, tf.repeat(keys, query.shape[0], 0), transpose_b=True
    )
    batch, heads, rows, _ = scores.shape
    padded = tf.pad(scores, [[0, 0], [0, 0], [0, 0], [1, 0]])
    turned = tf.reshape(padded, [batch, heads, length + 1, rows])
    return tf.reshape(turned[:, :, 1:], [batch, heads, rows, length])


class Scores(keras.layers.Layer):
  """Logits of words; of the tails of an adaptive softmax where it has any."""

  def __init__(self, units: int, vocabulary: int, adaptive: bool) -> None:
    super().__init__()
    head = _CUTOFFS[0] + len(_TAIL_SHARES) if adaptive else vocabulary
    self.sizes = [head]
    if adaptive:
      self.sizes += [b - a for a, b in itertools.pairwise(_CUTOFFS)]
    self.parts = [keras.layers.Dense(size) for size in self.sizes]

  def build(self, *unused_shapes) -> None:
    """Each layer is built where it is called first."""

  def call(self, x):
    """Loss of each example, [batch, 1]."""
    shares = (1.0, *_TAIL_SHARES)
    losses = []
    for part, size, share in zip(self.parts, self.sizes, shares, strict=False):
      words = max(1, round(x.shape[1] * share))
      rows = tf.reshape(x[:, :words], [-1, x.shape[-1]])
      labels = tf.zeros([rows.shape[0]], tf.int32)
      logits = tf.cast(part(rows), tf.float32)
      loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
      loss = tf.reshape(loss, [-1, words])
      losses.append(tf.reduce_sum(loss, axis=1, keepdims=True) / size)
    return tf.add_n(losses)


def transformer(
  batch: int,
  layers: int,
  units: int,
  heads: int,
  length: int,
  vocabulary: int,
  *,
  memory: int = 0,
  predicted: int = 0,
  adaptive: bool = False,
  fused: bool = True,
) -> keras.Model:
  """Scores `predicted` words of a text; one class of it where that is 0."""
  words = keras.Input((length,), batch_size=batch, dtype="int32")
  x = keras.layers.Embedding(vocabulary, units)(words)
  for _ in range(layers):
    x = Block(units, heads, memory, fused)(x)
  if predicted:
    x = Scores(units, vocabulary, adaptive)(x[:, :predicted])
  else:
    x = keras.layers.Dense(1, dtype="float32")(x[:, 0])
  model = keras.Model(words, x)
  optimizer = "adam" if adaptive else "sgd"
  model.compile(optimizer, loss="mse", jit_compile=False, auto_scale_loss=False)
  return model


def image_model(build: Callable[..., keras.Model], fused: bool) -> keras.Model:
  """A model of `keras.applications`, compiled with SGD and momentum."""
  norm = FusedBatchNormalization
  own = keras.src.layers.BatchNormalization
  patched = mock.patch.object(
    keras.src.layers, "BatchNormalization", norm if fused else own
  )
  with patched:
    model = build(weights=None)
  _compile(model)
  return model


def u_net(batch: int) -> keras.Model:
  """Convolutions of 32 to 512 filters on 512 x 512 pixels, down and up."""
  conv = functools.partial(
    keras.layers.Conv2D, padding="same", activation="relu"
  )
  image = keras.Input((512, 512, 1), batch_size=batch)
  x, kept = conv(32, 3)(conv(32, 3)(image)), []
  for filters in (64, 128, 256, 512):
    kept.append(x)
    x = keras.layers.MaxPooling2D()(x)
    x = conv(filters, 3)(conv(filters, 3)(x))
  for skip in reversed(kept):
    filters = skip.shape[-1]
    x = keras.layers.Conv2DTranspose(filters, 2, 2)(x)
    x = keras.layers.Concatenate()([skip, x])
    x = conv(filters, 3)(conv(filters, 3)(x))
  out = keras.layers.Conv2D(1, 1, activation="sigmoid", dtype="float32")(x)
  model = keras.Model(image, out)
  model.compile("sgd", "mse", jit_compile=False, auto_scale_loss=False)
  return model


def _compile(model: keras.Model) -> None:
  model.compile(
    keras.optimizers.SGD(0.1, momentum=0.9),
    "sparse_categorical_crossentropy",
    jit_compile=False,
    auto_scale_loss=False,
  )


def build(name: str, batch: int, fused: bool) -> tuple[keras.Model, object]:
  """A model of the published rows, and a sample where it needs one.

  Args:
    name: as in the data.
    batch: examples on one GPU.
    fused: whether normalization is one kernel, as in the programs measured.
  """
  images = {
    "inception_v3": keras.applications.InceptionV3,
    "resnet50": keras.applications.ResNet50,
    "efficientnet_b0": keras.applications.EfficientNetB0,
  }
  if name in images:
    return image_model(images[name], fused), None
  if name == "unet_industrial":
    return u_net(batch), None
  if name == "transformer_xl_base":
    model = transformer(
      batch, 16, 512, 8, 192, _CUTOFFS[-1],
      memory=192, predicted=192, adaptive=True, fused=fused,
    )  # fmt: skip
    length = 192
  elif name == "gpt2_large_1024":
    length = 1024
    model = transformer(
      batch, 36, 1280, 20, length, 50257, predicted=length, fused=fused
    )
  else:
    length = int(name.rsplit("_", 1)[1])
    predicted = {128: 20, 512: 80}[length] if "pretraining" in name else 0
    model = transformer(
      batch, 24, 1024, 16, length, 30522, predicted=predicted, fused=fused
    )
  words = np.zeros((batch, length), "int32")
  return model, (words, np.zeros((batch, 1), "float32"))
