"""Models of the development set of `graph_sets.py`, in plain Keras 3.

They were a test set once, and were looked at. They are as in their papers,
except where a docstring names a difference.
"""

import keras
from keras import layers

from benchmarks.models.reference import Positions, Trained


def llama(
  depth: int = 12, units: int = 768, vocabulary: int = 32000, length: int = 256
) -> keras.Model:
  """Touvron et al., 2023, with grouped queries; positions are learned."""
  tokens = keras.Input((length,), dtype="int32", name="tokens")
  x = Positions()(layers.Embedding(vocabulary, units, name="words")(tokens))
  for i in range(depth):
    name = f"block{i}_"
    y = layers.RMSNormalization(name=name + "attention_norm")(x)
    heads = layers.GroupQueryAttention(
      64, units // 64, units // 192, use_bias=False, name=name + "attention"
    )
    x = x + heads(y, y, use_causal_mask=True)
    y = layers.RMSNormalization(name=name + "output_norm")(x)
    gate = layers.Dense(3 * units, "silu", use_bias=False, name=name + "gate")
    up = layers.Dense(3 * units, use_bias=False, name=name + "up")
    down = layers.Dense(units, use_bias=False, name=name + "down")
    x = x + down(gate(y) * up(y))
  x = layers.RMSNormalization(name="norm")(x)
  logits = layers.Dense(vocabulary, use_bias=False, name="logits")(x)
  return compiled(keras.Model(tokens, logits))


def mixer(depth: int = 24, units: int = 768, size: int = 224) -> keras.Model:
  """Tolstikhin et al., 2021 (MLP-Mixer), twice as deep as B/16."""
  images = keras.Input((size, size, 3), name="images")
  x = layers.Conv2D(units, 16, strides=16, name="patches")(images)
  x = layers.Reshape((-1, units))(x)
  for i in range(depth):
    name = f"block{i}_"
    y = layers.LayerNormalization(name=name + "tokens_norm")(x)
    y = layers.Permute((2, 1))(y)
    y = layers.Dense(units // 2, "gelu", name=name + "tokens_up")(y)
    y = layers.Dense(x.shape[1], name=name + "tokens_down")(y)
    x = x + layers.Permute((2, 1))(y)
    y = layers.LayerNormalization(name=name + "units_norm")(x)
    y = layers.Dense(4 * units, "gelu", name=name + "units_up")(y)
    x = x + layers.Dense(units, name=name + "units_down")(y)
  x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(name="norm")(x))
  return compiled(keras.Model(images, layers.Dense(1000, name="logits")(x)))


