"""Updates that a split step makes once: of optimizers, lookups and states.

The reference is Keras itself: the same model, seed and data, not split.
"""

import keras
import numpy as np
import pytest
from keras import layers, ops, optimizers

from tests.testing.microbatched import (
  EXAMPLES,
  assert_equal,
  assert_same_state,
  both,
  classes,
  compiled,
  in_microbatches,
  normal,
)
from tfplace.errors import ExtractionError

# Batch size of models with a state for each example.
BATCH = EXAMPLES // 2
LENGTH, TOKENS, WIDTH = 7, 11, 6


class Positions(layers.Layer):
  """Adds a learned vector for each position: a lookup without a batch."""

  def __init__(self, table=None):
    super().__init__()
    self.table = table or layers.Embedding(LENGTH, WIDTH)

  def build(self, shape):
    if not self.table.built:
      self.table.build((None,))
    self.built = True

  def call(self, x):
    return x + self.table(ops.arange(LENGTH))


class RepeatedPositions(Positions):
  """The same, looked up again for each example."""

  def call(self, x):
    numbers = ops.broadcast_to(ops.arange(LENGTH), ops.shape(x)[:2])
    return x + self.table(numbers)


class Tied(layers.Layer):
  """Projects on the table of an embedding: its gradient is dense."""

  def __init__(self, table):
    super().__init__()
    self.table = table

  def call(self, x):
    return ops.matmul(x, ops.transpose(self.table.embeddings))


# Layers after an embedding. Keras squares the values of slices without adding
# those of equal index, so an optimizer with second moments tells them apart.
LOOKUPS = {
  "positions": lambda words: [Positions()],
  "repeated": lambda words: [RepeatedPositions()],
  "shared": lambda words: [Positions(words)],  # one table for both
  "tied": lambda words: [Positions(), Tied(words)],
}


def net(optimizer, lookup=None, **options):
  """Sparse gradients, a regularizer, and a given optimizer."""
  words = layers.Embedding(TOKENS, WIDTH, mask_zero=lookup is None)
  more = LOOKUPS[lookup](words) if lookup else []
  hidden = layers.Dense(8, "tanh", kernel_regularizer="l2")
  flat = layers.Flatten() if lookup else layers.GlobalAveragePooling1D()
  model = keras.Sequential(
    [keras.Input((LENGTH,), dtype="int32"), words, *more, flat, hidden]
  )
  model.add(layers.Dense(3))
  return compiled(model, optimizer=optimizer, metrics=["mae"], **options)


def dense(optimizer):
  """A net without sparse gradients, which Keras does not unscale."""
  words = keras.Input((LENGTH,), dtype="int32")
  x = layers.Dense(3)(layers.Rescaling(0.1)(words))
  return compiled(keras.Model(words, x), optimizer=optimizer)


def scaled(initial_scale):
  inner = optimizers.SGD(0.05, momentum=0.5, clipnorm=0.5)
  return optimizers.LossScaleOptimizer(
    inner, initial_scale=initial_scale, dynamic_growth_steps=3
  )


def clipped_globally():
  return optimizers.Adam(0.01, global_clipnorm=0.01)


CASES = {
  **{
    kind: lambda kind=kind: net(optimizers.RMSprop(0.01), kind)
    for kind in LOOKUPS
  },
  "shared_clipped": lambda: net(clipped_globally(), "shared"),
  "clipnorm": lambda: net(optimizers.SGD(0.1, clipnorm=0.01)),
  "global_clipnorm": lambda: net(clipped_globally()),
  "gradient_accumulation": lambda: net(
    optimizers.Adam(0.01, gradient_accumulation_steps=2)
  ),
  "averages": lambda: net(
    optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=3)
  ),
  "loss_scale": lambda: net(scaled(2.0**10)),
  "fixed_loss_scale": lambda: dense(
    optimizers.SGD(0.1, loss_scale_factor=64.0)
  ),
  "steps_per_execution": lambda: net(
    optimizers.SGD(0.1, momentum=0.9, nesterov=True), steps_per_execution=3
  ),
}


@pytest.mark.parametrize("name", CASES)
def test_updates_equal_those_of_the_whole_batch(name):
  def data():
    return classes(TOKENS, LENGTH), normal(3)

  models, runs = both(CASES[name], data, 3)
  assert_equal(*runs)
  assert_same_state(*models, rtol=1e-4, least=1e-6)


