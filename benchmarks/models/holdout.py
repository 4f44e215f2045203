"""Models of the test set of `graph_sets.py`, in plain Keras 3.

No choice in tfplace (a size, a rule, a setting, which policy ships) was made
on a graph of theirs before they were placed once. A choice that their results
inform makes them development rows. They are as in their papers, except where a
docstring names a difference.
"""

from collections.abc import Sequence

import keras
import numpy as np
from keras import layers

from benchmarks.models.development import compiled
from benchmarks.models.reference import Positions, Trained


def retnet(
  depth: int = 12, units: int = 512, vocabulary: int = 32000, length: int = 256
) -> keras.Model:
  """Sun et al., 2023, in its parallel form; positions are learned."""
  tokens = keras.Input((length,), dtype="int32", name="tokens")
  x = Positions()(layers.Embedding(vocabulary, units, name="words")(tokens))
  for i in range(depth):
    name = f"block{i}_"
    x = x + _retention(x, units, name)
    y = layers.LayerNormalization(name=name + "output_norm")(x)
    gate = layers.Dense(2 * units, "silu", use_bias=False, name=name + "gate")
    up = layers.Dense(2 * units, use_bias=False, name=name + "up")
    down = layers.Dense(units, use_bias=False, name=name + "down")
    x = x + down(gate(y) * up(y))
  x = layers.LayerNormalization(name="norm")(x)
  logits = layers.Dense(vocabulary, use_bias=False, name="logits")(x)
  return compiled(keras.Model(tokens, logits))


def _retention(
  x: keras.KerasTensor, units: int, name: str
) -> keras.KerasTensor:
  length, heads = x.shape[1], units // 64
  y = layers.LayerNormalization(name=name + "norm")(x)
  parts = []
  for part in ("query", "key", "value"):
    z = layers.Dense(units, use_bias=False, name=name + part)(y)
    z = layers.Reshape((length, heads, 64))(z)
    parts.append(layers.Permute((2, 1, 3))(z))
  query, key, value = parts
  scores = keras.ops.matmul(query, keras.ops.transpose(key, (0, 1, 3, 2)))
  z = keras.ops.matmul(scores * _decay(heads, length), value)
  z = layers.Reshape((length, units))(layers.Permute((2, 1, 3))(z))
  z = layers.LayerNormalization(name=name + "retained_norm")(z)
  gate = layers.Dense(units, "silu", use_bias=False, name=name + "own_gate")
  return layers.Dense(units, use_bias=False, name=name + "leave")(gate(y) * z)


def _decay(heads: int, length: int) -> np.ndarray:
  """[heads, length, length] weights that fall with the distance."""
  rate = 1.0 - 2.0 ** (-5.0 - np.arange(heads))
  apart = np.arange(length)[:, None] - np.arange(length)[None]
  weight = rate[:, None, None] ** np.maximum(apart, 0)
  return np.where(apart >= 0, weight / 8.0, 0.0).astype(np.float32)


def segformer(
  units: Sequence[int] = (64, 128, 320, 512), size: int = 128
) -> keras.Model:
  """Xie et al., 2021, B2: attention to fewer places on the first levels."""
  images = keras.Input((size, size, 3), name="images")
  x, levels = images, []
  for stage, (width, depth, fewer) in enumerate(
    zip(units, (3, 4, 6, 3), (8, 4, 2, 1), strict=True)
  ):
    stride = 2 if stage else 4
    x = layers.Conv2D(
      width, 2 * stride - 1, stride, "same", name=f"merge{stage}"
    )(x)
    side = x.shape[1]
    x = layers.Reshape((side * side, width))(x)
    for i in range(depth):
      x = _overlapped(x, side, width, fewer, f"stage{stage}_{i}_")
    x = layers.LayerNormalization(name=f"norm{stage}")(x)
    x = layers.Reshape((side, side, width))(x)
    levels.append(x)
  joined = []
  for stage, level in enumerate(levels):
    y = layers.Dense(256, name=f"head{stage}")(level)
    joined.append(layers.UpSampling2D(1 << stage)(y))
  y = layers.Conv2D(256, 1, activation="relu", name="fuse")(
    layers.Concatenate()(joined)
  )
  return compiled(keras.Model(images, layers.Dense(150, name="logits")(y)))


