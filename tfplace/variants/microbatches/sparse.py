"""Accumulation of sparse gradients that keeps the slices of the whole step.

Keras' optimizers square the values of `tf.IndexedSlices` without first adding
slices of equal index. The sum over microbatches must therefore have the same
slices as the whole step. Slices of lookups by example are concatenated. Slices
of lookups that are the same in every microbatch (such as positions) are added.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.variants.microbatches.graph_copies import ancestors

_PASSES_INDICES = ("Reshape", "Identity", "Cast", "ExpandDims", "Squeeze")


class SparseGradient(NamedTuple):
  """Slices of each lookup, and whether its indices depend on the batch.

  Only lookups read the variable.
  """

  lookups: tuple[tf.IndexedSlices, ...]
  of_batch: tuple[bool, ...]


def followed(
  gradient: tf.IndexedSlices,
  lookups: Mapping[str, bool],
  batch: Collection[str],
) -> SparseGradient:
  """Splits a sparse gradient of a microbatch into those of single lookups.

  Args:
    gradient: the gradient.
    lookups: name of an index tensor -> whether it depends on the batch.
    batch: names of the microbatch's data tensors.
  """
  shape = gradient.dense_shape
  pairs = _pairs(gradient.values, gradient.indices)
  return SparseGradient(
    tuple(tf.IndexedSlices(v, i, shape) for v, i in pairs),
    tuple(_is_of_batch(indices, lookups, batch) for _, indices in pairs),
  )


def _pairs(
  values: tf.Tensor, indices: tf.Tensor
) -> list[tuple[tf.Tensor, tf.Tensor]]:
  """Separates the values and indices that the gradient tape concatenated."""
  ops = values.op, indices.op
  is_joined = all(op.type == "ConcatV2" for op in ops)
  if not is_joined or len(ops[0].inputs) != len(ops[1].inputs):
    return [(values, indices)]
  parts = zip(ops[0].inputs[:-1], ops[1].inputs[:-1], strict=True)
  return [pair for v, i in parts for pair in _pairs(v, i)]


def _is_of_batch(
  indices: tf.Tensor, lookups: Mapping[str, bool], batch: Collection[str]
) -> bool:
  tensor = indices
  while tensor.name not in lookups and tensor.op.type in _PASSES_INDICES:
    tensor = tensor.op.inputs[0]
  if tensor.name in lookups:
    return lookups[tensor.name]
  if any(name in batch for name in ancestors(tensor)):
    raise ExtractionError(
      f"the sparse gradient {indices.name!r} cannot be split: its lookup is"
      " in a function or a loop of its own, so that its indices cannot be"
      " followed: look up outside of it",
      op=indices.op.name,
    )
  return False


def added(
  gradients: Sequence[SparseGradient],
  add: Callable[[Sequence[tf.Tensor]], tf.Tensor],
) -> tf.IndexedSlices:
  """Adds the gradients of all microbatches; `add` adds their tensors."""
  values, indices = [], []
  first = gradients[0]
  for number, of_batch in enumerate(first.of_batch):
    parts = [gradient.lookups[number] for gradient in gradients]
    if of_batch:
      values += [part.values for part in parts]
      indices += [part.indices for part in parts]
    else:
      values.append(add([part.values for part in parts]))
      indices.append(parts[0].indices)
  if len(values) == 1:
    return tf.IndexedSlices(values[0], indices[0], first.lookups[0].dense_shape)
  return tf.IndexedSlices(
    tf.concat(values, 0), tf.concat(indices, 0), first.lookups[0].dense_shape
  )
