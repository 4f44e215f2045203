"""The batch size of a step: its default, checks, and unknown dimensions."""

import tensorflow as tf

from tfplace.errors import ExtractionError

DEFAULT_BATCH_SIZE = 32  # Keras' own default of `fit`


def checked(batch_size: int | None, model: str) -> int:
  """The batch size, or the default where it is None.

  Raises:
    ExtractionError: below 1.
  """
  if batch_size is None:
    return DEFAULT_BATCH_SIZE
  if batch_size < 1:
    raise ExtractionError(f"batch size {batch_size} of {model!r} is below 1")
  return batch_size


def fill_batch(
  shape: tf.TensorShape, batch_size: int, tensor: str | None, model: str
) -> tuple[int, ...]:
  """The static shape of an input, its unknown first dimension filled.

  Args:
    shape: as the model declares it.
    batch_size: at least 1.
    tensor: name of the input, for errors.
    model: name of the model or file, for errors.

  Raises:
    ExtractionError: the rank or another dimension is unknown.
  """
  dims = None if shape.rank is None else shape.as_list()
  if dims is None or None in dims[1:]:
    raise ExtractionError(
      f"input {tensor!r} of {model!r} has shape {shape}: only the first"
      " dimension may be unknown",
      op=tensor,
    )
  return tuple([batch_size if d is None else d for d in dims[:1]] + dims[1:])
