"""The refusals that docs/custom_loops.md quotes are those that users see."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import tfplace
from tests.testing import placed_models as at
from tfplace.errors import ExtractionError

X = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
Y = X[:, :3]


class Net(keras.Model):
  def __init__(self):
    super().__init__(name="net")
    self.first = layers.Dense(8, "tanh", name="first")
    self.last = layers.Dense(3, name="last")

  def call(self, x):
    return self.last(self.first(x))

  def cost(self, x, y, _=None):
    return ops.mean(ops.square(self(x) - y))

  def train_step(self, data):
    cost, gradients = tfplace.split_gradients(self, data, self.cost)
    self.optimizer.apply(gradients, self.trainable_weights)
    return {"cost": cost}


class Pairs(Net):
  def cost(self, x, y, _=None):
    x = self(x)
    return ops.mean(ops.square(ops.matmul(x, ops.transpose(x))))


class OwnTape(Net):
  def train_step(self, data):
    return {"cost": self.cost(*data)}


class Twice(Net):
  def train_step(self, data):
    tfplace.split_gradients(self, data, self.cost)
    return super().train_step(data)


class Closure(Net):
  def train_step(self, data):
    x, y = data
    cost, _ = tfplace.split_gradients(self, data, lambda *_: self.cost(x, y))
    return {"cost": cost}


class Normalized(Net):
  def __init__(self):
    super().__init__()
    self.norm = layers.BatchNormalization(name="norm")

  def call(self, x):
    return self.last(self.norm(self.first(x)))


class Codebook(layers.Layer):
  def build(self, shape):
    self.codes = self.add_weight(shape=shape[1:], trainable=False)

  def call(self, x):
    self.codes.assign(0.9 * self.codes + 0.1 * ops.mean(x, 0))
    return x + self.codes


class Assigning(Net):
  def __init__(self):
    super().__init__()
    self.codebook = Codebook(name="codebook")

  def call(self, x):
    return self.last(self.codebook(self.first(x)))


class OwnLoss(Net):
  def compute_loss(self, x=None, y=None, y_pred=None, *args, **options):
    return ops.mean(ops.square(y_pred - y))


REFUSED = {
  "mixes the examples of a batch": Pairs,
  "calls it 0 times": OwnTape,
  "calls it 2 times": Twice,
  "which is of the whole batch": Closure,
  "normalizes by statistics of the whole batch": Normalized,
  "its forward pass updates variable": Assigning,
  "has a compute_loss of its own": OwnLoss,
}


def fitted(kind, **options):
  keras.utils.set_random_seed(7)
  model = kind()
  model.compile(at.adam(), jit_compile=False)
  tfplace.place_model(
    model, at.local_cluster(), strategy="m_topo", microbatches=2, **options
  )
  model.fit(X, Y, batch_size=8, verbose=0)
  return model


@pytest.mark.parametrize("said", REFUSED)
def test_a_quoted_refusal_is_what_users_see(said):
  with pytest.raises(ExtractionError, match=f"'net' cannot be split: .*{said}"):
    fitted(REFUSED[said])


def test_the_ways_out_of_the_page_are_split():
  assert fitted(Net).placement.microbatches == 2
  allowed = fitted(Normalized, allow_batch_statistics=True)
  assert allowed.placement.microbatches == 2
