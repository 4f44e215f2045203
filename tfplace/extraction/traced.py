"""A step of a model as one flat GraphDef for a session, and its batch size."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tfplace.errors import ExtractionError


@dataclasses.dataclass(frozen=True)
class VariableSpec:
  """A resource variable of a traced step.

  Attributes:
    node: name of its `VarHandleOp` in the GraphDef.
    shape: static shape.
    dtype: element type.
    value: initial value, or None where it is unknown (zeros stand in).
  """

  node: str
  shape: tuple[int, ...]
  dtype: tf.DType
  value: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class FeedSpec:
  """An input of a traced step: fully static shape, and a sample if known."""

  tensor: str
  shape: tuple[int, ...]
  dtype: tf.DType
  value: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class TracedStep:
  """One step (training or inference) as a session runs it.

  Every node of `graph_def` is one op of the extracted `OpGraph`, under the
  same name. Variables captured by the traced function are `VarHandleOp` nodes
  with a `shared_name` of their own.

  Attributes:
    name: name of the model.
    graph_def: flat graph; functional control flow is inlined where exact.
    feeds: placeholders to feed, by node name.
    fetches: tensor names to fetch; the loss comes first when training.
    targets: node names to run for their effect (updates of variables).
    variables: by node name of the `VarHandleOp`.
    training: whether it is a training step.
    layers: op name -> names of the Keras layers whose op, gradient or variable
      it is, innermost first; without what belongs to no layer.
  """

  name: str
  graph_def: tf.compat.v1.GraphDef
  feeds: Mapping[str, FeedSpec]
  fetches: tuple[str, ...]
  targets: tuple[str, ...]
  variables: Mapping[str, VariableSpec]
  training: bool
  layers: Mapping[str, tuple[str, ...]] = dataclasses.field(
    default_factory=dict
  )


DEFAULT_BATCH_SIZE = 32  # Keras' own default of `fit`


def checked_batch_size(batch_size: int | None, model: str) -> int:
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
