"""A traced Keras step is the step that Keras runs."""

import warnings

import keras
import numpy as np
import pytest

from tests.testing.traced_steps import run_steps
from tfplace.errors import ExtractionError
from tfplace.extraction.traced import feed_values
from tfplace.variants import keras_step

BATCH = 4
STEPS = 5
LAYERS = keras.layers


def _dense():
  return [LAYERS.Dense(16, activation="relu"), LAYERS.Dense(3)]


def _normalised():
  return [
    LAYERS.Dense(16, activation="relu"),
    LAYERS.BatchNormalization(),
    LAYERS.Dropout(0.5, seed=3),
    LAYERS.Dense(3),
  ]


def _recurrent():
  return [LAYERS.Reshape((4, 2)), LAYERS.LSTM(5), LAYERS.Dense(3)]


def _model(layers, optimizer="adam", metrics=("accuracy",)):
  keras.utils.set_random_seed(0)
  model = keras.Sequential([keras.Input((8,)), *layers()])
  model.compile(
    optimizer,
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=list(metrics),
    jit_compile=False,
  )
  return model


def _batches():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(STEPS, BATCH, 8)).astype("float32")
  return list(zip(x, rng.integers(0, 3, (STEPS, BATCH), "int32"), strict=True))


def _keras_losses(model):
  losses = []
  for x, y in _batches():
    model.reset_metrics()
    result = model.train_on_batch(x, y)
    losses.append(result[0] if isinstance(result, list) else result)
  return losses


def _session_losses(traced):
  tensors = [feed.tensor for feed in traced.feeds.values()]
  feeds = [dict(zip(tensors, b, strict=True)) for b in _batches()]
  return [fetched[0] for fetched in run_steps(traced, feeds)]


@pytest.mark.parametrize(
  ("layers", "optimizer"),
  [(_normalised, "rmsprop"), (_recurrent, "adam")],
)
def test_session_steps_reproduce_keras_losses(layers, optimizer):
  traced = keras_step.trace_keras(_model(layers, optimizer), BATCH)
  mine = _session_losses(traced)
  theirs = _keras_losses(_model(layers, optimizer))
  np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
  assert len(set(theirs)) == STEPS  # the weights did change


def test_ops_have_the_names_that_fit_gives_them():
  import tensorflow as tf

  model = _model(_normalised)
  traced = keras_step.trace_keras(model, BATCH)
  graphs = []
  step = model.train_step

  def recording(data):
    graphs.append(tf.compat.v1.get_default_graph())
    return step(data)

  object.__setattr__(model, "train_step", recording)
  x, y = _batches()[0]
  model.fit(x, y, batch_size=BATCH, verbose=0)
  fit = {op.name: op.type for op in graphs[-1].get_operations()}
  mine = {n.name: n.op for n in traced.graph_def.node if n.op != "VarHandleOp"}
  assert {name: fit.get(name) for name in mine} == mine


def test_variables_are_named_by_their_keras_paths():
  model = _model(_dense)
  traced = keras_step.trace_keras(model, BATCH)
  for variable in model.variables + model.optimizer.variables:
    spec = traced.variables[variable.path]
    assert spec.shape == tuple(variable.shape)
    np.testing.assert_array_equal(spec.value, variable.numpy())
  handles = [n for n in traced.graph_def.node if n.op == "VarHandleOp"]
  assert {n.name for n in handles} == set(traced.variables)
  shared = {n.attr["shared_name"].s for n in handles}
  assert len(shared) == len(handles)


def test_inference_gives_what_predict_gives():
  model = _model(_normalised)
  traced = keras_step.trace_keras(model, BATCH, kind="predict")
  x = _batches()[0][0]
  (feed,) = traced.feeds.values()
  [[output]] = run_steps(traced, [{feed.tensor: x}])
  np.testing.assert_allclose(output, model.predict_on_batch(x), rtol=1e-5)
  assert not any("gradient" in n.name for n in traced.graph_def.node)


def test_a_subclassed_model_needs_a_sample_and_takes_it():
  class Plain(keras.Model):
    def __init__(self):
      super().__init__()
      self.dense = LAYERS.Dense(2)

    def call(self, x):
      return self.dense(x)

  model = Plain()
  model.compile("sgd", "mse", jit_compile=False)
  with pytest.raises(ExtractionError, match="sample"):
    keras_step.trace_keras(model, 4)
  x, y = np.ones((4, 3)), np.zeros((4, 2))
  traced = keras_step.trace_keras(model, sample=(x, y))
  values = [f.value for f in traced.feeds.values()]
  np.testing.assert_array_equal(values[0], x.astype("float32"))
  [fetched] = run_steps(traced, [feed_values(traced)])
  assert fetched[0] == pytest.approx(np.mean(model(x).numpy() ** 2), rel=1e-5)


def test_sample_weights_weigh_the_loss():
  model = _model(_dense, "sgd", metrics=())
  x, y = _batches()[0]
  weight = np.array([0.0, 1.0, 2.0, 3.0])
  traced = keras_step.trace_keras(model, sample=(x, y, weight))
  assert len(traced.feeds) == 3
  [fetched] = run_steps(traced, [feed_values(traced)])
  expected = model.test_on_batch(x, y, sample_weight=weight)
  assert fetched[0] == pytest.approx(expected, rel=1e-5)


def test_a_sample_of_inputs_takes_its_targets_from_the_loss():
  traced = keras_step.trace_keras(_model(_dense), sample=np.ones((2, 8)))
  assert [f.shape for f in traced.feeds.values()] == [(2, 8), (2,)]
  assert [f.value is None for f in traced.feeds.values()] == [False, True]


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_model_file_gives_the_model_s_step(tmp_path, suffix):
  model = _model(_dense)
  path = tmp_path / f"model{suffix}"
  model.save(path)
  with warnings.catch_warnings():  # of optimizers that are not built yet
    warnings.simplefilter("error", UserWarning)
    traced = keras_step.trace_keras_file(path, BATCH)
  np.testing.assert_allclose(
    _session_losses(traced), _keras_losses(model), rtol=1e-5
  )


def test_what_cannot_be_traced_is_refused_by_its_reason(tmp_path):
  plain = keras.Sequential([keras.Input((8,)), LAYERS.Dense(3)])
  with pytest.raises(ExtractionError, match="compile"):
    keras_step.trace_keras(plain, BATCH)
  words = keras.Input((None, 3), name="words")
  model = keras.Model(words, LAYERS.LSTM(2)(words))
  model.compile("sgd", "mse")
  with pytest.raises(ExtractionError, match="'words'"):
    keras_step.trace_keras(model, BATCH)
  with pytest.raises(ExtractionError, match="batch size 0"):
    keras_step.trace_keras(_model(_dense), 0)
  with pytest.raises(ExtractionError, match=r"absent\.keras"):
    keras_step.trace_keras_file(tmp_path / "absent.keras")
  for name in ("microbatch_1", "recompute_0"):
    model = keras.Sequential([keras.Input((4,)), LAYERS.Dense(2)], name=name)
    model.compile("sgd", "mse")
    with pytest.raises(ExtractionError, match=f"model '{name}' .* rename it"):
      keras_step.trace_keras(model)
