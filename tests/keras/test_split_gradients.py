"""A `train_step` of a model's own is split through `split_gradients`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfplace
from tests.testing import placed_models as at
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.errors import ExtractionError
from tfplace.extraction import trace_keras

EXAMPLES, BATCH = 22, 8  # the third batch has 6 examples
RNG = np.random.default_rng(0)
X = RNG.integers(0, 11, size=(EXAMPLES, 7))
Y = RNG.normal(size=(EXAMPLES, 3)).astype("float32")
WEIGHTS = RNG.random(EXAMPLES).astype("float32")


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


class Halved(Net):
  """Changes the gradients before it applies them."""

  def train_step(self, data):
    loss, gradients = tfplace.split_gradients(self, data)
    gradients = [tf.convert_to_tensor(g) for g in gradients]
    norm = ops.sqrt(sum(ops.sum(ops.square(g)) for g in gradients))
    halves = [0.5 * g for g in gradients]
    pairs = zip(halves, self.trainable_weights, strict=True)
    self.optimizer.apply_gradients(pairs)
    return {**self.get_metrics_result(), "total": loss, "norm": norm}


class TwoLosses(Net):
  """Adds terms to `compute_loss`: of outputs, and of weights alone."""

  def __init__(self):
    super().__init__()
    self.size = keras.metrics.Mean(name="size")

  def train_step(self, data):
    def forward(x, y, sample_weight):
      predicted = self(x, training=True)
      loss = self.compute_loss(x, y, predicted, sample_weight)
      self.compute_metrics(x, y, predicted, sample_weight)
      self.size.update_state(ops.abs(predicted))
      last = ops.sum(ops.square(self.last.kernel))  # [8, 3]: 8 is no batch
      return 0.5 * loss + 0.1 * ops.mean(ops.square(predicted)) - last / 100.0

    _, gradients = tfplace.split_gradients(self, data, forward)
    pairs = zip(gradients, self.trainable_weights, strict=True)
    self.optimizer.apply_gradients(pairs)
    return self.get_metrics_result()


class Worst(Net):
  def train_step(self, data):
    def forward(x, y, sample_weight):
      predicted = self(x, training=True)
      return self.compute_loss(x, y, predicted) + ops.max(predicted)

    loss, _ = tfplace.split_gradients(self, data, forward)
    return {"loss": loss}


class Unhelped(Net):
  def train_step(self, data):
    return super().train_step(data)


class Asking(Net):
  """Keras' step, by the helper."""

  def train_step(self, data):
    _, gradients = tfplace.split_gradients(self, data)
    pairs = zip(gradients, self.trainable_weights, strict=True)
    self.optimizer.apply_gradients(pairs)
    return self.get_metrics_result()


def build(kind, optimizer=at.adam):
  keras.utils.set_random_seed(7)
  model = kind()
  model.compile(optimizer(), "mse", metrics=["mae"], jit_compile=False)
  return model


def fitted(model, epochs=7):
  """The history of 21 steps, and the weights at the end."""
  history = model.fit(
    X, Y, sample_weight=WEIGHTS, batch_size=BATCH, epochs=epochs,
    shuffle=False, verbose=0,
  )  # fmt: skip
  return history.history, model.get_weights()


def assert_same(found, expected):
  assert found[0].keys() == expected[0].keys()
  for name, values in expected[0].items():
    np.testing.assert_allclose(found[0][name], values, rtol=1e-5)
  for mine, theirs in zip(found[1], expected[1], strict=True):
    atol = 1e-5 * max(np.abs(theirs).max(), 1e-2)
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol)


def scaling():
  return keras.optimizers.LossScaleOptimizer(
    keras.optimizers.SGD(0.1), initial_scale=64.0, dynamic_growth_steps=4
  )


