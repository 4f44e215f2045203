"""Shapes and dtypes of a Keras model's batch: inputs, targets and weights."""

import dataclasses
import importlib
import inspect
import zipfile
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.extraction import seen_batches
from tfplace.extraction.traced import DEFAULT_BATCH_SIZE, checked_batch_size
from tfplace.graph.given_batch import GivenBatch


@dataclasses.dataclass(frozen=True)
class BatchSpec:
  """Specification of one batch.

  Attributes:
    structure: nested `tf.TensorSpec`s with static shapes, as a step takes them.
    values: sample array of each spec in flattened order, or None.
    batch_size: size of the first dimension.
  """

  structure: Any
  values: tuple[np.ndarray | None, ...]
  batch_size: int


def trace_for_gpus() -> None:
  """Lets Keras trace recurrent layers as it does where TensorFlow sees a GPU.

  There, they are ops of cuDNN. The process that leaves its GPUs to others
  traces the step that those run.
  """
  module = importlib.import_module("keras.src.backend.tensorflow.rnn")
  vars(module)["_is_gpu_available"] = lambda: True


def batch_spec(
  model: keras.Model, batch_size: int | None, kind: str, sample: Any
) -> BatchSpec:
  """Derives the batch of a step from the sample or, without one, the model.

  Without a sample, the batch is that of the first `fit`, `evaluate` or
  `predict` since `compile`, or else follows from the inputs and outputs.

  Args:
    model: a Keras model.
    batch_size: first dimension; None takes the sample's, the model's own or
      that of this `fit` if it is known, or else 32.
    kind: "train", "test" or "predict".
    sample: arrays in the structure that the step takes, or a `GivenBatch`;
      Keras' own step also accepts `x` alone.
  """
  size = static_batch_size(model)
  if batch_size is not None:
    size = checked_batch_size(batch_size, model.name)
  if isinstance(sample, GivenBatch):
    sample = _arrays(model, sample)
  if sample is not None:
    return _from_sample(model, batch_size, kind, sample)
  seen = seen_batches.seen_batch(model, kind)
  if seen is None:
    size = size or DEFAULT_BATCH_SIZE
    x = _inputs(model, size)
    has_targets = model.loss is not None or has_own_step(model, kind)
    structure: Any = (x,)
    if kind != "predict" and has_targets:
      structure = (x, _targets(model, x, size))
  else:
    structure = seen
    if not has_own_step(model, kind):
      x, y, weight = keras.utils.unpack_x_y_sample_weight(seen)
      parts = (x,) if kind == "predict" else (x, y, weight)
      structure = tuple(part for part in parts if part is not None)
    first = next(s for s in tf.nest.flatten(structure) if s is not None)
    size = size or first.shape[0] or DEFAULT_BATCH_SIZE
    structure = tf.nest.map_structure(
      lambda t: t and tf.TensorSpec((size, *t.shape[1:]), t.dtype), structure
    )
  flat = [spec for spec in tf.nest.flatten(structure) if spec is not None]
  return BatchSpec(structure, (None,) * len(flat), size)


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
    targets = _targets(model, structure[0], size)
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


def _inputs(model: keras.Model, size: int) -> Any:
  """Returns the specs of the inputs of a model that has seen no batch."""
  structure = _named(model, "inputs")
  if structure is None:
    structure = seen_batches.built_inputs(model)
  if structure is None:
    raise ExtractionError(
      f"model {model.name!r} has seen no batch and does not say the shapes of"
      f" its inputs; {_ways_out(None)}"
    )
  shapes = [(size, *t.shape[1:]) for t in tf.nest.flatten(structure)]
  if any(None in shape for shape in shapes):
    open_shapes = {
      t.name: tuple(t.shape)
      for t in tf.nest.flatten(structure)
      if None in t.shape[1:]
    }
    raise ExtractionError(
      f"model {model.name!r} has seen no batch, and its inputs leave dimensions"
      f" open ({', '.join(f'{k!r} {v}' for k, v in open_shapes.items())});"
      f" {_ways_out(structure)}",
      op=next(iter(open_shapes)),
    )
  return tf.nest.map_structure(
    lambda t: tf.TensorSpec((size, *t.shape[1:]), t.dtype), structure
  )


_OPEN_SIZE = 128  # Example in messages of a dimension that a model leaves open.


def _ways_out(inputs: Any) -> str:
  """Says how to give the shapes of a batch, with an example of the inputs."""
  flat = [] if inputs is None else tf.nest.flatten(inputs)
  sizes = {
    t.name: [DEFAULT_BATCH_SIZE, *(n or _OPEN_SIZE for n in t.shape[1:])]
    for t in flat
  }
  shapes = ",".join(
    f"{name}:{'x'.join(map(str, shape))}" for name, shape in sizes.items()
  )
  return (
    f"in the shell, give --input_shapes={shapes or '32x128'} with your sizes,"
    " or --sample=batch.npz; in Python, fit the model once, or give"
    " sample=(x, y)"
  )


