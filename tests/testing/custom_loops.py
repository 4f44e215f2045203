"""Checks of the training steps that docs/custom_loops.md shows.

A small model trains by the step with a tape, unplaced, and by the split one,
placed. Both must show the same numbers and end with the same weights.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

import tfplace
from tfplace.variants.keras_step import fresh_names

DEVICES, BATCH = 3, 8  # the third batch has 6 examples
MICROBATCHES = 3
PLACED = {"strategy": "m_etf", "budget_s": 1, "costs": "estimated"}
_RNG = np.random.default_rng(0)
X, OTHER = _RNG.normal(size=(2, 22, 6)).astype("float32")


def _dense(name, *units):
  stack = [layers.Dense(n, "tanh", name=f"{name}_{n}") for n in units[:-1]]
  last = layers.Dense(units[-1], name=f"{name}_last")
  return keras.Sequential([keras.Input((6,)), *stack, last], name=name)


def _of_codes(name, units):
  """A network from two random numbers per example to `units`."""
  stack = [layers.Dense(8, "tanh"), layers.Dense(units)]
  return keras.Sequential([keras.Input((2,)), *stack], name=name)


def build_vae(model):
  inputs = keras.Input((6,))
  hidden = layers.Dense(8, "tanh", name="hidden")(inputs)
  codes = [layers.Dense(2, name=name)(hidden) for name in ("mean", "log_var")]
  model.encoder = keras.Model(inputs, codes, name="encoder")
  model.decoder = _of_codes("decoder", 6)
  model.seeds = keras.random.SeedGenerator(3)


def build_contrastive(model):
  model.encoder = _dense("encoder", 8, 4)
  model.key_encoder = _dense("key_encoder", 8, 4)
  model.key_encoder.trainable = False
  model.queue = model.add_weight(
    shape=(64, 4), initializer="random_normal", trainable=False, name="queue"
  )


# Example -> what makes its layers, and its data.
EXAMPLES = {
  "vae": (build_vae, (X,)),
  "contrastive": (build_contrastive, (X, OTHER)),
}


def fitted(example, step_class, **placed):
  """Trains for six steps; returns what epochs show, weights, and the plan."""
  build, data = EXAMPLES[example]

  class Net(step_class):
    def __init__(self):
      super().__init__(name="net")
      build(self)

  keras.utils.set_random_seed(5)
  with fresh_names():
    model = Net()
  model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
  model.optimizer.build(model.trainable_variables)  # else two traces
  if placed:
    model = tfplace.place_model(model, **placed)
  options = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
  history = model.fit(*data, **options).history
  return history, model.get_weights(), getattr(model, "placement", None)


def check_pair(example, before, after):
  """The second step, split, trains as the first one does."""
  history, weights, plan = fitted(
    example, after, microbatches=MICROBATCHES, **PLACED
  )
  expected, expected_weights, _ = fitted(example, before)
  assert history.keys() == expected.keys()
  for name, values in expected.items():
    np.testing.assert_allclose(history[name], values, rtol=1e-5, atol=1e-6)
  for mine, theirs in zip(weights, expected_weights, strict=True):
    atol = 1e-5 * max(np.abs(theirs).max(), 1e-2)
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol)
  assert plan.variant.count == MICROBATCHES
  assert "not checked" not in str(plan)


def with_tape(moco):
  """The same queue, with a tape over the whole batch."""

  class WithTape(moco):
    def train_step(self, views):
      key = ops.normalize(self.key_encoder(views[1]))
      weights = self.trainable_weights
      with tf.GradientTape() as tape:
        cost = self.cost(views[0], key)
      self.optimizer.apply(tape.gradient(cost, weights), weights)
      self.queue.assign(ops.concatenate([key, self.queue])[:64])
      return {"cost": cost}

  return WithTape


def check(page):
  """Checks the steps that the page defines, by their names."""
  cpu = tf.config.list_physical_devices("CPU")[0]
  devices = [tf.config.LogicalDeviceConfiguration() for _ in range(DEVICES)]
  tf.config.set_logical_device_configuration(cpu, devices)
  check_pair("vae", page["VAE"], page["SplitVAE"])
  moco = page["MoCo"]
  check_pair("contrastive", with_tape(moco), moco)
