"""Models with steps, a `call` or a `compile` of their own, planned and placed:
every number equals the unplaced model's, in whatever order it is used.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfplace
from tests.testing import placed_models as at
from tests.testing.layer_cases.register import floats
from tests.testing.slow import SLOW
from tfplace.extraction import keras_step

BATCH = 4


def _tower():
  return keras.Sequential(
    [layers.Dense(6, "relu", name="wide"), layers.Dense(3, name="narrow")],
    name="tower",
  )


class _Triplet(keras.Model):
  """Siamese example of keras.io: both steps take the same batch."""

  def __init__(self):
    super().__init__(name="net")
    inputs = [keras.Input((4,), name=n) for n in ("anchor", "near", "far")]
    tower = _tower()
    one, near, far = (tower(x) for x in inputs)
    apart = [ops.sum(ops.square(one - x), -1) for x in (near, far)]
    self.distances = keras.Model(inputs, apart, name="distances")
    self.tracker = keras.metrics.Mean(name="loss")

  def call(self, inputs):
    return self.distances(inputs)

  @property
  def metrics(self):
    return [self.tracker]

  def _loss(self, data):
    near, far = self.distances(data)
    return ops.mean(ops.maximum(near - far + 0.5, 0.0))

  def _seen(self, loss):
    self.tracker.update_state(loss)
    return {"loss": self.tracker.result()}

  def train_step(self, data):
    with tf.GradientTape() as tape:
      loss = self._loss(data)
    weights = self.distances.trainable_weights
    self.optimizer.apply(tape.gradient(loss, weights), weights)
    return self._seen(loss)

  def test_step(self, data):
    return self._seen(self._loss(data))


class _Plain(keras.Model):
  """One tower, with Keras' own steps."""

  def __init__(self):
    super().__init__(name="net")
    self.tower = _tower()

  def call(self, x):
    return self.tower(x)


class _OwnTrain(_Plain):
  def train_step(self, data):
    first, second = data["pair"]  # no batch that the model can be called with
    with tf.GradientTape() as tape:
      loss = ops.mean(ops.square(self(first + second)))
    weights = self.trainable_weights
    self.optimizer.apply(tape.gradient(loss, weights), weights)
    return {"loss": loss}


class _OwnTest(_Plain):
  def test_step(self, data):
    return {"gap": ops.mean(self(data["left"]) - self(data["right"]))}


class _OwnPredict(_Plain):
  def predict_step(self, data):
    return self(data["left"]) + self(data["right"])


class _OwnAll(_OwnTrain, _OwnTest, _OwnPredict):
  pass


class _OwnCompile(_OwnTrain):
  """Its optimizer is its own, and Keras knows of none."""

  def compile(self, tower_optimizer, **options):
    super().compile(optimizer=None, **options)
    self.tower_optimizer = tower_optimizer

  def train_step(self, data):
    x, y = data
    with tf.GradientTape() as tape:
      loss = ops.mean(ops.square(self.tower(x) - y))
    weights = self.tower.trainable_weights
    self.tower_optimizer.apply(tape.gradient(loss, weights), weights)
    return {"loss": loss}


class _Keywords(_Plain):
  """A call with a mask, a flag, and an input that may be lacking."""

  def call(self, inputs, mask=None, training=False, scale=2.0):
    x = self.tower(inputs["x"]) * scale
    shift = inputs.get("shift")
    return x if shift is None else x + shift


class _Lists(_Plain):
  def call(self, inputs, training=None):
    first, (second, third) = inputs
    return [self.tower(first), self.tower(second + third)]


def _pairs():
  return {"left": floats(8, 4), "right": floats(8, 4, seed=2)}


def _dataset(data):
  return tf.data.Dataset.from_tensor_slices(data).batch(BATCH)


def _optional():
  x, shift = keras.Input((4,)), keras.Input((3,), optional=True)

  class Add(layers.Layer):
    def call(self, x, shift=None):
      return x if shift is None else x + shift

  return keras.Model([x, shift], Add()(_tower()(x), shift), name="net")


