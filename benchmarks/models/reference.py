"""Models that people train, in plain Keras 3, for `microbatches/run_models.py`.

Each as in its paper, in a size that one GPU trains; what differs is said
beside it. Nothing here knows of tfplace, of devices or of microbatches.
"""

import dataclasses
from collections.abc import Callable

import keras
from keras import layers, ops


@dataclasses.dataclass(frozen=True)
class Trained:
  """A model with the batch that it is trained on.

  Attributes:
    build: makes it, compiled.
    batch_size: examples of a step.
    about: its sizes, for tables.
    has_batch_statistics: whether BatchNormalization must be allowed to compute
      its statistics for each microbatch.
  """

  build: Callable[[], keras.Model]
  batch_size: int
  about: str
  has_batch_statistics: bool = False


class Positions(layers.Layer):
  """Adds a trained vector to each position: [examples, length, units]."""

  def build(self, input_shape: tuple[int | None, ...]) -> None:
    self.table = self.add_weight(shape=input_shape[1:], name="table")

  def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
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
    x = _decoder_block(x, units, f"block{i}_", _feed_forward)
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
    x = _decoder_block(x, units, f"block{i}_", inner)
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
    name = f"block{i}_"
    y = layers.LayerNormalization(name=name + "attention_norm")(x)
    x = x + _attention(y, y, units, name)
    y = layers.LayerNormalization(name=name + "output_norm")(x)
    x = x + _feed_forward(y, units, name)
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
  query: keras.KerasTensor,
  value: keras.KerasTensor,
  units: int,
  name: str,
  causal: bool = False,
) -> keras.KerasTensor:
  """Heads of 64 units."""
  layer = layers.MultiHeadAttention(
    max(1, units // 64), 64, name=name + "attention"
  )
  return layer(query, value, use_causal_mask=causal)


def _feed_forward(
  x: keras.KerasTensor, units: int, name: str
) -> keras.KerasTensor:
  x = layers.Dense(4 * units, activation="gelu", name=name + "up")(x)
  return layers.Dense(units, name=name + "down")(x)


def _normalized(
  x: keras.KerasTensor, y: keras.KerasTensor, name: str
) -> keras.KerasTensor:
  return layers.LayerNormalization(name=name)(x + y)


def _decoder_block(
  x: keras.KerasTensor,
  units: int,
  name: str,
  inner: Callable[..., keras.KerasTensor],
) -> keras.KerasTensor:
  y = layers.LayerNormalization(name=name + "attention_norm")(x)
  x = x + _attention(y, y, units, name, causal=True)
  y = layers.LayerNormalization(name=name + "output_norm")(x)
  return x + inner(y, units, name)


def _experts(
  x: keras.KerasTensor, units: int, name: str, count: int = 8
) -> keras.KerasTensor:
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
  x: keras.KerasTensor,
  filters: int,
  kernel: int,
  stride: int,
  normalization: Callable[..., layers.Layer],
  name: str,
  activation: str | None = "relu",
) -> keras.KerasTensor:
  """A convolution, its normalization and activation."""
  convolution = layers.Conv2D(
    filters, kernel, stride, padding="same", use_bias=False, name=name + "_conv"
  )
  x = normalization(name=name + "_norm")(convolution(x))
  return layers.Activation(activation)(x) if activation else x


def _bottleneck(
  x: keras.KerasTensor,
  filters: int,
  stride: int,
  normalization: Callable[..., layers.Layer],
  name: str,
) -> keras.KerasTensor:
  y = _convolved(x, filters, 1, 1, normalization, name + "_in")
  y = _convolved(y, filters, 3, stride, normalization, name + "_middle")
  y = _convolved(y, 4 * filters, 1, 1, normalization, name + "_out", None)
  if x.shape[-1] != 4 * filters:
    x = _convolved(
      x, 4 * filters, 1, stride, normalization, name + "_past", None
    )
  return layers.Activation("relu")(x + y)


def _two_convolutions(
  x: keras.KerasTensor, filters: int, name: str
) -> keras.KerasTensor:
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


MODELS = {
  "bert_small": Trained(
    lambda: bert(4, 256), 64, "BERT, 4 layers of 256, batch 64 x 128"
  ),
  "bert_base": Trained(
    lambda: bert(12, 768), 32, "BERT, 12 layers of 768, batch 32 x 128"
  ),
  "gpt_small": Trained(
    lambda: gpt(4, 256), 32, "GPT, 4 layers of 256, batch 32 x 256"
  ),
  "gpt_medium": Trained(
    lambda: gpt(12, 512), 16, "GPT, 12 layers of 512, batch 16 x 256"
  ),
  "vit": Trained(vit, 64, "ViT-S/16, batch 64 x 224 x 224"),
  "resnet50_gn": Trained(
    lambda: resnet50(group_normalization),
    64,
    "ResNet-50, GroupNormalization, batch 64 x 224 x 224",
  ),
  "resnet50_bn": Trained(
    lambda: resnet50(layers.BatchNormalization),
    64,
    "ResNet-50, BatchNormalization allowed, batch 64 x 224 x 224",
    has_batch_statistics=True,
  ),
  "unet": Trained(unet, 16, "U-Net, 32 filters, batch 16 x 256 x 256"),
  "translator": Trained(
    translator, 64, "Transformer base, 6 + 6 layers of 512, batch 64 x 64"
  ),
  "mixture_of_experts": Trained(
    mixture_of_experts,
    16,
    "Switch, 8 layers of 512, 8 experts, batch 16 x 256",
  ),
}
