"""A Keras model of two towers, and two logical CPU devices."""

import keras
import numpy as np
import tensorflow as tf


def two_cpu_devices() -> None:
  """Splits the CPU into two logical devices; before TensorFlow starts."""
  cpu = tf.config.list_physical_devices("CPU")[0]
  two = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
  tf.config.set_logical_device_configuration(cpu, two)


def build(width: int = 256) -> keras.Model:
  """Two inputs, a tower of layers over each, and one output of both."""
  inputs, towers = [], []
  for side in ("left", "right"):
    x = keras.Input((64,), name=side)
    inputs.append(x)
    for number in range(4):
      name = f"{side}_{number}"
      x = keras.layers.Dense(width, activation="relu", name=name)(x)
    towers.append(x)
  joined = keras.layers.Concatenate(name="joined")(towers)
  output = keras.layers.Dense(1, name="output")(joined)
  model = keras.Model(inputs, output)
  model.compile(optimizer="adam", loss="mse")
  return model


def data(examples: int = 512) -> tuple[list[np.ndarray], np.ndarray]:
  """Random inputs of both towers, and targets."""
  rng = np.random.default_rng(0)
  sides = [rng.normal(size=(examples, 64)).astype("float32") for _ in "lr"]
  return sides, (sides[0] * sides[1]).sum(axis=1, keepdims=True)
