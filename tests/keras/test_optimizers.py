"""Every optimizer of Keras: the same losses, slots beside their variables."""

import inspect

import keras
import numpy as np
import pytest

import tfplace
from tests.testing import placed_models as at
from tests.testing.slow import slow_but
from tfplace.keras import state

STEPS = 6  # more than a moving average or an accumulation takes
_WRAPPERS = ("LossScaleOptimizer", "MultiOptimizer", "Optimizer")


def _classes():
  """Each optimizer class that `keras.optimizers` names, whatever they are."""
  found = vars(keras.optimizers).values()
  return {
    value.__name__: value
    for value in found
    if inspect.isclass(value)
    and issubclass(value, keras.optimizers.Optimizer)
    and value.__name__ not in _WRAPPERS
  }


def _plain(kind, **options):
  return lambda: _classes()[kind](learning_rate=0.01, **options)


def _multiple():
  default = keras.optimizers.Adam(0.01)
  kinds = {".*kernel": keras.optimizers.SGD(0.01, momentum=0.9)}
  kinds = keras.optimizers.OptimizerMap(default, kinds)
  return keras.optimizers.MultiOptimizer(kinds)


OPTIMIZERS = {
  **{kind: _plain(kind) for kind in _classes()},
  "MultiOptimizer": _multiple,
  "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(
    keras.optimizers.Adam(0.01)
  ),
  "averaged": _plain("Adam", use_ema=True, ema_overwrite_frequency=5),
  "accumulated": _plain(
    "SGD", momentum=0.9, nesterov=True, gradient_accumulation_steps=2
  ),
  "decayed and clipped": _plain("AdamW", amsgrad=True, global_clipnorm=0.5),
}
# Quick ones that keep state in different ways; the rest is `all_models`'.
_FAST = ("Adafactor", "Muon", "MultiOptimizer", "averaged", "accumulated")


def _built(kind):
  keras.utils.set_random_seed(7)
  model = at.dense("net")
  model.compile(OPTIMIZERS[kind](), "mse", metrics=["mae"], jit_compile=False)
  # Else Keras builds it in the first step's trace, and ScheduleFreeAdamW then
  # starts anew in each step; a placed model's is built before.
  model.optimizer.build(model.trainable_variables)
  return model


@pytest.mark.parametrize("kind", slow_but(_FAST, OPTIMIZERS))
def test_losses_stay_with_slots_beside_their_variables(kind):
  expected = at.losses(_built(kind), "dense", STEPS)
  model = tfplace.place_model(_built(kind), placement=at.SPLIT)
  found = at.losses(model, "dense", STEPS)
  np.testing.assert_allclose(found, expected, atol=1e-5)
  assert expected[-1] != expected[0]
  devices = set()
  for slot, owner in state.slots(model):
    assert state.device_of(slot) == state.device_of(owner)
    devices.add(state.device_of(slot))
  # None is overlooked: what has the shape of a weight lies beside it.
  slots = {id(slot) for slot, _ in state.slots(model)}
  for optimizer in state.optimizers(model):
    for variable in optimizer.variables:
      assert id(variable) in slots or len(variable.shape) == 0, variable
  has_slots = kind not in ("SGD",)
  assert devices == (
    {at.LOCAL + "CPU:1", at.LOCAL + "CPU:2"} if has_slots else set()
  )
