"""Costs of this process's devices: one step is run, beside the model."""

import gc
import random
import weakref
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfplace
from tests.testing import placed_models as at
from tfplace.cost.measured_costs import STEP_NOISE
from tfplace.errors import ApplyError, MeasurementError
from tfplace.keras import state
from tfplace.plan import graph_cache, local_step
from tfplace.variants.keras_step import trace_keras
from tfplace.variants.units import lowering

PAIR = at.linked(2, 1e5)


def plan(model, **options):
  options = {"strategy": "m_etf", "budget_s": 1, "batch_size": 64, **options}
  return tfplace.plan_model(model, PAIR, **options)


def _state(model):
  values = {v.path: v.numpy() for v in state.variables(model)}
  return values, np.random.get_state()[1].tolist(), random.getstate()


def test_measuring_changes_neither_model_nor_random_states():
  model = at.build("dropout")  # with dropout, and so with seeds
  at.losses(model, "dropout", 2)
  kinds = {type(v).__name__ for v in state.variables(model)}
  before = _state(model)
  drawn = tf.random.get_global_generator().state.numpy()
  told = plan(
    model, costs="measured", sample=at.batch("dropout"), batch_size=None
  )
  measured = told.measure(steps=2)
  assert measured.source == "measured" and measured.step_time_us > 0
  after = _state(model)
  assert kinds and before[1:] == after[1:]
  assert any("seed" in path for path in before[0])
  assert any("iteration" in path for path in before[0])
  assert before[0].keys() == after[0].keys()
  for path, value in before[0].items():
    np.testing.assert_array_equal(after[0][path], value, err_msg=path)
  np.testing.assert_array_equal(
    tf.random.get_global_generator().state.numpy(), drawn
  )
  # It goes on as one that was never measured.
  other = at.build("dropout")
  at.losses(other, "dropout", 2)
  np.testing.assert_array_equal(
    at.losses(model, "dropout", 3), at.losses(other, "dropout", 3)
  )


def test_a_measured_step_is_kept_and_not_run_again(monkeypatch, tmp_path):
  monkeypatch.setattr(graph_cache, "default_directory", lambda: str(tmp_path))
  # With a loop, whose functions are numbered anew.
  layers = [keras.layers.SimpleRNN(3), keras.layers.Dense(3)]
  model = keras.Sequential([keras.Input((5, 4)), *layers])
  model.compile("sgd", "mse", jit_compile=False)
  first = plan(model, costs="measured")
  assert first.costs == "measured" and "Measured op times" in str(first.notes)

  def fail(*_, **__):
    raise MeasurementError("it was run")

  monkeypatch.setattr(local_step, "_run", fail)
  again = plan(model, costs="measured")
  assert again.costs == "measured"
  assert again.single_device == first.single_device
  noise, kept = (
    each.placement.problem.graph.extra[STEP_NOISE] for each in (first, again)
  )
  assert 0 <= noise == kept
  other = plan(model, costs="measured", batch_size=65)
  assert other.costs == "estimated" and "Estimated op times" in str(other.notes)


@pytest.fixture
def held(monkeypatch):
  """A function that counts the variables whose memory is still held."""
  handles = []

  def recorded(*args, **kwargs):
    new = tf.Variable(*args, **kwargs)
    handles.append(weakref.ref(new.handle))
    return new

  tensorflow = SimpleNamespace(**{**vars(tf), "Variable": recorded})
  monkeypatch.setattr(local_step, "tf", tensorflow)
  monkeypatch.setattr(lowering, "tf", tensorflow)
  gc.collect()
  gc.disable()
  yield lambda: (sum(h() is not None for h in handles), len(handles))
  gc.enable()


def test_the_compiled_step_leaves_no_variables(held):
  traced = trace_keras(at.build("dense"), sample=at.batch("dense"))
  assert local_step.compiled_us(traced, 1) > 0
  left, count = held()
  assert left == 0 and count > 0


@pytest.mark.parametrize("compiles", [True, False])
def test_the_reference_is_compiled_by_xla(compiles):
  def layer(x):
    text = tf.strings.as_string(x)  # XLA has no strings.
    return x * tf.cast(tf.strings.length(text) > 0, x.dtype)

  inputs = keras.Input((4,))
  x = keras.layers.Dense(4)(inputs)
  x = x if compiles else keras.layers.Lambda(layer)(x)
  model = keras.Model(inputs, x)
  model.compile("sgd", "mse", jit_compile=False)
  sample = np.ones((2, 4), np.float32), np.ones((2, 4), np.float32)
  traced = trace_keras(model, sample=sample)
  assert (local_step.compiled_us(traced, 1) is not None) == compiles


def test_units_are_lowered_without_variables_during_the_step(held, monkeypatch):
  model = at.build("dense", compiled=False)
  model.compile(at.sgd(), "mse", jit_compile=True)
  told = plan(model, strategy="metis", compile="xla", costs="estimated")

  class StartedError(Exception):
    """The step starts."""

  def started(*_):
    left, count = held()
    assert left == 0 and count > 0
    raise StartedError

  monkeypatch.setattr(local_step.session, "run_steps", started)
  with pytest.raises(StartedError):
    told.measure(steps=1)


def test_another_visible_gpu_is_measured_anew(monkeypatch):
  # GPU:0 is the first visible GPU, whichever of the host's that is.
  visible = ["A100"]
  monkeypatch.setattr(
    tf.config, "list_physical_devices", lambda _: ["A100", "V100"]
  )
  monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: visible)
  monkeypatch.setattr(
    tf.config.experimental,
    "get_device_details",
    lambda gpu: {"device_name": gpu},
  )
  before = local_step._devices(PAIR)
  visible[0] = "V100"
  assert local_step._devices(PAIR) != before


def test_lack_of_memory_for_the_graph_of_a_step_is_told(monkeypatch):
  model = tfplace.place_model(at.build("dense"), batch_size=at.BATCH)

  def full(*_, **__):
    raise tf.errors.ResourceExhaustedError(None, None, "OOM")

  monkeypatch.setattr(local_step.placed_step, "step_request", full)
  with pytest.raises(MeasurementError, match="could not be run: OOM"):
    model.placement.measure(steps=1)


def test_own_devices_are_measured_and_described_ones_estimated():
  options = {"strategy": "single", "batch_size": at.BATCH}
  model = tfplace.place_model(at.build("dense"), **options)
  assert model.placement.costs == "measured"
  at.losses(model, "dense", 1)
  assert model.placement.measure(steps=1).step_time_us > 0
  model = tfplace.place_model(at.build("dense"), **options, costs="estimated")
  assert model.placement.costs == "estimated"
  assert plan(at.build("dense")).costs == "estimated"


def test_a_step_that_cannot_run_beside_its_model_is_estimated(caplog):
  words = keras.Input((), dtype="string")
  ids = keras.layers.StringLookup(vocabulary=["a", "b"])(words)
  x = keras.layers.Embedding(4, 3)(ids)
  model = keras.Model(words, keras.layers.Dense(1)(x))
  model.compile("sgd", "mse")
  told = plan(model, costs="measured")
  assert told.costs == "estimated"
  assert "estimated costs: " in caplog.text and "table" in caplog.text


def test_what_cannot_be_measured_is_named():
  model = at.build("dense")
  with pytest.raises(ApplyError, match="does not have"):
    tfplace.plan_model(model, "v100x2", costs="measured")
  model = tfplace.place_model(model, placement=at.SPLIT)
  with pytest.raises(ApplyError, match="can be measured"):
    model.placement.measure()
