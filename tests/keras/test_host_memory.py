"""Models that no device holds: built on the host, then moved.

CPU:2 plays the host, which has the memory, CPU:0 and CPU:1 the GPUs. The step
needs the memory of 12 layers and their slots on one device, and half of it on
each of two. Each may have the variables of 4 of the 6 layers at any time.
"""

import collections
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tensorflow.python.ops import resource_variable_ops

import tfplace
from tests.testing import placed_models as at
from tests.testing.slow import slow
from tfplace.keras import state, variables
from tfplace.keras.given_placement import stays
from tfplace.plan import local_devices

WIDTH, DEPTH, BATCH = 64, 6, 4
# Kernel and bias, and Adam's two slots of each: 4 bytes a number.
LAYER_BYTES = 3 * 4 * (WIDTH * WIDTH + WIDTH)
HOST = at.LOCAL + "CPU:2"
CPUS = [at.LOCAL + "CPU:0", at.LOCAL + "CPU:1"]
X = np.random.default_rng(0).random((8, WIDTH)).astype("float32")
Y = X[:, ::-1].copy()


class Live:
  """Bytes of all live variables, and the most that each device ever had."""

  def __init__(self):
    self.peaks = collections.Counter()
    self._live = {}

  def add(self, variable):
    handle = variable.handle
    size = variable.shape.num_elements() * variable.dtype.size
    key = id(handle)
    gone = weakref.ref(handle, lambda _: self._live.pop(key))
    self._live[key] = (variable.device, size, gone)
    held = collections.Counter()
    for device, size, _ in self._live.values():
      held[device] += size
    self.peaks |= held


@pytest.fixture(scope="module")
def expected():
  """Losses of the model that is not placed."""
  return fit(chain())


@pytest.fixture
def live(monkeypatch):
  """Bytes by device from here on; CPU:2 is the host."""
  keras.utils.clear_session()
  found = Live()
  base = resource_variable_ops.BaseResourceVariable
  original = base.__init__

  def recorded(self, *args, **kwargs):
    original(self, *args, **kwargs)
    if isinstance(self.handle, tf.__internal__.EagerTensor):
      found.add(self)

  monkeypatch.setattr(base, "__init__", recorded)
  monkeypatch.setattr(local_devices, "host_device", lambda: HOST)
  return found


def pair(layers_each):
  """Two devices, each with the memory of so many layers and their slots."""
  return at.linked(2, 1e4, float(layers_each * LAYER_BYTES))


def chain():
  keras.utils.set_random_seed(0)
  x = start = keras.Input((WIDTH,))
  for i in range(DEPTH):
    x = layers.Dense(WIDTH, activation="tanh", name=f"dense_{i}")(x)
  model = keras.Model(start, x, name="net")
  model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
  return model


class Late(keras.Model):
  """Its variables are created by the first step."""

  def __init__(self):
    super().__init__(name="net")
    self.stack = [
      layers.Dense(WIDTH, activation="tanh", name=f"dense_{i}")
      for i in range(DEPTH)
    ]

  def call(self, x):
    for layer in self.stack:
      x = layer(x)
    return x


def late():
  keras.utils.set_random_seed(0)
  model = Late()
  model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
  return model


OPTIONS = {
  "strategy": "pipeline",
  "budget_s": 1,
  "costs": "estimated",
  "verbose": 0,
}


def fit(model):
  history = model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
  return history.history["loss"]


def heavy(model):
  """Devices of the weights and slots of the layers."""
  every = [*model.weights, *model.optimizer.variables]
  return {v.path: v.value.device for v in every if len(v.shape)}


def check_shares(live):
  for device in CPUS:
    assert 0 < live.peaks[device] < 4 * LAYER_BYTES


@pytest.mark.parametrize("build", [slow(chain), late])
def test_fit_and_save_of_a_model_that_no_device_holds(
  build, expected, live, tmp_path
):
  model = tfplace.placed(cluster=pair(8), **OPTIONS)(build)()
  np.testing.assert_allclose(fit(model), expected, rtol=1e-5)
  assert set(heavy(model).values()) == set(CPUS)
  for slot in model.optimizer.variables[2:]:
    owner = [v for v in model.weights if v.path.replace("/", "_") in slot.path]
    assert slot.value.device == owner[0].value.device
  assert live.peaks[HOST] >= DEPTH * LAYER_BYTES / 3  # Slots may come later.
  check_shares(live)
  model.save_weights(tmp_path / "w.weights.h5")
  devices = heavy(model)
  model.load_weights(tmp_path / "w.weights.h5")
  assert heavy(model) == devices
  check_shares(live)


def test_loaded_model_goes_to_its_devices_by_way_of_the_host(live, tmp_path):
  path = tmp_path / "m.keras"
  model = tfplace.placed(cluster=pair(8), **OPTIONS)(chain)()
  fit(model)
  model.save(path)
  before = [w.numpy() for w in model.weights], int(model.optimizer.iterations)
  expected = fit(model)
  del model
  keras.utils.clear_session()
  gc.collect()
  live.peaks.clear()
  load = tfplace.placed(cluster=pair(8), **OPTIONS)(keras.models.load_model)
  again = load(path)
  after = [w.numpy() for w in again.weights], int(again.optimizer.iterations)
  assert before[1] == after[1]
  for a, b in zip(before[0], after[0], strict=True):
    np.testing.assert_array_equal(a, b)
  assert set(heavy(again).values()) == {HOST}
  np.testing.assert_allclose(fit(again), expected, rtol=1e-6)
  assert set(heavy(again).values()) == set(CPUS)
  check_shares(live)


def test_unplaced_model_leaves_the_host(live):
  cluster = tfplace.Cluster("one", pair(100).devices[:1], ())
  options = {**OPTIONS, "strategy": "single", "cluster": cluster}
  model = tfplace.placed(**options)(late)()
  fit(model)
  assert stays(model.placement)
  assert {v.value.device for v in state.variables(model)} == {CPUS[0]}


def test_device_scopes_of_the_user_stay_in_force(live):
  def build():
    with tf.device("CPU:1"):
      first = layers.Dense(3, name="first")
      first.build((None, WIDTH))
    start = keras.Input((WIDTH,))
    model = keras.Model(start, layers.Dense(WIDTH)(first(start)))
    model.compile("adam", "mse", jit_compile=False)
    return model

  cluster = tfplace.Cluster("one", pair(100).devices[:1], ())
  model = tfplace.placed(cluster=cluster, **OPTIONS)(build)()
  assert {v.value.device for v in model.layers[1].weights} == {CPUS[1]}
  assert {v.value.device for v in model.layers[2].weights} == {HOST}
  fit(model)
  assert {v.value.device for v in model.layers[1].weights} == {CPUS[1]}
  assert {v.value.device for v in model.layers[2].weights} == {CPUS[0]}


def test_large_variables_that_move_leave_no_memory_behind(monkeypatch):
  monkeypatch.setattr(variables, "_LARGE_BYTES", 0)
  model = chain()
  before = {v.path: weakref.ref(v._value.handle) for v in model.weights}
  devices = {v.path: v._value.device for v in model.weights}
  gc.collect()
  gc.disable()
  try:
    tfplace.place_model(model, pair(8), batch_size=BATCH, **OPTIONS)
    moved = [v for v in model.weights if v._value.device != devices[v.path]]
    assert moved and all(before[v.path]() is None for v in moved)
  finally:
    gc.enable()
