import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfplace
from tests.testing import placed_models as at
from tfplace.errors import ApplyError

FULL = at.LOCAL + "CPU:"


def _placed(kind="dense", **options):
  return tfplace.place_model(at.build(kind, **options), placement=at.SPLIT)


def test_fit_evaluate_and_predict_equal_the_unplaced_model():
  x, y = at.batch("conv_norm")
  results = []
  for model in (at.build("conv_norm"), _placed("conv_norm")):
    history = model.fit(x, y, batch_size=4, epochs=2, verbose=0, shuffle=False)
    scores = model.evaluate(x, y, verbose=0)
    results.append(
      (history.history["loss"], scores, model.predict(x, verbose=0))
    )
  for expected, got in zip(*results, strict=True):
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_a_partial_batch_and_validation_data_work():
  x, y = at.batch("dropout")
  options = {"batch_size": 3, "epochs": 2, "verbose": 0, "shuffle": False}
  histories = [
    model.fit(x, y, validation_data=(x, y), **options).history
    for model in (at.build("dropout"), _placed("dropout"))
  ]
  for key, expected in histories[0].items():
    np.testing.assert_allclose(histories[1][key], expected, atol=1e-5)


def test_steps_per_execution_works():
  x, y = at.batch("dense")
  options = {"batch_size": 2, "epochs": 2, "verbose": 0, "shuffle": False}
  unplaced = at.build("dense", steps_per_execution=2)
  expected = unplaced.fit(x, y, **options).history["loss"]
  model = _placed(steps_per_execution=2)
  with at.recorded() as ran:
    got = model.fit(x, y, **options).history["loss"]
  np.testing.assert_allclose(got, expected, atol=1e-5)
  assert {"CPU:1", "CPU:2"} <= {node.device for node in ran}


def test_predict_runs_where_the_plan_says_and_before_any_fit():
  model = _placed()
  with at.recorded() as ran:
    got = model.predict(at.batch("dense")[0], verbose=0)
  # Grappler fuses each layer into one op, named after its activation.
  assert at.devices_of(ran, "second", "Tanh") == {"CPU:2"}
  expected = at.build("dense").predict(at.batch("dense")[0], verbose=0)
  np.testing.assert_allclose(got, expected, atol=1e-6)
  model.fit(*at.batch("dense"), verbose=0)


def test_a_later_compile_stays_placed_and_without_xla():
  model = _placed()
  at.losses(model, "dense", 2)
  with pytest.warns(UserWarning, match="jit_compile"):
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=True)
  assert model.jit_compile is False
  with at.recorded() as ran:
    loss = [model.train_on_batch(*at.batch("dense")) for _ in range(5)]
  assert loss[-1] < loss[0]
  assert at.devices_of(ran, "second") == {"CPU:2"}
  slot = model.optimizer.variables[2]
  assert slot.value.device == at.LOCAL + "CPU:1"


def test_xla_is_off_even_where_keras_would_choose_it(monkeypatch):
  # On a host without a GPU "auto" is False: let Keras see one.
  gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
  listed = [*tf.config.list_physical_devices(), gpu]
  model = at.build("dense", compiled=False)
  other = at.build("dense", compiled=False)
  monkeypatch.setattr(
    tf.config, "list_physical_devices", lambda kind=None: listed
  )
  other.compile("sgd", "mse")
  assert other.jit_compile is True
  placed = tfplace.place_model(other, placement=at.SPLIT)
  assert placed.jit_compile is False
  model = tfplace.place_model(model, placement=at.SPLIT)
  model.compile("sgd", "mse")
  assert model.jit_compile is False


@pytest.mark.parametrize("kind", ["conv_norm", "two_inputs"])
def test_a_saved_file_loads_as_an_ordinary_model_and_goes_on(kind, tmp_path):
  model = _placed(kind)
  at.losses(model, kind, 5)
  model.save(tmp_path / "m.keras")
  loaded = keras.models.load_model(tmp_path / "m.keras")
  expected = at.losses(model, kind, 5)
  with at.recorded() as ran:
    got = at.losses(loaded, kind, 5)
  np.testing.assert_allclose(got, expected, atol=1e-5)
  assert {node.device for node in ran} == {"CPU:0"}
  assert not hasattr(loaded, "placement")


