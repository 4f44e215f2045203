"""Models of the second test set, now in the development set of `graph_sets.py`.

They are in plain Keras 3 and as in their papers, except where a docstring names
a difference.
"""

import keras
from keras import layers

from benchmarks.models.development import application, compiled
from benchmarks.models.reference import Positions, Trained


def palm(
  depth: int = 16, units: int = 512, vocabulary: int = 32000, length: int = 256
) -> keras.Model:
  """Chowdhery et al., 2022: attention and feed-forward side by side, one key
  and value for all heads; positions are learned."""
  tokens = keras.Input((length,), dtype="int32", name="tokens")
  x = Positions()(layers.Embedding(vocabulary, units, name="words")(tokens))
  for i in range(depth):
    name = f"block{i}_"
    y = layers.LayerNormalization(name=name + "norm")(x)
    heads = layers.GroupQueryAttention(
      64, units // 64, 1, use_bias=False, name=name + "attention"
    )
    gate = layers.Dense(4 * units, "silu", use_bias=False, name=name + "gate")
    up = layers.Dense(4 * units, use_bias=False, name=name + "up")
    down = layers.Dense(units, use_bias=False, name=name + "down")
    x = x + heads(y, y, use_causal_mask=True) + down(gate(y) * up(y))
  x = layers.LayerNormalization(name="norm")(x)
  logits = layers.Dense(vocabulary, use_bias=False, name="logits")(x)
  return compiled(keras.Model(tokens, logits))


def gmlp(
  depth: int = 24, units: int = 512, vocabulary: int = 30000, length: int = 128
) -> keras.Model:
  """Liu et al., 2021: every word is predicted from gated sums over places."""
  tokens = keras.Input((length,), dtype="int32", name="tokens")
  x = layers.Embedding(vocabulary, units, name="words")(tokens)
  for i in range(depth):
    name = f"block{i}_"
    y = layers.LayerNormalization(name=name + "norm")(x)
    kept = layers.Dense(2 * units, "gelu", name=name + "kept")(y)
    gate = layers.Dense(2 * units, "gelu", name=name + "gate")(y)
    gate = layers.LayerNormalization(name=name + "gate_norm")(gate)
    gate = layers.Dense(length, name=name + "places")(
      layers.Permute((2, 1))(gate)
    )
    y = kept * layers.Permute((2, 1))(gate)
    x = x + layers.Dense(units, name=name + "leave")(y)
  logits = layers.Dense(vocabulary, name="logits")(x)
  return compiled(keras.Model(tokens, logits))


def wav2vec(
  depth: int = 12, units: int = 768, samples: int = 64_000
) -> keras.Model:
  """Baevski et al., 2020, base, as it is fine-tuned: seven convolutions of
  sound, then a transformer, and a letter for each frame."""
  sound = keras.Input((samples, 1), name="sound")
  x = sound
  for i, (width, stride) in enumerate(
    ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))
  ):
    x = layers.Conv1D(512, width, stride, use_bias=False, name=f"conv{i}")(x)
    x = layers.LayerNormalization(name=f"conv{i}_norm")(x)
    x = layers.Activation("gelu")(x)
  x = layers.Dense(units, name="project")(x)
  near = layers.Conv1D(
    units, 16, padding="same", groups=16, activation="gelu", name="places"
  )
  x = layers.LayerNormalization(name="norm")(x + near(x))
  for i in range(depth):
    x = _block(x, x, units, f"block{i}_")
  return compiled(keras.Model(sound, layers.Dense(32, name="letters")(x)))


def perceiver(
  depth: int = 8, units: int = 512, latents: int = 128, size: int = 96
) -> keras.Model:
  """Jaegle et al., 2021: latents look at an image's pixels, then at each other
  three times, in each of eight layers that share nothing."""
  images = keras.Input((size, size, 3), name="images")
  pixels = layers.Reshape((-1, 3))(images)
  pixels = Positions()(layers.Dense(128, name="pixels")(pixels))
  first = layers.GlobalAveragePooling1D()(pixels)
  x = layers.Reshape((latents, units))(
    layers.Dense(latents * units, name="latents")(first)
  )
  for i in range(depth):
    x = _block(x, pixels, units, f"look{i}_")
    for j in range(3):
      x = _block(x, x, units, f"think{i}_{j}_")
  x = layers.GlobalAveragePooling1D()(x)
  return compiled(keras.Model(images, layers.Dense(1000, name="logits")(x)))


