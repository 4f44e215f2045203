"""Register of layer cases, and their parts."""

import keras
import numpy as np

CASES = {}


def case(function):
  """Registers a function that returns model, batch and compile options."""
  CASES[function.__name__] = function
  return function


def floats(*shape, seed=5):
  return np.random.default_rng(seed).normal(size=shape).astype("float32")


def ints(high, *shape, seed=6):
  return np.random.default_rng(seed).integers(0, high, shape).astype("int32")


def chain(shape, *stages, dtype="float32", name="net"):
  """A functional model of layers one after the other."""
  inputs = keras.Input(shape, dtype=dtype)
  x = inputs
  for stage in stages:
    x = stage(x)
  return keras.Model(inputs, x, name=name)
