"""Shapes and dtypes of a Keras model's batch: inputs, targets and weights."""

import dataclasses
import inspect
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.extraction.traced import checked_batch_size


@dataclasses.dataclass(frozen=True)
class BatchSpec:
  """Specification of one batch.

  Attributes:
    structure: nested `tf.TensorSpec`s with static shapes, in the structure that
      the step takes.
    values: sample array of each spec in flattened order, or None.
    batch_size: size of the first dimension.
  """

  structure: Any
  values: tuple[np.ndarray | None, ...]
  batch_size: int


def batch_spec(
  model: keras.Model, batch_size: int | None, kind: str, sample: Any
) -> BatchSpec:
  """Derives the batch of a step from the sample or, without one, the model.

  Args:
    model: its inputs and targets define the batch if there is no sample.
    batch_size: first dimension; None takes the sample's or the model's own.
    sample: arrays in the structure that the step takes; Keras' own step also
      accepts `x` alone.

  Raises:
    ExtractionError: neither the model nor the sample defines the inputs or
      targets, or a dimension other than the batch is unknown.
  """
  size = checked_batch_size(batch_size, model.name)
  if batch_size is None:
    size = static_batch_size(model) or size
  if sample is not None:
    return _from_sample(model, batch_size, kind, sample)
  inputs = _inputs(model)
  x = tf.nest.map_structure(
    lambda t: tf.TensorSpec(_shape(model, t, size, "input"), t.dtype), inputs
  )
  structure: Any = (x,)
  if kind != "predict" and (
    model.loss is not None or has_own_step(model, kind)
  ):
    structure = (x, _targets(model, size))
  count = len(tf.nest.flatten(structure))
  return BatchSpec(structure, (None,) * count, size)


def static_batch_size(model: keras.Model) -> int | None:
  """Returns the batch size that the model's inputs fix, or None."""
  inputs = getattr(model, "inputs", None) or ()
  sizes = {tensor.shape[0] for tensor in inputs if len(tensor.shape)}
  return sizes.pop() if len(sizes) == 1 else None


def _from_sample(
  model: keras.Model, batch_size: int | None, kind: str, sample: Any
) -> BatchSpec:
  is_own = has_own_step(model, kind)  # takes the batch as it is
  if not is_own:
    sample = sample if isinstance(sample, tuple) else (sample,)
    sample = sample[:1] if kind == "predict" else sample
  arrays = tf.nest.map_structure(_as_array, sample)
  flat = [a for a in tf.nest.flatten(arrays) if a is not None]
  if not flat or any(a.ndim == 0 for a in flat):
    raise ExtractionError(
      f"the sample of model {model.name!r} is empty or has a scalar: every"
      " array needs a batch dimension"
    )
  size = len(flat[0]) if batch_size is None else batch_size
  structure = tf.nest.map_structure(
    lambda a: (
      None if a is None else tf.TensorSpec((size, *a.shape[1:]), a.dtype)
    ),
    arrays,
  )
  values = [a if len(a) == size else None for a in flat]
  lacks_targets = not is_own and kind != "predict" and len(sample) == 1
  if lacks_targets and model.loss is not None:
    targets = _targets(model, size)
    structure = (*structure, targets)
    values += [None] * len(tf.nest.flatten(targets))
  return BatchSpec(structure, tuple(values), size)


def has_own_step(model: keras.Model, kind: str = "train") -> bool:
  """Returns whether the model overrides Keras' step of this kind.

  Only an overridden step knows the structure of its batch. `kind` is "train",
  "test" or "predict".
  """
  step = inspect.unwrap(getattr(model, f"{kind}_step"))
  keras_step = getattr(keras.Model, f"{kind}_step")
  return getattr(step, "__func__", None) is not keras_step


def _as_array(value: Any) -> np.ndarray | None:
  """Converts to an array; floats get Keras' default dtype, as in `fit`."""
  if value is None:
    return None
  array = np.asarray(value)
  if array.dtype.kind == "f":
    array = array.astype(keras.config.floatx())
  return array


def _inputs(model: keras.Model) -> Any:
  structure = getattr(model, "_inputs_struct", None)
  if structure is None and isinstance(model, keras.Sequential):
    structure = model.inputs[0] if model.inputs else None
  if structure is None:
    raise ExtractionError(
      f"model {model.name!r} does not say the shapes of its inputs; give a"
      " sample batch"
    )
  return structure


def _shape(model: keras.Model, tensor: Any, size: int, what: str) -> Any:
  shape = (size, *tensor.shape[1:])
  if None in shape:
    help_text = (
      "with targets" if what == "output" else "that says the unknown dimensions"
    )
    raise ExtractionError(
      f"{what} {tensor.name!r} of model {model.name!r} has shape"
      f" {tuple(tensor.shape)}; give a sample batch {help_text}",
      op=tensor.name,
    )
  return shape


def _targets(model: keras.Model, size: int) -> Any:
  """Returns targets as the loss expects them: like the output, or class ids."""
  outputs = getattr(model, "_outputs_struct", None)
  if outputs is None and isinstance(model, keras.Sequential):
    outputs = model.outputs[0]
  if outputs is None:
    raise ExtractionError(
      f"model {model.name!r} does not say the shapes of its outputs; give a"
      " sample batch with targets"
    )
  flat = tf.nest.flatten(outputs)
  losses = _losses(model, len(flat))
  specs = [
    _target(model, output, loss, size)
    for output, loss in zip(flat, losses, strict=True)
  ]
  return tf.nest.pack_sequence_as(outputs, specs)


def _losses(model: keras.Model, count: int) -> list[Any]:
  loss = model.loss
  if isinstance(loss, dict):
    names = list(getattr(model, "output_names", loss))
    return [loss.get(name) for name in names]
  if isinstance(loss, (list, tuple)):
    return list(tf.nest.flatten(loss))
  return [loss] * count


def _target(
  model: keras.Model, output: Any, loss: Any, size: int
) -> tf.TensorSpec:
  shape = _shape(model, output, size, "output")
  name = loss if isinstance(loss, str) else getattr(loss, "__name__", None)
  name = name or type(loss).__name__
  if "sparse" in name.lower():
    return tf.TensorSpec(shape[:-1], tf.int32)
  return tf.TensorSpec(shape, output.dtype)