@pytest.mark.parametrize(
  ("kind", "optimizer"), [(Halved, at.adam), (TwoLosses, scaling)]
)
def test_it_equals_the_unplaced_unsplit_model(kind, optimizer):
  expected = fitted(build(kind, optimizer))
  model = build(kind, optimizer)
  batch = (X[:BATCH], Y[:BATCH], WEIGHTS[:BATCH])
  traced = trace_keras(model, sample=batch, microbatches=MicrobatchConfig(3, 1))
  tfplace.place_model(model, placement=at.random_placement(traced, 0))
  with at.recorded() as ran:
    assert_same(fitted(model), expected)
  assert any(n.name.startswith("microbatch_2/net") for n in ran)


def test_unsplit_it_is_the_step_of_keras():
  assert_same(fitted(build(Asking)), fitted(build(Net)))


def test_the_split_step_is_planned_at_the_first_fit():
  expected = fitted(build(Halved), 1)
  model = tfplace.place_model(
    build(Halved), at.local_cluster(), strategy="m_topo", microbatches=2
  )
  assert_same(fitted(model, 1), expected)
  assert model.placement.microbatches == 2


class Given(Net):
  """Asks with a `forward` that is set from outside."""

  def train_step(self, data):
    def forward(x, y, sample_weight):
      return self.forward(self, x, y)

    loss, gradients = tfplace.split_gradients(self, data, forward)
    pairs = zip(gradients, self.trainable_weights, strict=True)
    self.optimizer.apply_gradients(pairs)
    return {"loss": loss}


def per_example(model, x, y):
  return ops.mean(ops.square(model(x) - y), -1)


def of_no_weight(model, x, y):
  model(x)
  return ops.mean(y)


class AskingOther(Net):
  def train_step(self, data):
    loss, gradients = tfplace.split_gradients(self.other, data)
    pairs = zip(gradients, self.trainable_weights, strict=True)
    self.optimizer.apply_gradients(pairs)
    return {"loss": loss}


WRONG_LOSSES = {
  "None": (lambda *_: None, "returned None; it must return the loss"),
  "a number": (lambda *_: 0.5, r"returned 0.5 \(float\); it must return"),
  "a value": (lambda *_: np.float32(1), r"returned .*1.0.* \(float32\);"),
  "a loss of each example": (
    per_example,
    r"a tensor of shape \(\d,\); .* scalar",
  ),
  "an integer": (lambda *_: tf.constant(1), "a tensor of int32; .* of floats"),
  "of no weight": (of_no_weight, "depends on none of the model's trainable"),
}


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("case", WRONG_LOSSES)
def test_a_forward_that_gives_no_loss_is_refused(case, microbatches):
  forward, said = WRONG_LOSSES[case]
  model = build(Given)
  model.forward = forward
  if microbatches > 1:
    tfplace.place_model(
      model, at.local_cluster(), strategy="cpu", microbatches=microbatches
    )
  with pytest.raises(ExtractionError, match=f"^model 'net': .*{said}"):
    model.fit(X[:BATCH], Y[:BATCH], batch_size=BATCH, verbose=0)


def test_the_gradients_of_another_model_are_refused():
  model, other = build(AskingOther), build(Net)
  other.name = "other"
  _ = model(X), other(X)  # the same numbers of weights
  object.__setattr__(model, "other", other)  # past Keras' tracking
  tfplace.place_model(model, at.local_cluster(), strategy="cpu", microbatches=2)
  said = r"'net' cannot be split: .* with another model, 'other'; give it"
  with pytest.raises(ExtractionError, match=said):
    fitted(model, 1)
  with pytest.raises(ExtractionError, match="'net', which is not compiled"):
    tfplace.split_gradients(Net(), (X, Y))
  with pytest.raises(ExtractionError, match="train_step calls it, self, not 3"):
    tfplace.split_gradients(3, (X, Y))
  with pytest.raises(ExtractionError, match="is 3; it must be a function of x"):
    tfplace.split_gradients(other, (X, Y), 3)


