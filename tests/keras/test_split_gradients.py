"""A `train_step` of a model's own is split through `split_gradients`."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfplace
from tests.testing import placed_models as at
from tfplace.errors import ExtractionError
from tfplace.graph.microbatches import VariantConfig
from tfplace.variants.keras_step import trace_keras

EXAMPLES, BATCH = 22, 8  # the third batch has 6 examples
RNG = np.random.default_rng(0)
X = RNG.integers(0, 11, size=(EXAMPLES, 7))
Y = RNG.normal(size=(EXAMPLES, 3)).astype("float32")
WEIGHTS = RNG.random(EXAMPLES).astype("float32")
ONE_BATCH = X[:BATCH], Y[:BATCH], WEIGHTS[:BATCH]


class Net(keras.Model):
  """Sparse gradients, a regularizer and a loss that a layer adds."""

  def __init__(self):
    super().__init__(name="net")
    self.first = layers.Embedding(11, 5, mask_zero=True, name="first")
    self.pool = layers.GlobalAveragePooling1D()
    self.second = layers.Dense(
      8,
      "tanh",
      name="second",
      kernel_regularizer="l2",
      activity_regularizer="l1",
    )
    self.last = layers.Dense(3, name="last")

  def call(self, x):
    return self.last(self.second(self.pool(self.first(x))))


class Asking(Net):
  """Keras' step, by the helper, with a function of a subclass."""

  cost = None

  def train_step(self, data):
    loss, gradients = tfplace.split_gradients(self, data, self.cost)
    pairs = zip(gradients, self.trainable_weights, strict=True)
    self.optimizer.apply_gradients(pairs)
    if self.cost is None:
      return self.get_metrics_result()
    shown = [m for m in self.metrics if m.name == "shown"]
    return {"loss": loss, **{m.name: m.result() for m in shown}}


class TwoLosses(Asking):
  """Adds terms to `compute_loss`: of outputs, and of weights alone."""

  def __init__(self):
    super().__init__()
    self.shown = keras.metrics.Mean(name="shown")

  def cost(self, x, y, sample_weight):
    predicted = self(x, training=True)
    loss = self.compute_loss(x, y, predicted, sample_weight)
    self.compute_metrics(x, y, predicted, sample_weight)
    self.shown.update_state(ops.abs(predicted))
    last = ops.sum(ops.square(self.last.kernel))  # [8, 3]: 8 is no batch
    return 0.5 * loss + 0.1 * ops.mean(ops.square(predicted)) - last / 100.0


class ByNumber(Asking):
  """Divides sums by the number of examples."""

  def cost(self, x, y, sample_weight):
    predicted = self(x, training=True)
    loss = self.compute_loss(x, y, predicted, sample_weight)
    self.compute_metrics(x, y, predicted, sample_weight)
    examples = ops.cast(ops.shape(y)[0], loss.dtype)
    error = ops.sum(ops.square(predicted - y))
    return loss - (error + 0.1 * ops.sum(predicted) + loss) / examples / 4.0


def build(kind, optimizer=at.adam):
  keras.utils.set_random_seed(7)
  model = kind()
  model.compile(optimizer(), "mse", metrics=["mae"], jit_compile=False)
  return model


def fitted(model, epochs=3):
  """The history, and the weights at the end."""
  history = model.fit(
    X, Y, sample_weight=WEIGHTS, batch_size=BATCH, epochs=epochs,
    shuffle=False, verbose=0,
  )  # fmt: skip
  return history.history, model.get_weights()


def scaling():
  return keras.optimizers.LossScaleOptimizer(
    keras.optimizers.SGD(0.1), initial_scale=64.0, dynamic_growth_steps=4
  )


@pytest.mark.parametrize("kind", [TwoLosses, ByNumber])
def test_it_equals_the_unplaced_unsplit_model(kind):
  expected = fitted(build(kind, scaling))
  model = build(kind, scaling)
  config = VariantConfig(3, 1)
  traced = trace_keras(model, sample=ONE_BATCH, microbatches=config)
  tfplace.place_model(model, placement=at.random_placement(traced))
  with at.recorded() as ran:
    at.assert_same(fitted(model), expected)
  assert any(n.name.startswith("microbatch_2/net") for n in ran)


