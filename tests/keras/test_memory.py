"""Models that were planned and placed leave no weights behind."""

import ctypes
import gc
import pathlib
import re
import weakref

import keras
import numpy as np
from keras import layers

import tfplace

WIDTH, BATCH = 1200, 8
# Two kernels of 1200^2 floats, and two slots of Adam for each.
STEP_MB = 3 * 2 * WIDTH**2 * 4 / 1e6
ROUNDS = 5


def _resident_mb():
  """Returns the memory in use, without free memory not yet returned."""
  ctypes.CDLL(None).malloc_trim(0)
  status = pathlib.Path("/proc/self/status").read_text()
  return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1e3


def _used_parts(microbatches):
  """Fits a placed model; weak references to it, its variables and handles."""
  model = keras.Sequential(
    [
      keras.Input((WIDTH,)),
      layers.Dense(WIDTH, activation="silu"),
      layers.Dense(WIDTH, activation="relu"),
      layers.Dense(4),
    ]
  )
  model.compile("adam", "mse")
  tfplace.place_model(
    model,
    strategy="m_topo",
    batch_size=BATCH,
    budget_s=0.1,
    costs="estimated",
    microbatches=microbatches,
  )
  x, y = np.ones((BATCH, WIDTH), "float32"), np.ones((BATCH, 4), "float32")
  model.fit(x, y, batch_size=BATCH, verbose=0)
  assert len(model.placement.devices) > 1
  variables = [variable.value for variable in model.variables]
  parts = [model, *variables, *(v.handle for v in variables)]
  return [weakref.ref(part) for part in parts]


def test_placed_models_leave_no_weights():
  """Nothing lives on of five models, and memory stays what two took."""
  after = []
  gc.collect()
  gc.freeze()  # TensorFlow and Keras: collections of the rounds pass them by
  for number in range(ROUNDS):
    parts = _used_parts(1 + number % 2)
    keras.utils.clear_session()
    gc.collect()
    assert [part() for part in parts if part() is not None] == []
    after.append(_resident_mb())
  # Weights that are held are STEP_MB a round: three times that at the end.
  assert after[-1] < after[1] + 2 * STEP_MB, after
