"""Models that were planned, placed or extracted leave no weights behind."""

import ctypes
import gc
import pathlib
import re
import weakref

import keras
import numpy as np

import tfplace

WIDTH, BATCH = 1200, 8
# Two kernels of 1200^2 floats, and two slots of Adam for each.
STEP_MB = 3 * 2 * WIDTH**2 * 4 / 1e6
ROUNDS = 5


def _model():
  layers = keras.layers
  model = keras.Sequential(
    [
      keras.Input((WIDTH,)),
      layers.Dense(WIDTH, activation="silu"),
      layers.Dense(WIDTH, activation="relu"),
      layers.Dense(4),
    ]
  )
  model.compile("adam", "mse")
  return model


def _fit(model):
  x, y = np.ones((BATCH, WIDTH), "float32"), np.ones((BATCH, 4), "float32")
  model.fit(x, y, batch_size=BATCH, verbose=0)


def _resident_mb():
  """Returns the memory in use, without free memory not yet returned."""
  ctypes.CDLL(None).malloc_trim(0)
  status = pathlib.Path("/proc/self/status").read_text()
  return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1e3


def _check_rounds(use):
  """Nothing lives on of five models, and memory stays what two took.

  Args:
    use: number of a round -> the objects that must die.
  """
  after = []
  gc.collect()
  gc.freeze()  # TensorFlow and Keras: collections of the rounds pass them by
  for number in range(ROUNDS):
    dead = [weakref.ref(part) for part in use(number)]
    keras.utils.clear_session()
    gc.collect()
    assert [ref() for ref in dead if ref() is not None] == []
    after.append(_resident_mb())
  # Weights that are held are STEP_MB a round: three times that at the end.
  assert after[-1] < after[1] + 2 * STEP_MB, after


def _parts(model):
  """The model, its variables, and the handles that hold their values."""
  variables = [variable.value for variable in model.variables]
  return [model, *variables, *(v.handle for v in variables)]


def test_placed_models_leave_no_weights():
  def place(number):
    model = tfplace.place_model(
      _model(),
      strategy="m_topo",
      batch_size=BATCH,
      budget_s=0.1,
      costs="estimated",
      microbatches=1 + number % 2,
    )
    _fit(model)
    assert len(model.placement.devices) > 1
    return _parts(model)

  _check_rounds(place)
