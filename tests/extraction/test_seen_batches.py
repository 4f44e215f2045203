"""Shapes of models that were fitted, called, built or described."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfplace.errors import ExtractionError
from tfplace.extraction.keras_inputs import batch_spec
from tfplace.graph.given_batch import GivenBatch
from tfplace.variants.keras_step import trace_keras

LENGTH, BATCH = 7, 4
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 5, (2 * BATCH, LENGTH)).astype(np.int32)
MASK = np.ones_like(TOKENS)
LABELS = RNG.integers(0, 3, 2 * BATCH)


def token_model():
  """Like BERT: named inputs, each with an open length."""
  tokens = keras.Input((None,), dtype="int32", name="token_ids")
  mask = keras.Input((None,), dtype="int32", name="padding_mask")
  x = layers.Embedding(5, 6)(tokens)
  x = layers.Multiply()([x, layers.Reshape((-1, 1))(mask)])
  x = layers.Dense(3)(layers.GlobalAveragePooling1D()(x))
  model = keras.Model({"token_ids": tokens, "padding_mask": mask}, x)
  model.compile(
    "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  )
  return model


def token_batch():
  return {"token_ids": TOKENS, "padding_mask": MASK}


@keras.saving.register_keras_serializable("tests")
class Encoder(keras.Model):
  """A subclassed model whose own step takes inputs without targets."""

  def __init__(self, **options):
    super().__init__(**options)
    self.inner = layers.Dense(2)
    self.outer = layers.Dense(6)

  def call(self, x):
    return self.outer(self.inner(x))

  def train_step(self, data):
    x = data[0] if isinstance(data, tuple) else data
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean((self(x) - x) ** 2)
    weights = self.trainable_variables
    self.optimizer.apply(tape.gradient(loss, weights), weights)
    return {"loss": loss}


def shapes(spec):
  return [tuple(s.shape) for s in tf.nest.flatten(spec.structure)]


def test_open_lengths_are_those_of_the_fit():
  model = token_model()
  model.fit(token_batch(), LABELS, batch_size=BATCH, verbose=0)
  spec = batch_spec(model, BATCH, "train", None)
  x, y = spec.structure
  assert x["token_ids"].shape == x["padding_mask"].shape == (BATCH, LENGTH)
  assert x["token_ids"].dtype == tf.int32
  assert y.shape == (BATCH,)
  traced = trace_keras(model, BATCH)
  feeds = {tuple(feed.shape) for feed in traced.feeds.values()}
  assert feeds == {(BATCH, LENGTH), (BATCH,)}


@pytest.mark.parametrize(("steps", "jit_compile"), [(1, True), (2, False)])
def test_every_kind_of_step_function_is_read(steps, jit_compile):
  model = token_model()
  model.compile(
    "sgd",
    "sparse_categorical_crossentropy",
    steps_per_execution=steps,
    jit_compile=jit_compile,
  )
  model.fit(token_batch(), LABELS, batch_size=BATCH, verbose=0)
  assert shapes(batch_spec(model, 3, "train", None)) == [
    *[(3, LENGTH)] * 2,
    (3,),
  ]


def test_prediction_and_evaluation_tell_the_inputs():
  model = token_model()
  model.predict(token_batch(), batch_size=BATCH, verbose=0)
  assert shapes(batch_spec(model, 3, "predict", None)) == [(3, LENGTH)] * 2
  model = token_model()
  model.evaluate(token_batch(), LABELS, batch_size=BATCH, verbose=0)
  assert len(shapes(batch_spec(model, 3, "train", None))) == 3
  assert shapes(batch_spec(model, 3, "predict", None)) == [(3, LENGTH)] * 2


def test_an_own_step_gets_the_data_it_was_fitted_with():
  model = Encoder(name="own")
  model.compile("sgd")
  x = RNG.random((8, 6), np.float32)
  model.fit(x, batch_size=4, verbose=0)
  traced = trace_keras(model, 4)
  assert [tuple(f.shape) for f in traced.feeds.values()] == [(4, 6)]


def test_a_called_or_loaded_subclassed_model_knows_its_inputs(tmp_path):
  model = Encoder(name="own")
  model(np.zeros((2, 6), np.float32))
  assert shapes(batch_spec(model, 4, "predict", None)) == [(4, 6)]
  model.save(tmp_path / "m.keras")
  again = keras.saving.load_model(tmp_path / "m.keras", compile=False)
  assert shapes(batch_spec(again, 4, "predict", None)) == [(4, 6)]


def test_what_is_unknown_is_told_with_the_line_to_type():
  with pytest.raises(ExtractionError) as told:
    batch_spec(token_model(), None, "train", None)
  says = str(told.value)
  assert "'token_ids' (None, None)" in says
  assert "--input_shapes=" in says and "token_ids:32x128" in says


def test_a_file_of_arrays_is_the_batch(tmp_path):
  path = str(tmp_path / "batch.npz")
  arrays = {name: value[:BATCH] for name, value in token_batch().items()}
  np.savez(path, y=LABELS[:BATCH], **arrays)
  spec = batch_spec(token_model(), None, "train", GivenBatch(path=path))
  assert shapes(spec) == [(BATCH, LENGTH), (BATCH, LENGTH), (BATCH,)]
  assert any(
    value is not None and np.array_equal(value, TOKENS[:BATCH])
    for value in spec.values
  )
  np.savez(path, x=np.zeros((BATCH, 6), np.float32))
  model = Encoder(name="own")
  model.compile("sgd")
  spec = batch_spec(model, None, "train", GivenBatch(path=path))
  assert shapes(spec) == [(BATCH, 6)]


def test_a_damaged_file_is_named(tmp_path):
  path = tmp_path / "batch.npz"
  path.write_bytes(b"no arrays")
  with pytest.raises(ExtractionError, match=r"batch\.npz' is no .npz file"):
    batch_spec(token_model(), None, "train", GivenBatch(path=str(path)))