def test_weights_files_and_export_work(tmp_path):
  model = _placed()
  model.save_weights(tmp_path / "m.weights.h5")
  expected = model.predict(at.batch("dense")[0], verbose=0)
  at.losses(model, "dense", 3)
  model.load_weights(tmp_path / "m.weights.h5")
  got = model.predict(at.batch("dense")[0], verbose=0)
  np.testing.assert_allclose(got, expected, atol=1e-6)
  model.export(tmp_path / "exported", verbose=False)
  served = tf.saved_model.load(str(tmp_path / "exported"))
  np.testing.assert_allclose(
    served.serve(at.batch("dense")[0]), expected, atol=1e-6
  )


def test_a_saved_subclassed_model_predicts_the_same(tmp_path):
  model = _placed("subclassed")
  at.losses(model, "subclassed", 5)
  model.save(tmp_path / "m.keras")
  loaded = keras.models.load_model(tmp_path / "m.keras")
  x, _ = at.batch("subclassed")
  expected = model.predict(x, verbose=0)
  np.testing.assert_allclose(loaded.predict(x, verbose=0), expected, atol=1e-6)
  assert int(loaded.optimizer.iterations) == 5


def test_class_config_and_clone_stay_as_they_were():
  model = at.build("dense")
  config = model.get_config()
  tfplace.place_model(model, placement=at.SPLIT)
  assert type(model) is keras.Sequential
  assert model.get_config() == config
  assert not hasattr(keras.models.clone_model(model), "placement")


def test_a_model_that_is_not_built_is_placed_at_its_first_fit():
  expected = at.unplaced("subclassed")
  model = at.build("subclassed")
  assert not model.built
  tfplace.place_model(model, placement=at.SPLIT)
  with at.recorded() as ran:
    got = at.losses(model, "subclassed")
  np.testing.assert_allclose(got, expected, atol=1e-5)
  assert at.devices_of(ran, "first") == {"CPU:1"}
  assert model.first.kernel.value.device == at.LOCAL + "CPU:1"


def _compiled_eagerly(model):
  model.compile(at.sgd(), "mse", run_eagerly=True)


def _set_eager(model):
  model.run_eagerly = True


def _functions_eager(model):
  del model
  tf.config.run_functions_eagerly(True)


EAGER = {
  "run_eagerly=True": _compiled_eagerly,
  "run_eagerly=True is set": _set_eager,
  "run_functions_eagerly": _functions_eager,
}


@pytest.fixture
def functions_as_graphs():
  yield
  tf.config.run_functions_eagerly(False)


@pytest.mark.usefixtures("functions_as_graphs")
@pytest.mark.parametrize("said", EAGER)
def test_what_runs_eagerly_is_refused_when_placed_and_when_run(said):
  model = at.build("dense")
  EAGER[said](model)
  with pytest.raises(ApplyError, match=f"'net' cannot be placed.*{said}"):
    tfplace.place_model(model, placement=at.SPLIT)
  assert not hasattr(model, "placement")
  x, y = at.batch("dense")
  for use in ("fit", "evaluate", "train_on_batch"):
    tf.config.run_functions_eagerly(False)
    model = _placed()
    EAGER[said](model)
    with pytest.raises(ApplyError, match=f"'net' was placed as.*{said}"):
      getattr(model, use)(x, y)
  tf.config.run_functions_eagerly(False)
  model.compile(at.sgd(), "mse", run_eagerly=False)
  assert np.isfinite(model.train_on_batch(x, y)).all()


@pytest.mark.usefixtures("functions_as_graphs")
@pytest.mark.parametrize("said", EAGER)
def test_a_model_that_stays_on_one_device_may_run_eagerly_later(said):
  one = tfplace.Cluster("one", (tfplace.Device(FULL + "0", "CPU"),))
  model = tfplace.place_model(at.build("dense"), one, batch_size=8)
  EAGER[said](model)
  assert np.isfinite(model.train_on_batch(*at.batch("dense"))).all()


@pytest.fixture
def auto_clustering():
  """Turns on XLA's auto-clustering, with conftest.py's flag for CPU devices."""
  before = tf.config.optimizer.get_jit()
  tf.config.optimizer.set_jit("autoclustering")
  yield
  tf.config.optimizer.set_jit(before)