@pytest.fixture
def half():
  keras.config.set_dtype_policy("mixed_float16")
  yield
  keras.config.set_dtype_policy("float32")


def in_half(initial_scale, epochs):
  """The models and runs of a network in half precision, split and not."""

  def build():
    model = keras.Sequential(
      [keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(3)]
    )
    return compiled(model, optimizer=scaled(initial_scale))

  return both(build, lambda: (normal(6), normal(3)), 3, epochs=epochs)


@pytest.mark.usefixtures("half")
def test_mixed_precision_up_to_its_rounding():
  models, runs = in_half(2.0**8, 4)
  # Half of the last digit of the type, some ten roundings: the gradients of
  # weights are summed in it, over other examples in each microbatch.
  assert_equal(*runs, rtol=10 * 2.0**-11)
  # 12 steps, doubled after every third: 2**8 * 2**4, never too large.
  for model in models:
    assert float(model.optimizer.dynamic_scale.numpy()) == 2.0**12


@pytest.mark.usefixtures("half")
def test_a_loss_scale_that_overflows_skips_the_whole_step():
  models, runs = in_half(2.0**40, 1)
  for found, other in zip(runs[0][1], runs[1][1], strict=True):
    np.testing.assert_array_equal(found, other)
  for model in models:
    # Three steps, each of which found gradients that are not finite.
    assert float(model.optimizer.dynamic_scale.numpy()) == 2.0**37
    assert int(model.optimizer.iterations.numpy()) == 0


class Remembering(layers.Layer):
  """Adds what it heard last time, and a table that is no state.

  The table has as many rows as there are examples, and is the same for all.
  """

  def build(self, shape):
    size = (BATCH, shape[-1])
    self.memory = self.add_weight(
      size, initializer="zeros", trainable=False, name="memory"
    )
    self.table = self.add_weight(
      size, initializer="uniform", trainable=False, name="table"
    )

  def call(self, inputs):
    heard = ops.concatenate([self.memory, inputs], axis=1)
    first = self.memory + 0.0
    self.memory.assign(0.5 * self.memory + ops.stop_gradient(inputs))
    scores = ops.softmax(inputs @ ops.transpose(self.table))
    return ops.concatenate(
      [heard, first + self.memory, scores @ self.table], axis=1
    )


def stateful(shape, *stages):
  inputs = x = keras.Input(shape, batch_size=BATCH)
  for stage in stages:
    x = stage(x)
  return compiled(keras.Model(inputs, layers.Dense(2)(x)), optimizer="adam")


def recurrent():
  return stateful((7, 4), layers.SimpleRNN(3, stateful=True))


def remembering():
  return stateful((4,), layers.Dense(5), Remembering())


@pytest.mark.parametrize(
  ("build", "shape", "in_flight"),
  [(recurrent, (7, 4), 1), (remembering, (4,), 2)],
)
def test_states_of_examples_are_split_like_the_batch(build, shape, in_flight):
  models, runs = both(
    build,
    lambda: (normal(*shape), normal(2)),
    *(4, in_flight),
    batch_size=BATCH,
  )
  assert_equal(*runs)
  states = [np.abs(v.numpy()).max() for v in models[0].non_trainable_variables]
  assert min(states) > 0


class Codebook(layers.Layer):
  """Moving means of what is near each of so many entries; no state."""

  def build(self, shape):
    self.entries = self.add_weight(
      (BATCH, shape[-1]), initializer="uniform", trainable=False
    )

  def call(self, inputs):
    near = ops.argmax(inputs @ ops.transpose(self.entries), axis=1)
    sums = ops.transpose(ops.one_hot(near, BATCH)) @ ops.stop_gradient(inputs)
    self.entries.assign(0.9 * self.entries + 0.1 * sums)
    return inputs + ops.take(self.entries, near, axis=0)


def test_what_the_whole_batch_updates_is_refused_by_name():
  model = stateful((4,), Codebook())
  with pytest.raises(ExtractionError, match=r"'functional.*' cannot be split"):
    in_microbatches(model, 2).fit(
      normal(4), normal(2), batch_size=BATCH, verbose=0
    )
