"""How often a functional `While` runs its body, where its graph tells."""

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import tensor_util

from tfplace.cost.bodies import Body

_SAME = ("Identity", "StopGradient", "Cast")
_LOOPS = ("While", "StatelessWhile")


Conditions = Callable[[tf.Operation], Body]  # a loop -> its condition


def trip_count(loop: tf.Operation, condition_of: Conditions) -> int | None:
  """Iterations of a loop that counts up by one to a static limit, else None.

  Of several limits joined by "and", the smallest counts: a loop that may stop
  early is taken to run to its end. A counter that steps by more than one is
  taken for one that steps by one.

  Args:
    loop: a `While` op.
    condition_of: the body of a loop's condition.
  """
  condition = condition_of(loop)

  def value(tensor: tf.Tensor) -> float | None:
    tensor = _source(tensor)
    for position, argument in enumerate(condition.inputs):
      if argument is tensor:
        return _value(loop.inputs[position], condition_of)
    return _value(tensor, condition_of)

  counts = []
  for compare in _comparisons(condition.outputs[0]):
    start, limit = (value(tensor) for tensor in compare.inputs)
    if start is not None and limit is not None:
      inclusive = compare.type == "LessEqual"
      counts.append(max(0, int(np.ceil(limit - start)) + inclusive))
  return min(counts, default=None)


def _comparisons(tensor: tf.Tensor) -> Iterator[tf.Operation]:
  op = tensor.op
  if op.type in ("Less", "LessEqual"):
    yield op
  elif op.type == "LogicalAnd" or op.type in _SAME:
    for value in op.inputs:
      yield from _comparisons(value)


def _value(tensor: tf.Tensor, condition_of: Conditions) -> float | None:
  """A scalar that is static, or counts the iterations of another loop."""
  tensor = _source(tensor)
  value = tensor_util.constant_value(tensor)
  if value is not None:
    return float(value) if np.size(value) == 1 else None
  # TensorFlow's loops carry a counter from 0 first, and a gradient's loop runs
  # as often as the loop that it belongs to did.
  if tensor.op.type in _LOOPS and tensor.value_index == 0:
    return trip_count(tensor.op, condition_of)
  return None


def _source(tensor: tf.Tensor) -> tf.Tensor:
  while tensor.op.type in _SAME:
    tensor = tensor.op.inputs[0]
  return tensor