REFUSED = {
  Unhelped: "'net' cannot be split: it has a train_step of its own, which must"
  r" call tfplace.split_gradients\(self, data\) once, and calls it 0 times",
  Worst: "model 'net' cannot be split: the loss mixes the examples of a batch:"
  r" its Max reduces over the examples of the batch \(op 'Max'\)",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_split_says_why(kind):
  model = tfplace.place_model(
    build(kind), at.local_cluster(), strategy="cpu", microbatches=2
  )
  with pytest.raises(ExtractionError, match=REFUSED[kind]):
    fitted(model, 1)


class Forward(Net):
  """A `train_step` around any forward function."""

  def train_step(self, data):
    forward = self.forward(*keras.utils.unpack_x_y_sample_weight(data))
    loss, gradients = tfplace.split_gradients(self, data, forward)
    pairs = zip(gradients, self.trainable_weights, strict=True)
    self.optimizer.apply_gradients(pairs)
    shown = [m for m in self.metrics if m.name == "shown"]
    return {"loss": loss, **{m.name: m.result() for m in shown}}


class Comparing(Forward):
  def forward(self, *_):
    def compared(x, y, sample_weight):
      predicted = self(x, training=True)
      return ops.mean(ops.square(predicted - ops.mean(predicted, axis=0)))

    return compared


class Closure(Forward):
  """Uses the batch of `train_step` in place of its arguments."""

  def forward(self, x, y, sample_weight):
    def closure(*_):
      return self.compute_loss(x, y, self(x, training=True), sample_weight)

    return closure


class HalfClosure(Forward):
  """Uses the targets of `train_step`, of which it takes the mean."""

  def forward(self, x, y, sample_weight):
    def closure(part, *_):
      return ops.mean(ops.square(self(part, training=True) - ops.mean(y)))

    return closure


class Shown(Forward):
  """Shows its loss by a metric of its own."""

  def __init__(self):
    super().__init__()
    self.shown = keras.metrics.Mean(name="shown")

  def forward(self, *_):
    def forward(x, y, sample_weight):
      predicted = self(x, training=True)
      self.compute_metrics(x, y, predicted, sample_weight)
      loss = ops.mean(ops.square(predicted - y))
      self.shown.update_state(loss)
      return loss

    return forward


class Penalized(Forward):
  """Adds a mean over examples to the loss that Keras computes."""

  def forward(self, *_):
    def forward(x, y, sample_weight):
      predicted = self(x, training=True)
      loss = self.compute_loss(x, y, predicted, sample_weight)
      return loss + 0.1 * ops.mean(ops.square(predicted))

    return forward


def test_forward_that_adds_to_the_loss_passes_the_check():
  batch = (X[:BATCH], Y[:BATCH], WEIGHTS[:BATCH])
  plan = tfplace.plan_model(
    build(Penalized), "v100x2", strategy="m_topo", sample=batch, microbatches=2
  )
  assert "checked by numbers" not in str(plan)
  assert "2 microbatches" in plan.message


def split_trace(kind):
  batch = (X[:BATCH], Y[:BATCH], WEIGHTS[:BATCH])
  return trace_keras(
    build(kind), sample=batch, microbatches=MicrobatchConfig(3)
  )


def test_forward_that_compares_examples_is_refused():
  with pytest.raises(ExtractionError, match=r"cannot be split.*examples"):
    split_trace(Comparing)


@pytest.mark.parametrize("kind", [Closure, HalfClosure])
def test_forward_that_uses_the_whole_batch_is_refused(kind):
  with pytest.raises(ExtractionError, match="which is of the whole batch"):
    split_trace(kind)


def test_loss_shown_by_a_metric_is_that_of_the_batch():
  expected = fitted(build(Shown))
  model = build(Shown)
  batch = (X[:BATCH], Y[:BATCH], WEIGHTS[:BATCH])
  traced = trace_keras(model, sample=batch, microbatches=MicrobatchConfig(3, 1))
  tfplace.place_model(model, placement=at.random_placement(traced, 0))
  assert_same(fitted(model), expected)
