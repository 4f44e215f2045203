"""Models of text, handwriting and sound."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from benchmarks.user_models.registry import Case

_STEPS = 2


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