@pytest.mark.usefixtures("auto_clustering")
def test_auto_clustering_compiles_within_the_devices_of_a_plan():
  expected = at.losses(at.build("dropout"), "dropout", 3)
  model = _placed("dropout")
  with at.recorded() as ran:
    got = at.losses(model, "dropout", 3)
  np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
  # CPU:0 has what the plan of layers does not name: loss and metrics.
  clusters = {node.device for node in ran if node.type == "_XlaRun"}
  assert {"CPU:1", "CPU:2"} <= clusters


@pytest.mark.parametrize("jit_compile", [True, False])
def test_jit_compile_that_is_dropped_is_told(jit_compile, caplog):
  model = at.build("dense", compiled=False)
  model.compile(at.sgd(), "mse", jit_compile=jit_compile)
  tfplace.place_model(model, placement=at.SPLIT)
  said = "No jit_compile: XLA would put all ops on one device."
  assert (said in model.placement.notes) == jit_compile
  assert (said in caplog.text) == jit_compile


def _custom_steps(model, optimizer, scope):
  x, y = at.batch("dense")

  @tf.function
  def step():
    with scope():
      with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
      variables = model.trainable_variables
      gradients = tape.gradient(loss, variables)
      optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return loss

  return np.array([step() for _ in range(20)])


def test_placement_scope_places_a_custom_loop():
  expected = _custom_steps(
    at.build("dense", compiled=False), at.sgd(), contextlib.nullcontext
  )
  model = at.build("dense", compiled=False)
  tfplace.place_model(model, placement=at.SPLIT)
  with at.recorded() as ran:
    got = _custom_steps(model, at.sgd(), model.placement_scope)
  np.testing.assert_allclose(got, expected, atol=1e-5)
  # Backward products too, and not only the forward ones.
  backward = [n for n in ran if n.name.startswith("gradient_tape/net")]
  assert {n.device for n in backward if "second" in n.name} == {"CPU:2"}
  assert at.devices_of(ran, "second") == {"CPU:2"}


def test_a_scope_around_the_loop_places_what_is_traced_inside():
  model = at.build("dense", compiled=False)
  tfplace.place_model(model, placement=at.SPLIT)
  with at.recorded() as ran, model.placement_scope():
    _custom_steps(model, at.sgd(), contextlib.nullcontext)
  backward = [n for n in ran if n.name.startswith("gradient_tape/net")]
  assert {n.device for n in backward if "second" in n.name} == {"CPU:2"}
  assert at.devices_of(ran, "first") == {"CPU:1"}
  assert "call" not in vars(model)


def test_an_eager_loop_in_the_scope_computes_the_same():
  x, y = at.batch("dense")
  losses = []
  for model in (at.build("dense"), _placed()):
    scope = getattr(model, "placement_scope", contextlib.nullcontext)
    with scope(), tf.GradientTape() as tape:
      loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply_gradients(
      zip(gradients, model.trainable_variables, strict=True)
    )
    losses.append(model.evaluate(x, y, verbose=0)[0])
  np.testing.assert_allclose(losses[1], losses[0], atol=1e-6)


def test_an_optimizer_of_the_custom_loop_outlives_the_move():
  model, optimizer = at.build("dense", compiled=False), at.sgd()
  optimizer.build(model.trainable_variables)
  tfplace.place_model(model, placement=at.SPLIT)
  losses = _custom_steps(model, optimizer, model.placement_scope)
  assert losses[-1] < losses[0]


def test_the_decorator_works_bare_and_with_keywords():
  @tfplace.placed
  def bare(kind):
    """Doc."""
    return at.build(kind)

  @tfplace.placed(placement=at.SPLIT)
  def keyed():
    return at.build("dense")

  assert bare.__name__ == "bare" and bare.__doc__ == "Doc."
  assert isinstance(bare("dense"), keras.Model)
  assert keyed().placement.devices == tuple(FULL + x for x in "012")


def test_the_decorator_refuses_bad_keywords_and_other_results():
  with pytest.raises(TypeError, match="'strategie'"):
    tfplace.placed(strategie="auto")
  with pytest.raises(TypeError, match="a function, not 3"):
    tfplace.placed(3)
  with pytest.raises(ApplyError, match="Keras 3 model"):
    tfplace.placed(lambda: 3)()
