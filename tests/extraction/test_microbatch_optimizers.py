"""Optimizer work on gradients happens once, on those of the whole batch.

The reference is Keras itself: the same model, seed and data, not split.
"""

import keras
import numpy as np
import pytest

from tests.testing.microbatched import (
  assert_equal,
  assert_same_state,
  both,
  classes,
  compiled,
  normal,
)

layers, optimizers = keras.layers, keras.optimizers


def build(optimizer, **options):
  """Sparse gradients, a regularizer, and what `optimizer` makes."""
  model = keras.Sequential(
    [
      keras.Input((7,), dtype="int32"),
      layers.Embedding(11, 5, mask_zero=True),
      layers.GlobalAveragePooling1D(),
      layers.Dense(8, "tanh", kernel_regularizer="l2"),
      layers.Dense(3),
    ]
  )
  return compiled(model, optimizer=optimizer(), metrics=["mae"], **options)


def sequences():
  return classes(11, 7), normal(3)


def dense(optimizer):
  model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(3)]
  )
  return compiled(model, optimizer=optimizer())


def vectors():
  return normal(6), normal(3)


def scaled(initial_scale):
  inner = optimizers.SGD(0.05, momentum=0.5, clipnorm=0.5)
  return optimizers.LossScaleOptimizer(
    inner, initial_scale=initial_scale, dynamic_growth_steps=3
  )


OPTIMIZERS = {
  "clipnorm": (lambda: optimizers.SGD(0.1, clipnorm=0.01), {}),
  "global_clipnorm": (
    lambda: optimizers.Adam(0.01, global_clipnorm=0.01),
    {},
  ),
  "gradient_accumulation_steps": (
    lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
    {},
  ),
  "use_ema": (
    lambda: optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=3),
    {},
  ),
  "loss_scale": (lambda: scaled(2.0**10), {}),
  "steps_per_execution": (
    lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    {"steps_per_execution": 3},
  ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_the_step_of_the_whole_batch(name):
  optimizer, options = OPTIMIZERS[name]
  models, runs = both(
    lambda: build(optimizer, **options), sequences, 3, epochs=3
  )
  assert_equal(*runs)
  assert_same_state(*models)


def test_a_fixed_loss_scale_is_applied_and_removed_once():
  optimizer = lambda: optimizers.SGD(0.1, loss_scale_factor=64.0)  # noqa: E731
  _, runs = both(lambda: dense(optimizer), vectors, 3, epochs=2)
  assert_equal(*runs)


@pytest.fixture
def policy():
  yield keras.config.set_dtype_policy
  keras.config.set_dtype_policy("float32")


def test_mixed_precision_up_to_its_rounding(policy):
  policy("mixed_float16")
  models, runs = both(
    lambda: dense(lambda: scaled(2.0**8)), vectors, 3, epochs=4
  )
  # Half of the last digit of the type, some ten roundings: the gradients of
  # weights are summed in it, over other examples in each microbatch.
  assert_equal(*runs, rtol=10 * 2.0**-11)
  scales = [float(m.optimizer.dynamic_scale.numpy()) for m in models]
  # 12 steps, doubled after every third: 2**8 * 2**4, never too large.
  assert scales == [2.0**12, 2.0**12]


def test_a_loss_scale_that_overflows_skips_the_whole_step_once(policy):
  policy("mixed_float16")
  optimizer = lambda: scaled(2.0**40)  # noqa: E731
  models, runs = both(lambda: dense(optimizer), vectors, 3, epochs=1)
  keras.utils.set_random_seed(1)
  untrained = dense(optimizer)
  for model, (_, weights) in zip(models, runs, strict=True):
    for found, first in zip(weights, untrained.get_weights(), strict=True):
      np.testing.assert_array_equal(found, first)
    # Three steps, each of which found gradients that are not finite.
    assert float(model.optimizer.dynamic_scale.numpy()) == 2.0**37
    assert int(model.optimizer.iterations.numpy()) == 0
