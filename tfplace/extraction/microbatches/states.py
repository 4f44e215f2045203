"""State that a step keeps for each example, cut as the batch is.

A stateful recurrent layer or the memory of Transformer-XL is a variable with a
row for each example: what one batch leaves there is read by the next. A
microbatch gets its examples' rows, and the rows that all microbatches leave are
assigned together. Nothing says which variables these are: they are what the
forward pass assigns, with as many rows as the batch has examples, in a step
that cannot be traced on a part of the batch unless they are cut, too.
"""

import contextlib
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf


def candidates(model: keras.Model, examples: int) -> list[keras.Variable]:
  """Variables that may have a row for each of so many examples."""
  other = {id(v) for metric in model.metrics for v in metric.variables}
  for layer in model._flatten_layers():
    if isinstance(layer, keras.layers.BatchNormalization):
      other |= {id(v) for v in layer.non_trainable_variables}
  known = [*model.non_trainable_variables]
  for layer in _stateful(model):  # Keras does not count their states
    known += tf.nest.flatten(layer.states)
  return [
    variable
    for variable in known
    if tuple(variable.shape[:1]) == (examples,)
    and id(variable) not in other
    and variable.name != "seed_generator_state"
  ]


def read(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
  """Their values, in the current graph."""
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
  """Inside, the variables are what a microbatch has of them.

  Args:
    model: whose variables they are.
    variables: to cut.
    rows: the microbatch's rows of each.

  Yields:
    Index of a variable -> its rows as they were last assigned.
  """
  assigned: dict[int, tf.Tensor] = {}
  with contextlib.ExitStack() as stack:
    for number, (variable, part) in enumerate(
      zip(variables, rows, strict=True)
    ):
      stack.enter_context(_instead(variable, part, number, assigned))
    if variables:
      stack.enter_context(_batch_size_of_loops(model, rows[0].shape[0]))
    yield assigned


@contextlib.contextmanager
def _instead(
  variable: keras.Variable,
  rows: tf.Tensor,
  number: int,
  assigned: dict[int, tf.Tensor],
) -> Iterator[None]:
  """One variable is its rows, and what is assigned goes to `assigned`."""
  kept = variable._value, variable._shape

  def assign(value: tf.Tensor) -> None:
    assigned[number] = variable._value = tf.cast(value, rows.dtype)

  variable._value, variable._shape = rows, tuple(rows.shape)
  variable._direct_assign = assign
  try:
    yield
  finally:
    variable._value, variable._shape = kept
    del variable._direct_assign


@contextlib.contextmanager
def _batch_size_of_loops(model: keras.Model, size: int) -> Iterator[None]:
  """Stateful recurrent layers expect so many examples."""
  layers = _stateful(model)
  kept = [layer._expected_batch_size for layer in layers]
  try:
    for layer in layers:
      layer._expected_batch_size = size
    yield
  finally:
    for layer, before in zip(layers, kept, strict=True):
      layer._expected_batch_size = before


def _stateful(model: keras.Model) -> list[keras.layers.RNN]:
  return [
    layer
    for layer in model._flatten_layers()
    if isinstance(layer, keras.layers.RNN) and layer.stateful
  ]
