"""Models of images and of points in space."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from benchmarks.user_models.registry import Case

_STEPS = 2


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

  def get_config(self) -> dict[str, Any]:
    return {**super().get_config(), "patch_size": self.patch_size}


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

  def get_config(self) -> dict[str, Any]:
    sizes = {"num_patches": self.num_patches, "units": self.units}
    return {**super().get_config(), **sizes}


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

  def get_config(self) -> dict[str, Any]:
    return {"size": self.size, "weight": self.weight}


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