def test_unsplit_it_is_the_step_of_keras():
  at.assert_same(fitted(build(Asking)), fitted(build(Net)))


def with_cost(cost):
  """A model whose step splits the gradients of a function."""
  return functools.partial(type("Given", (Asking,), {"cost": cost}))


def squares(model, x, y):
  return ops.square(model(x, training=True) - y)


def of_no_weight(self, x, y, _):
  self(x)
  return ops.mean(y)


@pytest.mark.parametrize(
  ("cost", "said"),
  [
    (lambda *_: None, "returned None; it must return the loss"),
    (lambda self, x, y, _: ops.mean(squares(self, x, y), -1), "scalar tensor"),
    (lambda *_: tf.constant(1), "int32.*; it must .* tensor of floats"),
    (of_no_weight, "depends on none of the model's trainable"),
  ],
)
def test_a_forward_that_gives_no_loss_is_refused(cost, said):
  model = build(with_cost(cost))
  with pytest.raises(ExtractionError, match=f"(?s)^model 'net': .*{said}"):
    model.fit(*ONE_BATCH[:2], batch_size=BATCH, verbose=0)


class AskingOther(Net):
  def train_step(self, data):
    loss, _ = tfplace.split_gradients(self.other, data)
    return {"loss": loss}


def test_the_gradients_of_another_model_are_refused():
  model, other = build(AskingOther), build(Net)
  other.name = "other"
  _ = model(X), other(X)  # the same numbers of weights
  object.__setattr__(model, "other", other)  # past Keras' tracking
  tfplace.place_model(model, at.local_cluster(), strategy="cpu", microbatches=2)
  said = r"'net' cannot be split: .* with another model, 'other'; give it"
  with pytest.raises(ExtractionError, match=said):
    fitted(model, 1)


class OwnTape(Net):
  def train_step(self, data):
    return super().train_step(data)


class Twice(Net):
  def train_step(self, data):
    tfplace.split_gradients(self, data)
    tfplace.split_gradients(self, data)
    return self.get_metrics_result()


class Closure(Net):
  """Takes the mean of the targets of `train_step`."""

  def train_step(self, data):
    _, y, _ = data

    def closure(x, *_):
      return ops.mean(squares(self, x, ops.mean(y)))

    return {"loss": tfplace.split_gradients(self, data, closure)[0]}


class Normalized(Asking):
  def __init__(self):
    super().__init__()
    self.norm = layers.BatchNormalization(name="norm")

  def call(self, x):
    return self.last(self.norm(self.second(self.pool(self.first(x)))))


class Codebook(layers.Layer):
  def build(self, shape):
    self.codes = self.add_weight(shape=shape[1:], trainable=False)

  def call(self, x):
    self.codes.assign(0.9 * self.codes + 0.1 * ops.mean(x, 0))
    return x + self.codes


class Assigning(Asking):
  def __init__(self):
    super().__init__()
    self.second = Codebook(name="codebook")


class OwnLoss(Asking):
  def compute_loss(self, x=None, y=None, y_pred=None, *args, **options):
    return ops.mean(ops.square(y_pred - y))


def worst(self, x, y, _):
  return self.compute_loss(x, y, self(x)) + ops.max(self(x))


# docs/custom_loops.md quotes these messages.
REFUSED = [
  (
    "the loss mixes the examples of a batch: its Max reduces over the examples"
    r" of the batch \(op 'Max'\)",
    with_cost(worst),
  ),
  ("calls it 0 times", OwnTape),
  ("calls it 2 times", Twice),
  ("which is of the whole batch", Closure),
  ("normalizes by statistics of the whole batch", Normalized),
  ("its forward pass updates variable", Assigning),
  ("has a compute_loss of its own", OwnLoss),
]


@pytest.mark.parametrize(("said", "kind"), REFUSED)
def test_what_cannot_be_split_says_why(said, kind):
  config = VariantConfig(2)
  with pytest.raises(ExtractionError, match=f"'net' cannot be split: .*{said}"):
    trace_keras(build(kind), sample=ONE_BATCH, microbatches=config)