def _arrays(model: keras.Model, given: GivenBatch) -> Any:
  """Returns a described batch as arrays in the structure that `fit` takes."""
  inputs = _named(model, "inputs")
  if not given.path:
    zeros = {
      name: np.zeros(shape, _dtype_of(inputs, name))
      for name, shape in given.input_shapes.items()
    }
    return _packed(model, "input", inputs, zeros)
  arrays = _loaded(given.path)
  y, weight = arrays.pop("y", None), arrays.pop("sample_weight", None)
  outputs = _named(model, "outputs")
  flat = [] if outputs is None else tf.nest.flatten(outputs)
  names = [tensor.name for tensor in flat]
  by_name = {name: arrays.pop(name) for name in names if name in arrays}
  if y is None and by_name:
    y = _packed(model, "output", outputs, by_name)
  if list(arrays) == ["x"]:
    arrays = {"": arrays["x"]}
  x = _packed(model, "input", inputs, arrays)
  if y is None and weight is None:
    return x
  return (x, y) if weight is None else (x, y, weight)


def _loaded(path: str) -> dict[str, np.ndarray]:
  try:
    with np.load(path, allow_pickle=False) as file:
      return {name: file[name] for name in file.files}
  except (
    *(OSError, EOFError, ValueError, AttributeError),
    zipfile.BadZipFile,
  ) as error:
    raise ExtractionError(
      f"sample {path!r} is no .npz file of arrays ({type(error).__name__}:"
      f" {error}); write it by numpy.savez({path!r}, x=..., y=...)"
    ) from error


def _named(model: keras.Model, what: str) -> Any:
  """Returns the symbolic "inputs" or "outputs" of a model, or None."""
  structure = getattr(model, f"_{what}_struct", None)
  if structure is None and isinstance(model, keras.Sequential):
    structure = (getattr(model, what, None) or [None])[0]
  return structure


def _dtype_of(structure: Any, name: str) -> str:
  flat = [] if structure is None else tf.nest.flatten(structure)
  if name == "" and len(flat) == 1:
    return str(flat[0].dtype)
  dtypes = {t.name: str(t.dtype) for t in flat}
  return dtypes.get(name, keras.config.floatx())


def _packed(
  model: keras.Model,
  what: str,
  structure: Any,
  arrays: Mapping[str, np.ndarray],
) -> Any:
  """Arranges named arrays like the inputs or outputs of a model."""
  if structure is None:
    if list(arrays) != [""]:
      raise ExtractionError(
        f"model {model.name!r} has no named {what}s: give one shape without a"
        " name (32x128), or a file with arrays x and y"
      )
    return arrays[""]
  flat = tf.nest.flatten(structure)
  if list(arrays) == [""] and len(flat) == 1:
    arrays = {flat[0].name: arrays[""]}
  names = [tensor.name for tensor in flat]
  if sorted(arrays) != sorted(names):
    given = ", ".join(name or "one without a name" for name in arrays)
    raise ExtractionError(
      f"the {what}s of model {model.name!r} are {', '.join(names)}, and the"
      f" batch has {given or 'none'}: give one for each"
    )
  for tensor in flat:
    shape, given_shape = tuple(tensor.shape), arrays[tensor.name].shape
    if len(shape) != len(given_shape) or any(
      size not in (None, given)
      for size, given in zip(shape[1:], given_shape[1:], strict=True)
    ):
      raise ExtractionError(
        f"{what} {tensor.name!r} of model {model.name!r} has shape {shape}, and"
        f" the batch has {given_shape}"
      )
  return tf.nest.map_structure(lambda t: arrays[t.name], structure)


def _targets(model: keras.Model, x: Any, size: int) -> Any:
  """Returns targets as the loss expects them: like the output, or class ids."""
  outputs = _outputs(model, x)
  flat = tf.nest.flatten(outputs)
  losses = _losses(model, len(flat))
  specs = [
    _target(model, output, loss, size)
    for output, loss in zip(flat, losses, strict=True)
  ]
  return tf.nest.pack_sequence_as(outputs, specs)


def _outputs(model: keras.Model, x: Any) -> Any:
  """Returns the outputs of a model for inputs `x`, as Keras tensors."""
  outputs = _named(model, "outputs")
  known = [] if outputs is None else tf.nest.flatten(outputs)
  if known and all(None not in tensor.shape[1:] for tensor in known):
    return outputs
  try:
    return model.compute_output_spec(
      tf.nest.map_structure(
        lambda t: keras.KerasTensor(t.shape, t.dtype.name), x
      )
    )
  except Exception as error:
    raise ExtractionError(
      f"model {model.name!r} does not say the shapes of its outputs"
      f" ({type(error).__name__}); {_ways_out(None)}"
    ) from error


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
  shape = (size, *output.shape[1:])
  if None in shape:
    raise ExtractionError(
      f"output {output.name!r} of model {model.name!r} has shape"
      f" {tuple(output.shape)}, so targets are unknown: in the shell, give"
      " --sample=batch.npz; in Python, fit the model once, or give"
      " sample=(x, y)",
      op=output.name,
    )
  name = loss if isinstance(loss, str) else getattr(loss, "__name__", None)
  name = name or type(loss).__name__
  if "sparse" in name.lower():
    return tf.TensorSpec(shape[:-1], tf.int32)
  return tf.TensorSpec(shape, output.dtype)
