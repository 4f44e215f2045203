"""Sizes and roles of a Keras model's variables, as `model.summary()` counts."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfplace.extraction.traced import VariableSpec
from tfplace.graph.estimate import (
  NON_TRAINABLE,
  OPTIMIZER,
  OTHER,
  TRAINABLE,
  WeightSizes,
)

_COPY = re.compile(r"_\d+$")  # Added to the second node of one name.


def weight_sizes(model: keras.Model) -> WeightSizes:
  """Returns the sizes of a built model's variables.

  Metrics are left out, as in `model.summary()`.
  """
  trainable = _size(model.trainable_weights)
  non_trainable = _size(model.non_trainable_weights)
  optimizer = _size(_optimizer_variables(model))
  return WeightSizes(*trainable, *non_trainable, *optimizer)


def with_roles(
  variables: Mapping[str, VariableSpec], model: keras.Model
) -> dict[str, VariableSpec]:
  """Returns the variables of a traced step with their roles."""
  roles = {v.path: OPTIMIZER for v in _optimizer_variables(model)}
  roles |= {v.path: NON_TRAINABLE for v in model.non_trainable_weights}
  roles |= {v.path: TRAINABLE for v in model.trainable_weights}

  def role(node: str) -> str:
    return roles.get(node) or roles.get(_COPY.sub("", node), OTHER)

  return {
    node: dataclasses.replace(spec, role=role(node))
    for node, spec in variables.items()
  }


def _optimizer_variables(model: keras.Model) -> list[Any]:
  optimizer = getattr(model, "optimizer", None)
  if optimizer is None or not getattr(optimizer, "built", False):
    return []
  return list(optimizer.variables)


def _size(variables: Iterable[Any]) -> tuple[int, float]:
  """Returns scalars and bytes; a variable that is listed twice counts once."""
  count, num_bytes = 0, 0.0
  for variable in {id(v): v for v in variables}.values():
    scalars = math.prod(variable.shape)
    count += scalars
    num_bytes += scalars * tf.as_dtype(variable.dtype).size
  return count, num_bytes
