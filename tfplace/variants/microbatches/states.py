"""Per-example states of a step, sliced like the batch.

The state of a stateful recurrent layer or the memory of Transformer-XL is a
variable with one row per example that connects batches. A microbatch gets the
rows of its examples, and the rows that all microbatches leave are assigned
together. Models do not declare these variables. They have as many rows as the
batch has examples, the forward pass assigns them, and the step cannot be traced
on a slice of the batch unless they are sliced, too.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf


def candidates(model: keras.Model, examples: int) -> list[keras.Variable]:
  """Lists the variables that may have one row per example."""
  other = {id(v) for metric in model.metrics for v in metric.variables}
  for layer in model._flatten_layers():
    if isinstance(layer, keras.layers.BatchNormalization):
      other |= {id(v) for v in layer.non_trainable_variables}
  known = [*model.non_trainable_variables]
  for layer in _stateful(model):  # Keras does not list their states
    known += tf.nest.flatten(layer.states)
  return [
    variable
    for variable in known
    if tuple(variable.shape[:1]) == (examples,)
    and id(variable) not in other
    and variable.name != "seed_generator_state"
  ]


def read(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
  """Reads the variables in the current graph."""
  values = []
  for variable in variables:
    with tf.name_scope(f"{variable.path}/"):
      values.append(variable._value.read_value())
  return values


@contextlib.contextmanager
def cut(
  model: keras.Model,
  variables: Sequence[keras.Variable],
  rows: Sequence[tf.Tensor],
) -> Iterator[dict[int, tf.Tensor]]:
  """Replaces the variables by a microbatch's rows in this context.

  Yields the rows last assigned, by index of a variable.
  """
  assigned: dict[int, tf.Tensor] = {}
  layers = _stateful(model) if variables else []
  kept = [(variable._value, variable._shape) for variable in variables]
  sizes = [layer._expected_batch_size for layer in layers]

  def assign(number: int, value: tf.Tensor) -> None:
    cast = tf.cast(value, rows[number].dtype)
    assigned[number] = variables[number]._value = cast

  try:
    for number, (variable, part) in enumerate(
      zip(variables, rows, strict=True)
    ):
      variable._value, variable._shape = part, tuple(part.shape)
      variable._direct_assign = functools.partial(assign, number)
    for layer in layers:
      layer._expected_batch_size = rows[0].shape[0]
    yield assigned
  finally:
    for variable, (value, shape) in zip(variables, kept, strict=True):
      variable._value, variable._shape = value, shape
      del variable._direct_assign
    for layer, size in zip(layers, sizes, strict=True):
      layer._expected_batch_size = size


def _stateful(model: keras.Model) -> list[keras.layers.RNN]:
  return [
    layer
    for layer in model._flatten_layers()
    if isinstance(layer, keras.layers.RNN) and layer.stateful
  ]
