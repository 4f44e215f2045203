"""Models that benchmarks place and measure, in plain Keras 3.

Each is as in its paper, in a size that one GPU trains; docstrings name what
differs. `MODELS` has those of the tables, `DEVELOPMENT` and `HOLDOUT` those of
the sets in `sets.py`, `SMALL` those that worker processes run, and
`published_model` those of published steps.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from keras import KerasTensor as Tensor
from keras import layers, ops


@dataclasses.dataclass(frozen=True)
class Trained:
  """A model with the batch that it is trained on.

  Attributes:
    build: makes it, compiled.
    batch_size: examples of a step.
    has_batch_statistics: whether BatchNormalization must be allowed to compute
      its statistics for each microbatch.
  """

  build: Callable[[], keras.Model]
  batch_size: int
  has_batch_statistics: bool = False


class Positions(layers.Layer):
  """Adds a trained vector to each position: [examples, length, units]."""

  def build(self, input_shape: tuple[int | None, ...]) -> None:
    self.table = self.add_weight(shape=input_shape[1:], name="table")

  def call(self, x: Tensor) -> Tensor:
    return x + self.table


def bert(
  depth: int, units: int, vocabulary: int = 30522, length: int = 128
) -> keras.Model:
  """Devlin et al., 2018: masked words are predicted, 15% of them."""
  tokens = keras.Input((length,), dtype="int32", name="tokens")
  segments = keras.Input((length,), dtype="int32", name="segments")
  masked = keras.Input((length * 15 // 100,), dtype="int32", name="masked")
  x = layers.Embedding(vocabulary, units, name="words")(tokens)
  x = x + layers.Embedding(2, units, name="segment")(segments)
  x = layers.LayerNormalization()(Positions()(x))
  for i in range(depth):
    name = f"encoder{i}_"
    x = _normalized(x, _attention(x, x, units, name), name + "attention_norm")
    x = _normalized(x, _feed_forward(x, units, name), name + "output_norm")
  x = ops.take_along_axis(x, ops.expand_dims(masked, -1), axis=1)
  x = layers.Dense(units, activation="gelu", name="transform")(x)
  logits = layers.Dense(vocabulary, name="logits")(x)
  return _classifier(keras.Model([tokens, segments, masked], logits))


def gpt(
  depth: int, units: int, vocabulary: int = 32000, length: int = 256
) -> keras.Model:
  """Radford et al., 2019 (GPT-2): every next word is predicted."""
  tokens = keras.Input((length,), dtype="int32", name="tokens")
  x = Positions()(layers.Embedding(vocabulary, units, name="words")(tokens))
  for i in range(depth):
    x = _transformer_block(x, units, f"block{i}_")
  x = layers.LayerNormalization(name="norm")(x)
  return _classifier(
    keras.Model(tokens, layers.Dense(vocabulary, name="logits")(x))
  )


def mixture_of_experts(
  depth: int = 8, units: int = 512, vocabulary: int = 32000, length: int = 256
) -> keras.Model:
  """Fedus et al., 2021 (Switch Transformer): eight experts in every other
  layer. An expert takes as many tokens of each sequence as its share and a
  quarter more. The loss that balances experts is left out: some sums of
  small tensors.
  """
  tokens = keras.Input((length,), dtype="int32", name="tokens")
  x = Positions()(layers.Embedding(vocabulary, units, name="words")(tokens))
  for i in range(depth):
    inner = _experts if i % 2 else _feed_forward
    x = _transformer_block(x, units, f"block{i}_", inner)
  x = layers.LayerNormalization(name="norm")(x)
  return _classifier(
    keras.Model(tokens, layers.Dense(vocabulary, name="logits")(x))
  )


def translator(
  depth: int = 6, units: int = 512, vocabulary: int = 32000, length: int = 64
) -> keras.Model:
  """Vaswani et al., 2017: the base Transformer, encoder and decoder."""
  source = keras.Input((length,), dtype="int32", name="source")
  target = keras.Input((length,), dtype="int32", name="target")
  words = layers.Embedding(vocabulary, units, name="words")
  x, y = Positions()(words(source)), Positions()(words(target))
  for i in range(depth):
    name = f"encoder{i}_"
    x = _normalized(x, _attention(x, x, units, name), name + "attention_norm")
    x = _normalized(x, _feed_forward(x, units, name), name + "output_norm")
  for i in range(depth):
    name = f"decoder{i}_"
    own = _attention(y, y, units, name, causal=True)
    y = _normalized(y, own, name + "attention_norm")
    read = _attention(y, x, units, name + "source_")
    y = _normalized(y, read, name + "source_norm")
    y = _normalized(y, _feed_forward(y, units, name), name + "output_norm")
  logits = layers.Dense(vocabulary, name="logits")(y)
  return _classifier(keras.Model([source, target], logits))


def vit(depth: int = 12, units: int = 384, size: int = 224) -> keras.Model:
  """Dosovitskiy et al., 2020: ViT-S/16; the mean of all patches in place of a
  class token (Beyer et al., 2022)."""
  images = keras.Input((size, size, 3), name="images")
  x = layers.Conv2D(units, 16, strides=16, name="patches")(images)
  x = Positions()(layers.Reshape((-1, units))(x))
  for i in range(depth):
    x = _transformer_block(x, units, f"block{i}_", causal=False)
  x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(name="norm")(x))
  return _classifier(keras.Model(images, layers.Dense(1000, name="logits")(x)))


def resnet50(
  normalization: Callable[..., layers.Layer],
  blocks: tuple[int, ...] = (3, 4, 6, 3),
  size: int = 224,
) -> keras.Model:
  """He et al., 2015, with strides in the 3 x 3 convolutions as all train it."""
  images = keras.Input((size, size, 3), name="images")
  x = _convolved(images, 64, 7, 2, normalization, "stem")
  x = layers.MaxPooling2D(3, 2, padding="same")(x)
  for stage, count in enumerate(blocks):
    for i in range(count):
      stride = 2 if i == 0 and stage > 0 else 1
      name = f"stage{stage}_block{i}"
      x = _bottleneck(x, 64 << stage, stride, normalization, name)
  x = layers.GlobalAveragePooling2D()(x)
  model = keras.Model(images, layers.Dense(1000, name="logits")(x))
  return _classifier(model, keras.optimizers.SGD(0.1, momentum=0.9))


def unet(filters: int = 32, depth: int = 4, size: int = 256) -> keras.Model:
  """Ronneberger et al., 2015, with half the filters, padded convolutions and
  GroupNormalization."""
  images = x = keras.Input((size, size, 3), name="images")
  kept = []
  for level in range(depth):
    x = _two_convolutions(x, filters << level, f"down{level}")
    kept.append(x)
    x = layers.MaxPooling2D()(x)
  x = _two_convolutions(x, filters << depth, "bottom")
  for level in reversed(range(depth)):
    x = layers.Conv2DTranspose(filters << level, 2, 2, name=f"up{level}")(x)
    x = layers.Concatenate()([kept[level], x])
    x = _two_convolutions(x, filters << level, f"joined{level}")
  return _classifier(keras.Model(images, layers.Conv2D(2, 1, name="logits")(x)))


def group_normalization(name: str) -> layers.Layer:
  """Wu and He, 2018: 32 groups, their default."""
  return layers.GroupNormalization(groups=32, name=name)


def _attention(
  query: Tensor, value: Tensor, units: int, name: str, causal: bool = False
) -> Tensor:
  """Heads of 64 units."""
  layer = layers.MultiHeadAttention(
    max(1, units // 64), 64, name=name + "attention"
  )
  return layer(query, value, use_causal_mask=causal)


def _feed_forward(x: Tensor, units: int, name: str) -> Tensor:
  x = layers.Dense(4 * units, activation="gelu", name=name + "up")(x)
  return layers.Dense(units, name=name + "down")(x)


def _normalized(x: Tensor, y: Tensor, name: str) -> Tensor:
  return layers.LayerNormalization(name=name)(x + y)


def _transformer_block(
  x: Tensor,
  units: int,
  name: str,
  inner: Callable[..., Tensor] = _feed_forward,
  causal: bool = True,
) -> Tensor:
  y = layers.LayerNormalization(name=name + "attention_norm")(x)
  x = x + _attention(y, y, units, name, causal)
  y = layers.LayerNormalization(name=name + "output_norm")(x)
  return x + inner(y, units, name)


def _experts(x: Tensor, units: int, name: str, count: int = 8) -> Tensor:
  """Each token of [examples, length, units] through the likeliest expert."""
  length = x.shape[1]
  capacity = max(1, length * 5 // (4 * count))
  gates = layers.Dense(count, activation="softmax", name=name + "router")(x)
  chosen = ops.one_hot(ops.argmax(gates, axis=-1), count)
  place = ops.cumsum(chosen, axis=1) * chosen - 1.0  # in the expert's queue
  slots = ops.one_hot(ops.cast(place, "int32"), capacity)  # none from there on
  inputs = ops.einsum("blec,blu->becu", slots, x)
  outputs = [
    _feed_forward(inputs[:, i], units, f"{name}expert{i}_")
    for i in range(count)
  ]
  back = slots * ops.expand_dims(gates, -1)
  return ops.einsum("blec,becu->blu", back, ops.stack(outputs, axis=1))


def _convolved(
  x: Tensor,
  filters: int,
  kernel: int,
  stride: int,
  normalization: Callable[..., layers.Layer],
  name: str,
  activation: str | None = "relu",
) -> Tensor:
  """A convolution, its normalization and activation."""
  convolution = layers.Conv2D(
    filters, kernel, stride, padding="same", use_bias=False, name=name + "_conv"
  )
  x = normalization(name=name + "_norm")(convolution(x))
  return layers.Activation(activation)(x) if activation else x


def _bottleneck(
  x: Tensor,
  filters: int,
  stride: int,
  normalization: Callable[..., layers.Layer],
  name: str,
) -> Tensor:
  y = _convolved(x, filters, 1, 1, normalization, name + "_in")
  y = _convolved(y, filters, 3, stride, normalization, name + "_middle")
  y = _convolved(y, 4 * filters, 1, 1, normalization, name + "_out", None)
  if x.shape[-1] != 4 * filters:
    x = _convolved(
      x, 4 * filters, 1, stride, normalization, name + "_past", None
    )
  return layers.Activation("relu")(x + y)


def _two_convolutions(x: Tensor, filters: int, name: str) -> Tensor:
  x = _convolved(x, filters, 3, 1, group_normalization, name + "_a")
  return _convolved(x, filters, 3, 1, group_normalization, name + "_b")


def _classifier(
  model: keras.Model, optimizer: keras.optimizers.Optimizer | None = None
) -> keras.Model:
  """Compiled to predict classes; by default with AdamW."""
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  optimizer = optimizer or keras.optimizers.AdamW(1e-4)
  model.compile(optimizer, loss, jit_compile=False)
  return model


def convolutional() -> keras.Model:
  """Simonyan and Zisserman, 2014: thirteen convolutions, 64 x 64 pixels."""
  images = x = keras.Input((64, 64, 3), name="images")
  stages = ((2, 16), (2, 32), (3, 64), (3, 128), (3, 128))
  for stage, (count, filters) in enumerate(stages):
    for i in range(count):
      name = f"stage{stage}_conv{i}"
      x = layers.Conv2D(filters, 3, 1, "same", activation="relu", name=name)(x)
    x = layers.MaxPooling2D()(x)
  logits = layers.Dense(10, name="logits")(layers.Flatten()(x))
  return _classifier(keras.Model(images, logits))


def towers(depth: int = 4, filters: int = 32) -> keras.Model:
  """Two equal convolutional towers on one input, joined by a small head."""
  images = keras.Input((32, 32, 16), name="images")
  ends = []
  for tower in ("left", "right"):
    x = images
    for i in range(depth):
      name = f"{tower}_conv{i}"
      x = layers.Conv2D(filters, 3, 1, "same", activation="relu", name=name)(x)
    ends.append(layers.GlobalAveragePooling2D()(x))
  logits = layers.Dense(10, name="logits")(layers.Concatenate()(ends))
  return _classifier(keras.Model(images, logits))


MODELS = {
  "bert_small": Trained(lambda: bert(4, 256), 64),
  "bert_base": Trained(lambda: bert(12, 768), 32),
  "gpt_small": Trained(lambda: gpt(4, 256), 32),
  "gpt_medium": Trained(lambda: gpt(12, 512), 16),
  "vit": Trained(vit, 64),
  "resnet50_gn": Trained(lambda: resnet50(group_normalization), 64),
  "resnet50_bn": Trained(
    lambda: resnet50(layers.BatchNormalization), 64, has_batch_statistics=True
  ),
  "unet": Trained(unet, 16),
  "translator": Trained(translator, 64),
  "mixture_of_experts": Trained(mixture_of_experts, 16),
}


# Steps of a fraction of a second on one core.
SMALL = {
  "gpt": Trained(lambda: gpt(4, 192, 4000, 64), 16),
  "bert": Trained(lambda: bert(4, 192, 4000, 64), 16),
  "translator": Trained(lambda: translator(2, 128, 4000, 32), 16),
  "unet": Trained(lambda: unet(32, 2, 32), 16),
  "convolutional": Trained(convolutional, 16),
  "two_towers": Trained(towers, 16),
}


def application(name: str, size: int) -> keras.Model:
  """A model of `keras.applications` without weights."""
  make = getattr(keras.applications, name)
  model = make(
    weights=None, input_shape=(size, size, 3), classifier_activation=None
  )
  return _classifier(model)


def _allowed(name: str, size: int, batch_size: int) -> Trained:
  """BatchNormalization computes its statistics for each microbatch."""
  return Trained(
    lambda: application(name, size), batch_size, has_batch_statistics=True
  )


DEVELOPMENT = {
  "convnext": Trained(lambda: application("ConvNeXtTiny", 224), 64),
  "densenet": _allowed("DenseNet201", 224, 32),
  "efficientnet": _allowed("EfficientNetV2M", 224, 32),
  "inception_resnet": _allowed("InceptionResNetV2", 299, 32),
  "xception": _allowed("Xception", 299, 64),
  "resnet152": _allowed("ResNet152V2", 224, 64),
}


def hub(name: str, length: int, **sizes: int) -> keras.Model:
  """A backbone of `keras_hub` that scores all words at each position.

  Args:
    length: of texts, and of anything else that the backbone takes.
  """
  import keras_hub

  body = getattr(keras_hub.models, f"{name}Backbone")(**sizes)
  given = {}
  for key, spec in body.input.items():
    shape = [size or length for size in spec.shape[1:]]
    given[key] = keras.Input(shape, dtype=spec.dtype, name=key)
  hidden = body(given)
  if isinstance(hidden, dict):
    hidden = hidden["decoder_sequence_output"]
  logits = body.token_embedding(hidden, reverse=True)
  return _classifier(keras.Model(given, logits))


_BASE = {"num_layers": 12, "num_heads": 12, "hidden_dim": 768}
_BASE |= {"intermediate_dim": 3072}
HOLDOUT = {
  "whisper": Trained(
    lambda: hub(
      *("Whisper", 128),
      **_BASE,
      vocabulary_size=51865,
      max_encoder_sequence_length=3000,
      max_decoder_sequence_length=448,
    ),
    8,
  ),
  "bart": Trained(
    lambda: hub(
      "Bart", 256, **{**_BASE, "num_layers": 6}, vocabulary_size=50265
    ),
    16,
  ),
  "t5": Trained(lambda: hub("T5", 256, **_BASE, vocabulary_size=32128), 16),
  "deberta": Trained(
    lambda: hub("DebertaV3", 256, **_BASE, vocabulary_size=128100), 16
  ),
  "gemma": Trained(
    lambda: hub(
      *("Gemma", 256),
      vocabulary_size=64000,
      num_layers=12,
      num_query_heads=8,
      num_key_value_heads=1,
      head_dim=128,
      hidden_dim=768,
      intermediate_dim=6144,
    ),
    16,
  ),
  "bloom": Trained(
    lambda: hub(
      *("Bloom", 512),
      vocabulary_size=250880,
      num_layers=24,
      num_heads=16,
      hidden_dim=1024,
      intermediate_dim=4096,
    ),
    32,
  ),
  "vgg": Trained(lambda: application("VGG19", 224), 64),
  "mobilenet": _allowed("MobileNetV3Large", 224, 128),
  "nasnet": _allowed("NASNetLarge", 331, 16),
}


# Assumed shares of the words in the tails of Transformer-XL's softmax.
_TAIL_SHARES = (0.05, 0.04, 0.01)
_CUTOFFS = (20000, 40000, 200000, 267735)


class FusedBatchNormalization(layers.BatchNormalization):
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


def resnet101_modules() -> tuple[keras.Model, np.ndarray]:
  """ResNet-101 of torchgpipe, 370 modules that name the layers by number.

  Returns:
    The model, and [modules + 1] bytes of an example that cross a cut before
    each module: an output, and the input of a bottleneck until it is added.
  """
  sent = [0.0]

  def layer(kind: type[layers.Layer], *args, **options) -> layers.Layer:
    name = f"module_{len(sent) - 1}_{kind.__name__.lower()}"
    return kind(*args, **options, name=name)

  def end(*kept: Tensor) -> Tensor:
    sent.append(4.0 * sum(math.prod(one.shape[1:]) for one in kept))
    return kept[0]

  def convolution(x: Tensor, filters: int, size: int, stride: int) -> Tensor:
    options = {"padding": "same", "use_bias": False}
    return layer(layers.Conv2D, filters, size, stride, **options)(x)

  def normalized(x: Tensor, filters: int, size: int, stride: int, *past):
    x = end(convolution(x, filters, size, stride), *past)
    return end(layer(FusedBatchNormalization)(x), *past)

  def active(x: Tensor, *past: Tensor) -> Tensor:
    return end(layer(layers.ReLU)(x), *past)

  images = keras.Input((224, 224, 3))
  x = active(normalized(images, 64, 7, 2))
  x = end(layer(layers.MaxPooling2D, 3, 2, "same")(x))
  for filters, count in ((64, 3), (128, 4), (256, 23), (512, 3)):
    for i in range(count):
      stride = 2 if filters > 64 and not i else 1
      past = end(x, x)
      x = active(normalized(x, filters, 1, 1, past), past)
      x = active(normalized(x, filters, 3, stride, past), past)
      x = normalized(x, 4 * filters, 1, 1, past)
      if not i:
        past = convolution(past, 4 * filters, 1, stride)
        past = layer(FusedBatchNormalization)(past)
      x = active(end(layer(layers.Add)([x, past])))
  x = end(end(layer(layers.GlobalAveragePooling2D)(x)))
  model = keras.Model(images, end(layer(layers.Dense, 1000)(x)))
  model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
  return model, np.array(sent)


class FusedLayerNormalization(layers.Layer):
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


class PublishedBlock(layers.Layer):
  """A transformer layer; with memory, one of Transformer-XL.

  That one is written as the program measured: attention with two biases, a
  causal mask, a softmax over the second axis, and layer normalization of
  elementwise kernels.
  """

  def __init__(
    self, units: int, heads: int, memory: int, fused: bool, dropout: float
  ) -> None:
    super().__init__()
    self.units, self.heads, self.memory = units, heads, memory
    self.dropout = dropout
    dense = layers.Dense
    self.query, self.key, self.value, self.out = (dense(units) for _ in "qkvo")
    self.position = dense(units, use_bias=False)
    self.inner, self.outer = dense(4 * units), dense(units)
    fused = fused and not memory
    norm = FusedLayerNormalization if fused else layers.LayerNormalization
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
    inner = tf.nn.relu(self.inner(x))
    if self.memory:
      inner = self._dropped(inner)
    return self.norms[1](x + self._dropped(self.outer(inner)))

  def _attend(self, x):
    layers = (self.query, self.key, self.value)
    query, key, value = (self._split(layer(x)) for layer in layers)
    scores = tf.matmul(query, key, transpose_b=True)
    scale = (self.units // self.heads) ** -0.5
    return tf.matmul(self._dropped(tf.nn.softmax(scores * scale)), value)

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
    return tf.nn.dropout(x, self.dropout) if self.dropout else x

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


class Scores(layers.Layer):
  """Logits of words; of the tails of an adaptive softmax where it has any."""

  def __init__(self, units: int, vocabulary: int, adaptive: bool) -> None:
    super().__init__()
    head = _CUTOFFS[0] + len(_TAIL_SHARES) if adaptive else vocabulary
    self.sizes = [head]
    if adaptive:
      self.sizes += [b - a for a, b in itertools.pairwise(_CUTOFFS)]
    self.parts = [layers.Dense(size) for size in self.sizes]

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
  depth: int,
  units: int,
  heads: int,
  length: int,
  vocabulary: int,
  *,
  memory: int = 0,
  predicted: int = 0,
  adaptive: bool = False,
  fused: bool = True,
  dropout: float = 0.0,
) -> keras.Model:
  """Scores `predicted` words of a text; one class of it where that is 0."""
  words = keras.Input((length,), batch_size=batch, dtype="int32")
  x = layers.Embedding(vocabulary, units)(words)
  for _ in range(depth):
    x = PublishedBlock(units, heads, memory, fused, dropout)(x)
  if predicted:
    x = Scores(units, vocabulary, adaptive)(x[:, :predicted])
  else:
    x = layers.Dense(1, dtype="float32")(x[:, 0])
  model = keras.Model(words, x)
  optimizer = "adam" if adaptive else "sgd"
  model.compile(optimizer, loss="mse", jit_compile=False, auto_scale_loss=False)
  return model


def image_model(build: Callable[..., keras.Model]) -> keras.Model:
  """A model of `keras.applications`, compiled with SGD and momentum.

  It normalizes by TensorFlow's fused op, as the programs measured did. XLA
  expands that op to fewer passes than Keras' own arithmetic takes.
  """
  layer, own = keras.src.layers, "BatchNormalization"
  with mock.patch.object(layer, own, FusedBatchNormalization):
    model = build(weights=None)
  _compile(model)
  return model


def published_resnet(is_newer: bool) -> keras.Model:
  """ResNet-50 without biases.

  Args:
    is_newer: version 1.5, where the stride is that of the 3x3 convolution.
  """

  def normalized(x: Tensor, filters: int, size: int, stride: int = 1) -> Tensor:
    options = {"padding": "same", "use_bias": False}
    x = layers.Conv2D(filters, size, stride, **options)(x)
    return FusedBatchNormalization()(x)

  images = keras.Input((224, 224, 3))
  x = layers.ReLU()(normalized(images, 64, 7, 2))
  x = layers.MaxPooling2D(3, 2, "same")(x)
  for filters, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
    for i in range(count):
      stride = 2 if filters > 64 and not i else 1
      past = x if i else normalized(x, 4 * filters, 1, stride)
      first, second = (1, stride) if is_newer else (stride, 1)
      x = layers.ReLU()(normalized(x, filters, 1, first))
      x = layers.ReLU()(normalized(x, filters, 3, second))
      x = layers.ReLU()(normalized(x, 4 * filters, 1) + past)
  x = layers.GlobalAveragePooling2D()(x)
  model = keras.Model(images, layers.Dense(1000, "softmax")(x))
  _compile(model)
  return model


def published_unet(batch: int) -> keras.Model:
  """TinyUNet of NVIDIA DeepLearningExamples, on 512 x 512 pixels.

  Pixels are repeated and convolved by 2x2 where others transpose convolutions.
  """
  conv = functools.partial(layers.Conv2D, padding="same", activation="relu")

  def up(x: Tensor, filters: int) -> Tensor:
    return conv(filters, 2)(layers.UpSampling2D()(x))

  image = keras.Input((512, 512, 1), batch_size=batch)
  x, kept = conv(32, 3)(conv(32, 3)(image)), []
  for filters in (32, 64, 128, 256):
    kept.append(x)
    x = layers.MaxPooling2D()(x)
    x = conv(filters, 3)(conv(filters, 3)(x))
  x = up(x, 128)
  for filters in (128, 64, 32):
    x = layers.Concatenate()([x, kept.pop()])
    x = conv(filters // 2, 3)(conv(filters, 3)(x))
    x = up(x, filters // 2)
  x = layers.Concatenate()([x, kept.pop()])
  x = conv(32, 3)(conv(32, 3)(x))
  out = layers.Conv2D(1, 1, activation="sigmoid", dtype="float32")(x)
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


def published_model(
  name: str, batch: int, fused: bool
) -> tuple[keras.Model, object]:
  """A model of the published rows, and a sample where it needs one.

  Args:
    name: as in the data.
    batch: examples on one GPU.
    fused: whether a transformer normalizes in one kernel, as the programs
      measured did that XLA did not compile.
  """
  images = {
    "inception_v3": keras.applications.InceptionV3,
    "efficientnet_b0": keras.applications.EfficientNetB0,
  }
  if name in images:
    return image_model(images[name]), None
  if name == "resnet50":  # TensorFlow's guide has version 1, without XLA.
    return published_resnet(is_newer=not fused), None
  if name == "unet_industrial":
    return published_unet(batch), None
  if name == "transformer_xl_base":
    model = transformer(
      batch, 16, 512, 8, 192, _CUTOFFS[-1],
      memory=192, predicted=192, adaptive=True, fused=fused, dropout=0.1,
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
      batch, 24, 1024, 16, length, 30522,
      predicted=predicted, fused=fused, dropout=0.1 if predicted else 0.0,
    )  # fmt: skip
  words = np.zeros((batch, length), "int32")
  return model, (words, np.zeros((batch, 1), "float32"))
