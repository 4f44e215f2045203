"""Comparing a microbatched step with the whole one by numbers."""

import re
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfplace
from tests.testing.microbatched import Own
from tests.testing.traced_steps import run_steps
from tfplace import cost
from tfplace.errors import ExtractionError
from tfplace.extraction.traced import feed_values
from tfplace.graph.microbatches import VariantConfig
from tfplace.keras import steps
from tfplace.plan import comparable, numeric_check
from tfplace.variants.keras_step import trace_keras
from tfplace.variants.microbatches import microbatch
from tfplace.variants.microbatches.examine import Findings

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 6)).astype("float32")
Y = RNG.normal(size=(8, 3)).astype("float32")
TOKENS = RNG.integers(0, 11, size=(8, 5)).astype("int32")


def dense(function=lambda h: h, loss="mse", metrics=(), optimizer="sgd"):
  keras.utils.set_random_seed(0)
  model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(8), Own(function), layers.Dense(3)]
  )
  model.compile(optimizer, loss, metrics=list(metrics), jit_compile=False)
  return model


class Positions(layers.Layer):
  def __init__(self):
    super().__init__()
    self.table = layers.Embedding(5, 8)

  def build(self, shape):
    self.table.build((None,))
    self.built = True

  def call(self, x):
    return x + self.table(ops.arange(5))


def transformer(optimizer="adam"):
  """Dropout, and keys whose biases have gradients that are rounding alone."""
  keras.utils.set_random_seed(0)
  tokens = keras.Input((5,), dtype="int32")
  x = Positions()(layers.Embedding(11, 8)(tokens))
  x = x + layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x)
  x = layers.Dropout(0.6)(layers.LayerNormalization()(x))
  model = keras.Model(tokens, layers.Dense(3)(layers.Flatten()(x)))
  model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
  return model


def convolutions():
  model = keras.Sequential(
    [
      keras.Input((6,)),
      layers.Reshape((3, 2, 1)),
      layers.Conv2D(4, 2, padding="same", activation="relu"),
      layers.GroupNormalization(2),
      layers.MaxPooling2D((2, 1)),
      layers.Flatten(),
      layers.Dense(3, dtype="float32"),
    ]
  )
  model.compile("sgd", "mse", metrics=["mae"], jit_compile=False)
  return model


@pytest.fixture
def mixed():
  """Half precision as the dtype policy of new layers."""
  keras.config.set_dtype_policy("mixed_float16")
  yield
  keras.config.set_dtype_policy("float32")


def checked(model, x, microbatches=4):
  whole = trace_keras(model, sample=(x, Y))
  divided = trace_keras(
    model, sample=(x, Y), microbatches=VariantConfig(microbatches)
  )
  return numeric_check.check_equal(whole, divided)


class All(dict):
  """All lookups are of the batch."""

  def __contains__(self, name):
    return True

  def __getitem__(self, name):
    return True


@pytest.fixture
def unexamined(monkeypatch):
  """Splits whatever is asked for, as if the analysis knew nothing."""

  def examine(*_):
    return Findings(("mean",) * 9, frozenset(), frozenset(), All())

  monkeypatch.setattr(microbatch, "examine", examine)


CORRECT = {
  "convolutions": (convolutions, X, 3),
  "transformer": (transformer, TOKENS, 4),
}


@pytest.mark.parametrize("name", CORRECT)
def test_exact_split_passes_in_mixed_precision(name, mixed):
  build, x, microbatches = CORRECT[name]
  keras.utils.set_random_seed(0)
  assert checked(build(), x, microbatches) > 0


def test_the_host_compares_a_step_for_gpus(monkeypatch):
  # In TF32, steps differ by more than the tolerance. Without GPUs in the
  # session, ops of the user's device scopes are on the host, too.
  def on_gpu(h):
    with tf.device("GPU:1"):
      return tf.tanh(h)

  session, seen = tf.compat.v1.Session, []

  def opened(graph, config):
    seen.append(dict(config.device_count))
    return session(graph=graph, config=config)

  monkeypatch.setattr(tf.compat.v1, "Session", opened)
  assert checked(dense(on_gpu), X) > 0
  assert seen == [{"GPU": 0}] * 2


def test_half_precision_is_compared_in_single_precision(mixed):
  build, x, _ = CORRECT["convolutions"]
  half = build()
  keras.config.set_dtype_policy("float32")
  single = build()
  single.set_weights(half.get_weights())
  traced = trace_keras(half, sample=(x, Y))
  expected = comparable.comparable(trace_keras(single, sample=(x, Y)))
  assert comparable.uses_half(traced)
  traced = comparable.comparable(traced)
  assert not comparable.uses_half(traced)
  ((found, *_),) = run_steps(traced, [feed_values(traced)])
  ((loss, *_),) = run_steps(expected, [feed_values(expected)])
  # Constants of the model keep the rounding of their half precision.
  np.testing.assert_allclose(found, loss, rtol=1e-4)


def contrastive(y, predicted):
  logits = ops.matmul(predicted, ops.transpose(predicted))
  numbers = ops.arange(ops.shape(predicted)[0])
  return ops.sparse_categorical_crossentropy(numbers, logits, from_logits=True)