def conformer(
  depth: int = 16, units: int = 256, frames: int = 512
) -> keras.Model:
  """Gulati et al., 2020, medium; a class for each frame in place of a
  transducer, LayerNormalization in place of BatchNormalization."""
  sound = keras.Input((frames, 80), name="sound")
  x = layers.Conv1D(units, 5, 4, "same", activation="silu", name="stem")(sound)
  x = Positions()(x)
  for i in range(depth):
    name = f"block{i}_"
    x = x + 0.5 * _half_feed_forward(x, units, name + "first_")
    y = layers.LayerNormalization(name=name + "attention_norm")(x)
    heads = layers.MultiHeadAttention(units // 64, 64, name=name + "attention")
    x = x + heads(y, y)
    x = x + _convolution(x, units, name)
    x = x + 0.5 * _half_feed_forward(x, units, name + "second_")
    x = layers.LayerNormalization(name=name + "norm")(x)
  return compiled(keras.Model(sound, layers.Dense(1024, name="logits")(x)))


def _half_feed_forward(
  x: keras.KerasTensor, units: int, name: str
) -> keras.KerasTensor:
  y = layers.LayerNormalization(name=name + "norm")(x)
  y = layers.Dense(4 * units, "silu", name=name + "up")(y)
  return layers.Dense(units, name=name + "down")(y)


def _convolution(
  x: keras.KerasTensor, units: int, name: str
) -> keras.KerasTensor:
  y = layers.LayerNormalization(name=name + "convolution_norm")(x)
  gate = layers.Dense(units, "sigmoid", name=name + "gate")(y)
  y = layers.Dense(units, name=name + "enter")(y) * gate
  y = layers.DepthwiseConv1D(31, padding="same", name=name + "depthwise")(y)
  y = layers.LayerNormalization(name=name + "depthwise_norm")(y)
  y = layers.Activation("silu")(y)
  return layers.Dense(units, name=name + "leave")(y)


def diffusion(
  units: int = 128, levels: int = 4, blocks: int = 3, size: int = 64
) -> keras.Model:
  """Ho et al., 2020 (DDPM): a U-Net that predicts the noise of an image, with
  attention on its two lower levels."""
  images = keras.Input((size, size, 3), name="images")
  noise = keras.Input((units,), name="noise_level")
  time = layers.Dense(4 * units, "silu", name="time")(noise)
  x = layers.Conv2D(units, 3, padding="same", name="stem")(images)
  kept = []
  for level in range(levels):
    for i in range(blocks):
      x = _diffused(x, time, units << min(level, 2), f"down{level}_{i}_", level)
      kept.append(x)
    if level < levels - 1:
      x = layers.Conv2D(x.shape[-1], 3, 2, "same", name=f"smaller{level}")(x)
  for level in reversed(range(levels)):
    for i in range(blocks):
      x = layers.Concatenate()([x, kept.pop()])
      x = _diffused(x, time, units << min(level, 2), f"up{level}_{i}_", level)
    if level:
      x = layers.UpSampling2D()(x)
      x = layers.Conv2D(x.shape[-1], 3, padding="same", name=f"up{level}")(x)
  out = layers.Conv2D(3, 3, padding="same", name="noise")(x)
  model = keras.Model([images, noise], out)
  model.compile(keras.optimizers.Adam(2e-4), "mse", jit_compile=False)
  return model


def _diffused(
  x: keras.KerasTensor,
  time: keras.KerasTensor,
  units: int,
  name: str,
  level: int,
) -> keras.KerasTensor:
  """A residual block that is told the level of noise."""
  y = layers.GroupNormalization(32, name=name + "norm_a")(x)
  y = layers.Activation("silu")(y)
  y = layers.Conv2D(units, 3, padding="same", name=name + "conv_a")(y)
  shift = layers.Dense(units, name=name + "time")(time)
  y = y + layers.Reshape((1, 1, units))(shift)
  y = layers.GroupNormalization(32, name=name + "norm_b")(y)
  y = layers.Activation("silu")(y)
  y = layers.Conv2D(units, 3, padding="same", name=name + "conv_b")(y)
  if x.shape[-1] != units:
    x = layers.Conv2D(units, 1, name=name + "past")(x)
  x = x + y
  if level < 2:
    return x
  y = layers.GroupNormalization(32, name=name + "attention_norm")(x)
  y = layers.Reshape((-1, units))(y)
  y = layers.MultiHeadAttention(4, units // 4, name=name + "attention")(y, y)
  return x + layers.Reshape(x.shape[1:])(y)


def weather(
  depth: int = 6, units: int = 64, steps: int = 48, size: int = 64
) -> keras.Model:
  """Shi et al., 2015 (ConvLSTM), a deeper one, unrolled: the next radar image
  at each of 48 steps."""
  images = keras.Input((steps, size, size, 1), name="images")
  x = images
  for i in range(depth):
    x = layers.ConvLSTM2D(
      *(units, 3), padding="same", return_sequences=True, unroll=True,
      name=f"lstm{i}",
    )(x)  # fmt: skip
    x = layers.LayerNormalization(name=f"norm{i}")(x)
  out = layers.Conv3D(1, 3, padding="same", name="next")(x)
  model = keras.Model(images, out)
  model.compile(keras.optimizers.Adam(1e-3), "mse", jit_compile=False)
  return model


def application(name: str, size: int) -> keras.Model:
  """A model of `keras.applications` without weights."""
  make = getattr(keras.applications, name)
  model = make(
    weights=None, input_shape=(size, size, 3), classifier_activation=None
  )
  return compiled(model)


def compiled(model: keras.Model) -> keras.Model:
  """Compiles a classifier with AdamW."""
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(keras.optimizers.AdamW(1e-4), loss, jit_compile=False)
  return model


MODELS = {
  "llama": Trained(llama, 16, "LLaMA, 12 layers of 768, batch 16 x 256"),
  "mixer": Trained(mixer, 64, "MLP-Mixer, 24 layers of 768, batch 64 x 224"),
  "conformer": Trained(
    conformer, 32, "Conformer, 16 layers of 256, batch 32 x 512"
  ),
  "diffusion": Trained(diffusion, 32, "DDPM, 128 units, batch 32 x 64 x 64"),
  "weather": Trained(weather, 8, "ConvLSTM, 6 layers, 48 steps, batch 8"),
  "convnext": Trained(
    lambda: application("ConvNeXtTiny", 224), 64, "ConvNeXt-T, batch 64 x 224"
  ),
  "densenet": Trained(
    lambda: application("DenseNet201", 224),
    32,
    "DenseNet-201, BatchNormalization allowed, batch 32 x 224",
    has_batch_statistics=True,
  ),
  "efficientnet": Trained(
    lambda: application("EfficientNetV2M", 224),
    32,
    "EfficientNetV2-M, BatchNormalization allowed, batch 32 x 224",
    has_batch_statistics=True,
  ),
}