def _overlapped(
  x: keras.KerasTensor, side: int, units: int, fewer: int, name: str
) -> keras.KerasTensor:
  y = layers.LayerNormalization(name=name + "attention_norm")(x)
  seen = y
  if fewer > 1:
    seen = layers.Reshape((side, side, units))(y)
    seen = layers.Conv2D(units, fewer, fewer, name=name + "reduce")(seen)
    seen = layers.Reshape((-1, units))(seen)
    seen = layers.LayerNormalization(name=name + "reduce_norm")(seen)
  heads = max(1, units // 64)
  x = x + layers.MultiHeadAttention(
    heads, units // heads, name=name + "attention"
  )(y, seen)
  y = layers.LayerNormalization(name=name + "output_norm")(x)
  y = layers.Dense(4 * units, name=name + "up")(y)
  y = layers.Reshape((side, side, 4 * units))(y)
  y = layers.DepthwiseConv2D(3, padding="same", name=name + "places")(y)
  y = layers.Activation("gelu")(layers.Reshape((-1, 4 * units))(y))
  return x + layers.Dense(units, name=name + "down")(y)


def hourglass(
  stacks: int = 4, units: int = 256, depth: int = 4, size: int = 128
) -> keras.Model:
  """Newell et al., 2016, for poses; GroupNormalization, and one loss."""
  images = keras.Input((size, size, 3), name="images")
  x = layers.Conv2D(64, 7, 2, "same", name="stem")(images)
  x = layers.MaxPooling2D()(_bottleneck(x, units, "stem_"))
  for stack in range(stacks):
    y = _glass(x, units, depth, f"stack{stack}_")
    y = _bottleneck(y, units, f"stack{stack}_out_")
    x = x + layers.Conv2D(units, 1, name=f"stack{stack}_next")(y)
  out = layers.Conv2D(16, 1, name="joints")(x)
  model = keras.Model(images, out)
  model.compile(keras.optimizers.Adam(1e-3), "mse", jit_compile=False)
  return model


def _glass(
  x: keras.KerasTensor, units: int, depth: int, name: str
) -> keras.KerasTensor:
  past = _bottleneck(x, units, f"{name}past{depth}_")
  y = _bottleneck(layers.MaxPooling2D()(x), units, f"{name}down{depth}_")
  if depth > 1:
    y = _glass(y, units, depth - 1, name)
  y = _bottleneck(y, units, f"{name}up{depth}_")
  return past + layers.UpSampling2D()(y)


def _bottleneck(
  x: keras.KerasTensor, units: int, name: str
) -> keras.KerasTensor:
  y = x
  for i, (width, kernel) in enumerate(
    ((units // 2, 1), (units // 2, 3), (units, 1))
  ):
    y = layers.GroupNormalization(16, name=f"{name}norm{i}")(y)
    y = layers.Activation("relu")(y)
    y = layers.Conv2D(width, kernel, padding="same", name=f"{name}conv{i}")(y)
  if x.shape[-1] != units:
    x = layers.Conv2D(units, 1, name=f"{name}past")(x)
  return x + y


def detector(
  units: int = 112, repeats: int = 5, size: int = 256
) -> keras.Model:
  """Tan et al., 2020 (EfficientDet), on a small backbone with
  GroupNormalization: classes at five levels."""
  images = keras.Input((size, size, 3), name="images")
  x = layers.Conv2D(32, 3, 2, "same", name="stem")(images)
  levels: list[keras.KerasTensor] = []
  for level in range(6):
    x = layers.Conv2D(64 << min(level, 3), 3, 2, "same", name=f"down{level}")(x)
    for i in range(2):
      x = _bottleneck(x, x.shape[-1], f"level{level}_{i}_")
    if level:
      levels.append(layers.Conv2D(units, 1, name=f"enter{level}")(x))
  for repeat in range(repeats):
    levels = _pyramid(levels, units, f"pyramid{repeat}_")
  out = []
  for number, level in enumerate(levels):
    y = level
    for i in range(3):
      y = _separable(y, units, f"head{number}_{i}_")
    y = layers.Conv2D(90, 1, name=f"classes{number}")(y)
    out.append(layers.Reshape((-1, 90))(y))
  return compiled(keras.Model(images, layers.Concatenate(axis=1)(out)))


def _pyramid(
  levels: list[keras.KerasTensor], units: int, name: str
) -> list[keras.KerasTensor]:
  """Features down the levels, then up again."""
  down = [levels[-1]]
  for level in reversed(range(len(levels) - 1)):
    y = levels[level] + layers.UpSampling2D()(down[0])
    down.insert(0, _separable(y, units, f"{name}down{level}_"))
  up = [down[0]]
  for level in range(1, len(levels)):
    y = levels[level] + down[level] + layers.MaxPooling2D()(up[-1])
    up.append(_separable(y, units, f"{name}up{level}_"))
  return up


def _separable(
  x: keras.KerasTensor, units: int, name: str
) -> keras.KerasTensor:
  x = layers.Activation("silu")(x)
  x = layers.SeparableConv2D(units, 3, padding="same", name=name + "conv")(x)
  return layers.GroupNormalization(16, name=name + "norm")(x)


class _Contrast(keras.layers.Layer):
  """[batch] loss of finding each image's text in the batch."""

  def call(
    self, images: keras.KerasTensor, texts: keras.KerasTensor
  ) -> keras.KerasTensor:
    scores = 10.0 * keras.ops.matmul(images, keras.ops.transpose(texts))
    right = keras.ops.arange(keras.ops.shape(scores)[0])
    return keras.losses.sparse_categorical_crossentropy(
      right, scores, from_logits=True
    ) + keras.losses.sparse_categorical_crossentropy(
      right, keras.ops.transpose(scores), from_logits=True
    )


def clip(
  depth: int = 12, units: int = 384, length: int = 64, size: int = 128
) -> keras.Model:
  """Radford et al., 2021: two towers of images and texts, and their contrast
  over the batch, which keeps the step whole."""
  images = keras.Input((size, size, 3), name="images")
  x = layers.Conv2D(units, 16, 16, name="patches")(images)
  x = Positions()(layers.Reshape((-1, units))(x))
  tokens = keras.Input((length,), dtype="int32", name="tokens")
  y = Positions()(layers.Embedding(32000, units, name="words")(tokens))
  for i in range(depth):
    x = _block(x, units, f"image{i}_")
    y = _block(y, units, f"text{i}_")
  ends = []
  for name, tower in (("image", x), ("text", y)):
    z = layers.GlobalAveragePooling1D()(tower)
    end = layers.Dense(256, use_bias=False, name=name + "_end")
    ends.append(layers.UnitNormalization()(end(z)))
  model = keras.Model([images, tokens], _Contrast(name="contrast")(*ends))
  model.compile(keras.optimizers.AdamW(1e-4), _mean, jit_compile=False)
  return model


def _mean(
  unused_true: keras.KerasTensor, loss: keras.KerasTensor
) -> keras.KerasTensor:
  return loss


def _block(x: keras.KerasTensor, units: int, name: str) -> keras.KerasTensor:
  y = layers.LayerNormalization(name=name + "attention_norm")(x)
  x = x + layers.MultiHeadAttention(units // 64, 64, name=name + "attention")(
    y, y
  )
  y = layers.LayerNormalization(name=name + "output_norm")(x)
  y = layers.Dense(4 * units, "gelu", name=name + "up")(y)
  return x + layers.Dense(units, name=name + "down")(y)


def dlrm(
  tables: int = 26, rows: int = 100_000, units: int = 64, dense: int = 13
) -> keras.Model:
  """Naumov et al., 2019: an embedding for each of 26 columns, and the products
  of all pairs."""
  numbers = keras.Input((dense,), name="numbers")
  columns = keras.Input((tables,), dtype="int32", name="columns")
  x = numbers
  for i, width in enumerate((512, 256, units)):
    x = layers.Dense(width, "relu", name=f"bottom{i}")(x)
  parts = [x]
  for i in range(tables):
    embedding = layers.Embedding(rows, units, name=f"table{i}")
    parts.append(embedding(columns[:, i]))
  pairs = [
    layers.Dot(1)([a, b]) for i, a in enumerate(parts) for b in parts[:i]
  ]
  y = layers.Concatenate()([x, *pairs])
  for i, width in enumerate((1024, 1024, 512, 256)):
    y = layers.Dense(width, "relu", name=f"top{i}")(y)
  out = layers.Dense(1, "sigmoid", name="click")(y)
  model = keras.Model([numbers, columns], out)
  optimizer = keras.optimizers.Adagrad(0.01)
  model.compile(optimizer, "binary_crossentropy", jit_compile=False)
  return model


def deep_speech(
  depth: int = 5, units: int = 512, frames: int = 128
) -> keras.Model:
  """Amodei et al., 2016 (Deep Speech 2): convolutions and recurrent layers in
  both directions, unrolled; a letter for each frame in place of CTC."""
  sound = keras.Input((frames, 80), name="sound")
  x = layers.Reshape((frames, 80, 1))(sound)
  for i in range(2):
    x = layers.Conv2D(32, (11, 21), (1 + i, 2), "same", name=f"conv{i}")(x)
    x = layers.Activation("relu")(x)
  x = layers.Reshape((x.shape[1], -1))(x)
  for i in range(depth):
    cell = layers.GRU(units, return_sequences=True, unroll=True)
    x = layers.Bidirectional(cell, "sum", name=f"gru{i}")(x)
    x = layers.LayerNormalization(name=f"norm{i}")(x)
  return compiled(keras.Model(sound, layers.Dense(29, name="letters")(x)))


def nbeats(
  stacks: int = 30, units: int = 512, back: int = 120, ahead: int = 24
) -> keras.Model:
  """Oreshkin et al., 2020, generic: each block explains what the ones before
  left over, and adds to the forecast."""
  series = keras.Input((back,), name="series")
  x, total = series, None
  for i in range(stacks):
    y = x
    for j in range(4):
      y = layers.Dense(units, "relu", name=f"block{i}_{j}")(y)
    x = x - layers.Dense(back, name=f"block{i}_past")(y)
    more = layers.Dense(ahead, name=f"block{i}_ahead")(y)
    total = more if total is None else total + more
  model = keras.Model(series, total)
  model.compile(keras.optimizers.Adam(1e-3), "mae", jit_compile=False)
  return model


MODELS = {
  "retnet": Trained(retnet, 16, "RetNet, 12 layers of 512, batch 16 x 256"),
  "segformer": Trained(segformer, 32, "SegFormer-B2, batch 32 x 128"),
  "hourglass": Trained(hourglass, 32, "Hourglass, 4 stacks, batch 32 x 128"),
  "detector": Trained(detector, 16, "EfficientDet neck, batch 16 x 256"),
  "clip": Trained(clip, 64, "CLIP, 2 x 12 layers of 384, batch 64"),
  "dlrm": Trained(dlrm, 2048, "DLRM, 26 tables, batch 2,048"),
  "deep_speech": Trained(
    deep_speech, 32, "Deep Speech 2, 5 layers of 512, batch 32 x 128"
  ),
  "nbeats": Trained(nbeats, 1024, "N-BEATS, 30 blocks of 512, batch 1,024"),
}