def swin(units: int = 96, size: int = 224, window: int = 7) -> keras.Model:
  """Liu et al., 2021, tiny: attention within windows; they are not shifted."""
  images = keras.Input((size, size, 3), name="images")
  x = layers.Conv2D(units, 4, strides=4, name="patches")(images)
  for stage, depth in enumerate((2, 2, 6, 2)):
    width = units << stage
    if stage:
      x = layers.LayerNormalization(name=f"merge{stage}_norm")(x)
      x = layers.Conv2D(width, 2, 2, use_bias=False, name=f"merge{stage}")(x)
    for i in range(depth):
      x = _windowed(x, width, window, f"stage{stage}_{i}_")
  x = layers.GlobalAveragePooling2D()(layers.LayerNormalization(name="norm")(x))
  return compiled(keras.Model(images, layers.Dense(1000, name="logits")(x)))


def _windowed(
  x: keras.KerasTensor, units: int, window: int, name: str
) -> keras.KerasTensor:
  """A block on [examples, side, side, units] whose attention is in windows."""
  side = x.shape[1]
  across = side // window
  whole = (across, window, across, window * units)
  y = layers.Reshape(whole)(x)
  y = layers.Permute((1, 3, 2, 4))(y)
  y = layers.Reshape((across * across, window * window, units))(y)
  z = layers.LayerNormalization(name=name + "attention_norm")(y)
  y = y + layers.MultiHeadAttention(
    *(units // 32, 32), attention_axes=(2,), name=name + "attention"
  )(z, z)
  y = y + _feed_forward(y, units, name)
  y = layers.Reshape((across, across, window, window * units))(y)
  y = layers.Permute((1, 3, 2, 4))(y)
  return layers.Reshape((side, side, units))(y)


def _block(
  x: keras.KerasTensor, seen: keras.KerasTensor, units: int, name: str
) -> keras.KerasTensor:
  """Attention to what is seen, then a feed-forward layer."""
  y = layers.LayerNormalization(name=name + "attention_norm")(x)
  heads = layers.MultiHeadAttention(units // 64, 64, name=name + "attention")
  x = x + heads(y, y if seen is x else seen)
  return x + _feed_forward(x, units, name)


def _feed_forward(
  x: keras.KerasTensor, units: int, name: str
) -> keras.KerasTensor:
  y = layers.LayerNormalization(name=name + "output_norm")(x)
  y = layers.Dense(4 * units, "gelu", name=name + "up")(y)
  return layers.Dense(units, name=name + "down")(y)


MODELS = {
  "palm": Trained(palm, 16, "PaLM, 16 layers of 512, batch 16 x 256"),
  "gmlp": Trained(gmlp, 64, "gMLP, 24 layers of 512, batch 64 x 128"),
  "wav2vec": Trained(wav2vec, 16, "wav2vec 2.0, 12 layers of 768, 16 x 4 s"),
  "perceiver": Trained(perceiver, 32, "Perceiver, 8 x 4 layers, batch 32 x 96"),
  "swin": Trained(swin, 64, "Swin-T, batch 64 x 224"),
  "inception_resnet": Trained(
    lambda: application("InceptionResNetV2", 299),
    32,
    "Inception-ResNet-v2, BatchNormalization allowed, batch 32 x 299",
    has_batch_statistics=True,
  ),
  "xception": Trained(
    lambda: application("Xception", 299),
    64,
    "Xception, BatchNormalization allowed, batch 64 x 299",
    has_batch_statistics=True,
  ),
  "resnet152": Trained(
    lambda: application("ResNet152V2", 224),
    64,
    "ResNet-152 v2, BatchNormalization allowed, batch 64 x 224",
    has_batch_statistics=True,
  ),
}
