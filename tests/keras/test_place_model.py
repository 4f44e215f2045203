"""Given placements: where ops and variables are, and what keeps working."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfplace
from tests.testing import placed_models as at
from tfplace.errors import ApplyError, ExtractionError

FULL = at.LOCAL + "CPU:"


def placed(kind="dense", **options):
  return tfplace.place_model(at.build(kind, **options), placement=at.SPLIT)


def test_a_layer_plan_places_forward_gradient_and_variables():
  model = placed()
  with at.recorded() as ran:
    at.losses(model, "dense", 1)
  for layer, device in at.SPLIT.items():
    assert at.devices_of(ran, layer) == {device}
    owned = model.get_layer(layer).variables
    owned += [v for v in model.optimizer.variables if f"_{layer}_" in v.name]
    assert len(owned) == 4  # kernel, bias and their momenta
    assert {v.value.device for v in owned} == {at.LOCAL + device}
  # Placing again follows the new plan.
  tfplace.place_model(model, placement=dict.fromkeys(at.SPLIT, "CPU:2"))
  with at.recorded() as ran:
    at.losses(model, "dense", 1)
  assert at.devices_of(ran, "first") == {"CPU:2"}
  assert model.get_layer("first").kernel.value.device == FULL + "2"


def test_a_fitted_model_keeps_weights_and_optimizer_state():
  model = at.build("dropout")
  losses = at.losses(model, "dropout", 2)
  tfplace.place_model(model, placement=at.SPLIT)
  losses = [*losses, *at.losses(model, "dropout", 1)]
  np.testing.assert_allclose(losses, at.unplaced("dropout"), atol=1e-5)
  assert int(model.optimizer.iterations) == 3


@pytest.mark.parametrize("name", ["GPU:7", ""])
def test_a_device_that_the_process_lacks_is_named(name):
  with pytest.raises(ApplyError) as caught:
    tfplace.place_model(at.build("dense"), placement={"first": name})
  assert repr(name) in str(caught.value)
  assert "CPU:2" in str(caught.value)
  assert caught.value.device == name


@pytest.mark.parametrize(
  ("names", "said"),
  [
    (["first", "secnd"], r"'secnd', .* did you mean 'second'\? its layers"),
    (["encoder", "decoder"], r"'encoder', which is no layer of model 'net'"),
    (["first", 3], "a placement is .* a mapping of op or layer names"),
    ([], "a placement is"),
  ],
)
def test_a_layer_that_the_model_lacks_is_named_at_once(names, said):
  model = at.build("dense")
  with pytest.raises(ApplyError, match=said):
    tfplace.place_model(model, placement=dict.fromkeys(names, "CPU:1"))
  assert not hasattr(model, "placement")


class Late(keras.Model):
  """Its layers are made when it is built."""

  def build(self, shape):
    self.stack = [keras.layers.Dense(4, name=f"late_{i}") for i in range(20)]
    for layer in self.stack:
      layer.build((None, 4))

  def call(self, x):
    for layer in self.stack:
      x = layer(x)
    return x


def test_no_step_runs_without_a_layer_that_is_made_late():
  data = [np.ones((4, 4), "float32")] * 2
  for names in (["late_1"], ["late_1", "late_20"]):
    model = Late(name="net")
    model.compile("sgd", "mse")
    tfplace.place_model(model, placement=dict.fromkeys(names, "CPU:1"))
    if names[1:]:
      with pytest.raises(ApplyError, match=r"'late_20', .* and 9 others"):
        model.fit(*data, verbose=0)
      assert int(model.optimizer.iterations) == 0
    else:
      model.fit(*data, verbose=0)
      assert model.stack[1].kernel.value.device == FULL + "1"


@pytest.mark.parametrize(
  ("placement", "devices"),
  [
    ({"first": "CPU:2", "second": "CPU:1"}, "CPU:1, CPU:2"),
    ({"net/first/kernel": "CPU:2"}, "CPU:2"),
  ],
)
def test_a_partial_placement_tells_where_the_rest_is(placement, devices):
  model = tfplace.place_model(at.build("dense"), placement=placement)
  assert model.placement.message.startswith(
    f"placed on {devices} as given; other ops are on CPU:0 or"
  )
  with at.recorded() as ran:
    at.losses(model, "dense", 1)
  used = {at.LOCAL + node.device for node in ran}
  assert set(model.placement.devices) == used


def test_a_plan_for_another_model_is_refused(tmp_path):
  _, placement = at.unit_placement(at.build("dense"), "dense")
  placement.save(tmp_path / "p.json")
  stranger = keras.Sequential(
    [keras.Input((6,)), keras.layers.Dense(3, name="else")], name="net"
  )
  for given in (placement, tmp_path / "p.json"):
    with pytest.raises(ApplyError, match="'net/else/kernel'"):
      tfplace.place_model(stranger, placement=given)
  # Plain data may lack ops; the step finds out.
  other = {
    f"other/{op}": device for op, device in placement.assignments.items()
  }
  for known, said in (
    ({}, "names none of the ops"),
    ({"net_1/first_1/MatMul": FULL + "1"}, r"names 1 of the ops .*'other/"),
  ):
    model = tfplace.place_model(at.build("dense"), placement={**other, **known})
    with pytest.raises(ApplyError, match=said):
      at.losses(model, "dense", 1)


def test_a_plan_fits_a_subclassed_model_saved_and_loaded(tmp_path):
  model = at.build("subclassed")
  at.losses(model, "subclassed", 1)
  model.save(tmp_path / "m.keras")
  _, placement = at.unit_placement(model, "subclassed")
  placement.save(tmp_path / "p.json")
  devices = [placement.assignments[v.path] for v in model.weights]
  for plan in (placement, tmp_path / "p.json"):
    loaded = keras.models.load_model(tmp_path / "m.keras")
    # net/first/kernel is first/kernel by now: that is Keras's doing.
    paths = {variable.path for variable in model.weights}
    assert not paths & {variable.path for variable in loaded.weights}
    tfplace.place_model(loaded, placement=plan)
    assert [v.value.device for v in loaded.weights] == devices
    assert np.isfinite(at.losses(loaded, "subclassed", 1)).all()
  # And the other way round.
  _, placement = at.unit_placement(loaded, "subclassed", seed=1)
  tfplace.place_model(model, placement=placement)
  devices = [placement.assignments[v.path] for v in loaded.weights]
  assert [v.value.device for v in model.weights] == devices


def test_predict_runs_where_the_plan_says_and_before_any_fit():
  model = placed()
  with at.recorded() as ran:
    model.predict(at.batch("dense")[0], verbose=0)
  # Grappler fuses each layer into one op, named after its activation.
  assert at.devices_of(ran, "second", "Tanh") == {"CPU:2"}


def test_a_later_compile_stays_placed_and_without_xla():
  model = placed()
  at.losses(model, "dense", 2)
  with pytest.warns(UserWarning, match="jit_compile"):
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=True)
  assert not model.jit_compile and not model.supports_jit
  with at.recorded() as ran:
    loss = [model.train_on_batch(*at.batch("dense")) for _ in range(5)]
  assert loss[-1] < loss[0]
  assert at.devices_of(ran, "second") == {"CPU:2"}
  assert model.optimizer.variables[2].value.device == FULL + "1"


def test_xla_is_off_even_where_keras_would_choose_it(monkeypatch):
  # On a host without a GPU "auto" is False: let Keras see one.
  gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
  listed = [*tf.config.list_physical_devices(), gpu]
  monkeypatch.setattr(
    tf.config, "list_physical_devices", lambda kind=None: listed
  )
  model = at.build("dense", compiled=False)
  model.compile("sgd", "mse")
  assert model.jit_compile is True
  assert tfplace.place_model(model, placement=at.SPLIT).jit_compile is False
  model = at.build("dense", compiled=False)
  tfplace.place_model(model, placement=at.SPLIT)
  model.compile("sgd", "mse")
  assert model.jit_compile is False


@pytest.mark.parametrize("jit_compile", [True, False])
def test_jit_compile_that_is_dropped_is_told(jit_compile, caplog):
  model = at.build("dense", compiled=False)
  model.compile(at.sgd(), "mse", jit_compile=jit_compile)
  tfplace.place_model(model, placement=at.SPLIT, compile="none")
  said = "No jit_compile: XLA would put all ops on one device."
  assert (said in model.placement.notes) == jit_compile
  assert (said in caplog.text) == jit_compile


def test_what_a_placed_model_saves_is_of_an_ordinary_model(tmp_path):
  kind = "dense"
  model = at.build(kind)
  config = model.get_config()
  tfplace.place_model(model, placement=at.SPLIT)
  assert type(model) is keras.Sequential and model.get_config() == config
  assert not hasattr(keras.models.clone_model(model), "placement")
  at.losses(model, kind, 2)
  model.save(tmp_path / "m.keras")
  model.save_weights(tmp_path / "m.weights.h5")
  x, _ = at.batch(kind)
  expected = model.predict(x, verbose=0)
  loaded = keras.models.load_model(tmp_path / "m.keras")
  assert not hasattr(loaded, "placement")
  np.testing.assert_allclose(loaded.predict(x, verbose=0), expected, atol=1e-6)
  with at.recorded() as ran:
    got = at.losses(loaded, kind, 2)
  assert {node.device for node in ran} == {"CPU:0"}
  np.testing.assert_allclose(got, at.losses(model, kind, 2), atol=1e-5)
  model.load_weights(tmp_path / "m.weights.h5")
  np.testing.assert_allclose(model.predict(x, verbose=0), expected, atol=1e-6)
  model.export(tmp_path / "exported", verbose=False)
  served = tf.saved_model.load(str(tmp_path / "exported"))
  np.testing.assert_allclose(served.serve(x), expected, atol=1e-6)


EAGER = {
  "run_eagerly=True is set": lambda model: model.compile(
    at.sgd(), "mse", run_eagerly=True
  ),
  "run_functions_eagerly": lambda _: tf.config.run_functions_eagerly(True),
}


@pytest.mark.parametrize("said", EAGER)
def test_what_runs_eagerly_is_refused_when_placed_and_when_run(said):
  one = tfplace.Cluster("one", (tfplace.Device(FULL + "0", "CPU"),))
  single = tfplace.place_model(at.build("dense"), one, batch_size=8)
  unplaced, model = at.build("dense"), placed()
  x, y = at.batch("dense")
  try:
    for each in (unplaced, model, single):
      EAGER[said](each)
    with pytest.raises(ApplyError, match=f"'net' cannot be placed.*{said}"):
      tfplace.place_model(unplaced, placement=at.SPLIT)
    assert not hasattr(unplaced, "placement")
    for use in ("fit", "evaluate", "train_on_batch"):
      with pytest.raises(ApplyError, match=f"'net' was placed as.*{said}"):
        getattr(model, use)(x, y)
    # A model that stays on one device may run eagerly.
    assert np.isfinite(single.train_on_batch(x, y)).all()
  finally:
    tf.config.run_functions_eagerly(False)
  model.compile(at.sgd(), "mse", run_eagerly=False)
  assert np.isfinite(model.train_on_batch(x, y)).all()


def custom_steps(model, scope, is_eager=False):
  """Losses of a loop whose optimizer the model does not know."""
  x, y = at.batch("dense")
  optimizer = at.sgd()
  optimizer.build(model.trainable_variables)

  def step():
    with scope():
      with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
      variables = model.trainable_variables
      gradients = tape.gradient(loss, variables)
      optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return loss

  step = step if is_eager else tf.function(step)
  return np.array([step() for _ in range(3)])


@pytest.mark.parametrize("where", ["inside", "around", "eager"])
def test_placement_scope_places_a_custom_loop(where):
  unplaced = at.build("dense", compiled=False)
  expected = custom_steps(unplaced, contextlib.nullcontext)
  model = at.build("dense", compiled=False)
  tfplace.place_model(model, placement=at.SPLIT)
  with at.recorded() as ran:
    if where == "around":
      with model.placement_scope():
        got = custom_steps(model, contextlib.nullcontext)
    else:
      got = custom_steps(model, model.placement_scope, where == "eager")
  np.testing.assert_allclose(got, expected, atol=1e-5)
  assert model.get_layer("second").kernel.value.device == FULL + "2"
  assert "call" not in vars(model)
  if where != "eager":
    # Backward products too, and not only the forward ones.
    backward = [n for n in ran if n.name.startswith("gradient_tape/net")]
    assert {n.device for n in backward if "second" in n.name} == {"CPU:2"}
    assert at.devices_of(ran, "first") == {"CPU:1"}


def test_the_decorator_works_bare_and_with_keywords():
  @tfplace.placed
  def bare(kind):
    return at.build(kind)

  @tfplace.placed(placement=at.SPLIT)
  def keyed():
    return at.build("dense")

  assert isinstance(bare("dense"), keras.Model)
  assert keyed().placement.devices == tuple(FULL + x for x in "012")


def test_unknown_keywords_and_other_results_are_refused():
  for function in (tfplace.place_model, tfplace.plan_model):
    with pytest.raises(TypeError, match="has no keyword 'strategie'"):
      function(at.build("dense"), strategie="auto")
    with pytest.raises(TypeError, match="did you mean 'budget_s'"):
      function(at.build("dense"), budget=3)
    with pytest.raises(ExtractionError, match="64, and the batch has 32"):
      function(at.build("dense"), batch_size=32, microbatches=64)
  with pytest.raises(TypeError, match="builds a model, not"):
    tfplace.placed(at.build("dense"))
  with pytest.raises(ApplyError, match="Keras 3 model"):
    tfplace.placed(lambda: 3)()


def test_a_function_traced_before_placing_is_warned_of(caplog):
  model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
  model.compile("sgd", "mse", jit_compile=False)
  x = np.ones((8, 6), "float32")
  model.predict_on_batch(x)  # Keras makes its functions again.

  @tf.function
  def own_step(x):
    return model(x)

  dense = model.layers[0].name
  tfplace.place_model(model, placement={dense: "CPU:1"})
  model.train_on_batch(x, x[:, :1])
  assert "tf.function" not in caplog.text
  own_step(x)
  tfplace.place_model(model, placement={dense: "CPU:0"})
  model.train_on_batch(x, x[:, :1])
  (warning,) = caplog.records
  assert "the tf.function 'own_step' goes on" in warning.getMessage()


class Unfinished(keras.Model):
  """A model whose constructor does not end."""


def test_models_that_share_moved_variables_see_their_values():
  """A part, an outer model and a sibling, all traced before."""
  half_made = Unfinished.__new__(Unfinished)  # Is passed over.

  def losses(is_placed):
    keras.utils.set_random_seed(0)
    shared = keras.Sequential(
      [keras.Input((6,)), keras.layers.Dense(4, name="mid")]
    )
    shared.compile("sgd", "mse", jit_compile=False)
    models = []
    for name in ("outer", "sibling"):
      out = keras.layers.Dense(1, name=f"{name}_head")(shared(shared.inputs[0]))
      models.append(keras.Model(shared.inputs, out, name=name))
      models[-1].compile("sgd", "mse", jit_compile=False)
    outer, sibling = models
    x = np.random.default_rng(0).random((8, 6)).astype("float32")
    y = x[:, :1]
    found = [outer.train_on_batch(x, y), sibling.train_on_batch(x, y)]
    found.append(shared.predict_on_batch(x).sum())
    if is_placed:
      tfplace.place_model(outer, placement={"mid": "CPU:1"})
    for _ in range(3):
      found += [outer.train_on_batch(x, y), sibling.train_on_batch(x, y)]
      found.append(shared.predict_on_batch(x).sum())
      found.append(sibling.evaluate(x, y, verbose=0))
    return found

  np.testing.assert_allclose(losses(True), losses(False), rtol=1e-5)
  del half_made