_X, _Y = floats(8, 4), floats(8, 3)
_TRIPLE = tuple(floats(8, 4, seed=s) for s in range(3))
_MSE = {"loss": "mse", "metrics": ["mae"]}
_PAIR = _dataset({"pair": (_X, floats(8, 4, seed=9))})
# Name -> the model, its compile options, and what `fit`, `evaluate` and
# `predict` are given.
CASES = {
  "triplet": (
    _Triplet,
    {},
    _dataset(_TRIPLE),
    _dataset(_TRIPLE),
    _dataset((_TRIPLE,)),
  ),
  "train_step": (_OwnTrain, {}, _PAIR, None, _X),
  "test_step": (_OwnTest, {"loss": "mse"}, (_X, _Y), _dataset(_pairs()), _X),
  "predict_step": (_OwnPredict, _MSE, (_X, _Y), (_X, _Y), _dataset(_pairs())),
  "all_steps": (
    _OwnAll,
    {},
    _PAIR,
    _dataset(_pairs()),
    _dataset(_pairs()),
  ),
  "compile": (
    _OwnCompile,
    {"tower_optimizer": lambda: keras.optimizers.Adam(0.05)},
    (_X, _Y),
    None,
    _X,
  ),
  "keywords": (
    _Keywords,
    _MSE,
    ({"x": _X, "shift": _Y}, _Y),
    ({"x": _X}, _Y),
    {"x": _X},
  ),
  "lists": (
    _Lists,
    {"loss": ["mse", "mae"]},
    _dataset(((_X, (_X, _X)), (_Y, _Y))),
    None,
    _dataset(((_X, (_X, _X)),)),
  ),
  "weights": (
    _Plain,
    _MSE,
    _dataset((_X, _Y, np.linspace(1, 2, 8))),
    (_X, _Y),
    _X,
  ),
  "optional_input": (
    _optional,
    _MSE,
    ([_X, None], _Y),
    ([_X, _Y], _Y),
    [_X, _Y],
  ),
}
FIT_FIRST = ("fit", "evaluate", "predict")
FIT_LATER = ("predict", "evaluate", "fit", "evaluate", "predict")


def _built(kind):
  keras.utils.set_random_seed(5)
  with keras_step.fresh_names():
    model_class, options, *_ = CASES[kind]
    model = model_class()
  options = {k: v() if callable(v) else v for k, v in options.items()}
  if kind != "compile":
    options["optimizer"] = keras.optimizers.Adam(0.05)
  model.compile(jit_compile=False, **options)
  return model


def _evaluated(model, data):
  if isinstance(data, tuple):
    return model.evaluate(*data, batch_size=BATCH, verbose=0)
  return model.evaluate(data, verbose=0)


def _fitted(model, train, test):
  options = {"epochs": 2, "verbose": 0, "shuffle": False}
  if test is not None:
    options["validation_data"] = test
  if isinstance(train, tuple):
    return model.fit(*train, batch_size=BATCH, **options).history
  return model.fit(train, **options).history


def _numbers(model, kind, order):
  """All numbers that a model gives, used in that order."""
  _, _, train, test, predict = CASES[kind]
  numbers = []
  for use in order:
    if use == "fit":
      numbers += sorted(_fitted(model, train, test).items())
    elif use == "predict":
      numbers.append(model.predict(predict, verbose=0))
    elif test is not None:
      numbers.append(_evaluated(model, test))
  return numbers


def _flat(numbers):
  leaves = keras.tree.flatten(numbers)
  return [np.asarray(x) for x in leaves if not isinstance(x, str)]


# Planned at the first use, or after others: `FIT_LATER` ends as `FIT_FIRST`.
_FAST = {
  FIT_LATER: ("triplet", "compile", "keywords", "lists", "optional_input"),
  FIT_FIRST: ("all_steps",),
}
ORDERS = [
  pytest.param(
    kind,
    order,
    id=f"{kind}-{order[0]}-first",
    marks=() if kind in fast else SLOW,
  )
  for order, fast in _FAST.items()
  for kind in CASES
]


@pytest.mark.parametrize(("kind", "order"), ORDERS)
def test_all_numbers_equal_the_unplaced_models(kind, order):
  expected = _flat(_numbers(_built(kind), kind, order))
  model = tfplace.place_model(_built(kind), at.linked(), strategy="m_etf")
  with at.recorded() as ran:
    got = _flat(_numbers(model, kind, order))
  assert len(got) == len(expected) > 2
  for one, other in zip(got, expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
  assert model.placement.training
  assert len({node.device for node in ran}) > 1