WRONG = {
  "mean": lambda: dense(lambda h: h - ops.mean(h, axis=0)),
  "first": lambda: dense(lambda h: h + h[:1]),
  "contrastive": lambda: dense(loss=contrastive),
  "adam": lambda: dense(lambda h: ops.cumsum(h, axis=0), optimizer="adam"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mixed_examples_are_found(name, unexamined):
  with pytest.raises(ExtractionError, match="does not compute what the whole"):
    checked(WRONG[name](), X)


def root(y, predicted):
  return ops.sqrt(ops.mean(ops.square(y - ops.cast(predicted, y.dtype))))


def test_parts_are_found_in_mixed_precision(mixed, unexamined):
  for model, x in (
    (transformer("rmsprop"), TOKENS),
    (dense(metrics=[root]), X),
  ):
    with pytest.raises(ExtractionError, match=r"the update of '"):
      checked(model, x)


def _pooled(shift=1.0):
  """Means of the tokens that are not masked, NaN if all are."""
  tokens = keras.Input((3,), dtype="int32")
  x = layers.Embedding(11, 8, mask_zero=True)(tokens)
  x = layers.GlobalAveragePooling1D()(x)
  model = keras.Model(tokens, layers.Dense(3)(ops.sqrt(x * x + shift)))
  model.compile("sgd", "mse", jit_compile=False)
  return model


def test_no_row_of_synthetic_tokens_is_all_masked():
  assert checked(_pooled(), np.zeros((8, 3), np.int32), 2) > 0


def test_a_loss_that_is_not_finite_is_told():
  with pytest.raises(ExtractionError, match="is nan on the batch of the check"):
    checked(_pooled(shift=float("nan")), TOKENS[:, :3], 2)


def test_plan_that_fails_the_check_is_refused(unexamined):
  model = WRONG["mean"]()
  options = {"microbatches": 2, "budget_s": 0.5, "sample": (X, Y)}
  with pytest.raises(ExtractionError, match="does: its loss") as caught:
    tfplace.plan_model(model, "v100x2", **options)
  assert "microbatches=1" in str(caught.value)
  assert "check=False" not in str(caught.value)  # The numbers differ.
  plan = tfplace.plan_model(model, "v100x2", check=False, **options)
  assert "checking" not in plan.seconds


def test_step_too_large_for_this_host_is_not_run(monkeypatch):
  divided = trace_keras(dense(), sample=(X, Y), microbatches=VariantConfig(2))
  graph = cost.op_graph(divided, tfplace.cluster_preset("v100x2"))
  assert numeric_check.skip_reason(graph, divided) == ""
  monkeypatch.setattr(numeric_check, "_MEMORY_SHARE", 0.0)
  assert "GiB" in numeric_check.skip_reason(graph, divided)
  monkeypatch.setattr(numeric_check, "_MOST_SECONDS", 0.0)
  assert "would take about" in numeric_check.skip_reason(graph, divided)


def test_step_with_a_lookup_table_is_planned_unchecked():
  model = keras.Sequential(
    [
      keras.Input((5,), dtype="int32"),
      layers.IntegerLookup(vocabulary=[1, 2, 3]),
      layers.Embedding(5, 3),
      layers.Flatten(),
      layers.Dense(3),
    ]
  )
  model.compile("adam", "mse", jit_compile=False)
  plan = tfplace.plan_model(
    model, "v100x2", strategy="m_topo", batch_size=8, microbatches=2
  )
  (note,) = [n for n in plan.notes if n.startswith("Not checked by numbers")]
  assert re.search(r"layer 'integer_lookup\w*' uses a lookup table", note)


def test_threads_leave_losses_of_keras_as_they_were():
  utils = keras.src.losses.loss
  kept = utils.reduce_values, utils.apply_mask
  fit = {"batch_size": 4, "verbose": 0, "shuffle": False}
  expected = dense().fit(X, Y, **fit).history["loss"]
  results, models = {}, [dense() for _ in range(3)]

  def placed(number):
    options = {"strategy": "m_topo", "costs": "estimated"}
    model = tfplace.place_model(models[number], microbatches=2, **options)
    results[number] = model.fit(X, Y, **fit).history["loss"]

  threads = [threading.Thread(target=placed, args=(n,)) for n in range(3)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  for number in range(3):
    np.testing.assert_allclose(results[number], expected, rtol=1e-5)
  assert kept == (utils.reduce_values, utils.apply_mask)
  after = dense().fit(X, Y, **fit).history["loss"]
  np.testing.assert_allclose(after, expected, rtol=1e-6)


def test_steps_that_take_long_are_checked_with_fewer_examples(monkeypatch):
  monkeypatch.setattr(steps, "_RUNS", 1e9)  # as if tracing took no time
  found = []
  real = steps.check_equal

  def recorded(whole, divided):
    found.append((whole.batch_size, divided.batch_size))
    return real(whole, divided)

  monkeypatch.setattr(steps, "check_equal", recorded)
  options = {"strategy": "m_topo", "batch_size": 2048, "budget_s": 0.1}
  wide = [layers.Dense(512, activation="tanh") for _ in range(3)]
  model = keras.Sequential([keras.Input((512,)), *wide])
  model.compile("adam", "mse", jit_compile=False)
  sizes = [1024, 512, 256, 256]
  plan = tfplace.plan_model(model, "v100x2", microbatches=sizes, **options)
  ((whole, divided),) = found
  assert 16 <= whole == divided < 2048  # The smallest part keeps two examples.
  assert f"Checked by numbers with {whole:,} of 2,048 examples." in plan.notes
