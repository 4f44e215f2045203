"""Child of tfplace-doctor that trains a placed model beside an unplaced one.

The devices are two GPUs, two parts of one GPU, or two logical CPU devices.
"""

import time
from typing import TYPE_CHECKING, Any

from tfplace.bin.checks import children

if TYPE_CHECKING:
  import keras

_BATCH, _STEPS, _WIDTH = 16, 3, 32
_PART_MB = 512  # Memory of each part of a single GPU.


def _two_devices(tf: Any) -> None:
  """Leaves this process two devices of a kind."""
  gpus = tf.config.list_physical_devices("GPU")
  if len(gpus) > 1:
    tf.config.set_visible_devices(gpus[:2], "GPU")
    return
  part = tf.config.LogicalDeviceConfiguration
  if gpus:
    parts = [part(memory_limit=_PART_MB) for _ in range(2)]
    tf.config.set_logical_device_configuration(gpus[0], parts)
    return
  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [part(), part()])


def _model() -> "keras.Model":
  """Returns two towers of layers with a common head."""
  import keras

  inputs = keras.Input((8,), name="features")
  towers = []
  for side in ("left", "right"):
    x = inputs
    for number in range(2):
      name = f"{side}_{number}"
      x = keras.layers.Dense(_WIDTH, activation="relu", name=name)(x)
    towers.append(x)
  joined = keras.layers.Concatenate(name="joined")(towers)
  output = keras.layers.Dense(1, name="head")(joined)
  model = keras.Model(inputs, output, name="doctor")
  model.compile(optimizer="sgd", loss="mse", jit_compile=False)
  return model


def _losses(model: "keras.Model", x: Any, y: Any) -> list[float]:
  """Returns the loss of each step, all on one batch."""
  fitted = model.fit(x, y, batch_size=_BATCH, epochs=_STEPS, verbose=0)
  return [float(loss) for loss in fitted.history["loss"]]


def _main() -> None:
  children.tell(children.STAGE, "importing tensorflow")
  import tensorflow as tf

  _two_devices(tf)
  children.tell(children.STAGE, "importing keras")
  import keras
  import numpy as np

  import tfplace

  children.tell(children.STAGE, "training an unplaced model")
  rng = np.random.default_rng(0)
  x = rng.normal(size=(_BATCH, 8)).astype("float32")
  y = x.sum(axis=1, keepdims=True)
  keras.utils.set_random_seed(0)
  plain, placed = _model(), _model()
  placed.set_weights(plain.get_weights())
  expected = _losses(plain, x, y)
  children.tell(children.STAGE, "placing a model")
  started = time.monotonic()
  tfplace.place_model(
    placed,
    strategy="blocks",
    batch_size=_BATCH,
    budget_s=1.0,
    costs="estimated",
    verbose=0,
  )
  seconds = time.monotonic() - started
  children.tell(children.STAGE, "training the placed model")
  losses = _losses(placed, x, y)
  plan: Any = placed.placement
  children.tell("devices", [d.rpartition("/device:")[2] for d in plan.devices])
  children.tell("place_seconds", seconds)
  children.tell("expected", expected)
  children.tell("losses", losses)


if __name__ == "__main__":
  children.run_in_child(_main)
