"""A model's step as one flat GraphDef that a session can run."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import tensorflow as tf


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
