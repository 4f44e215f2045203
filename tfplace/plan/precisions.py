"""Keras models rebuilt under another dtype policy."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

from tfplace.errors import ExtractionError

PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")


def policy_of(model: Any) -> str:
  """Returns the name of the dtype policy of a model's heaviest layers."""
  sizes: dict[str, int] = {}
  for layer in _layers(model):
    size = sum(
      math.prod(weight.shape)
      for weight in getattr(layer, "_trainable_variables", [])
    )
    name = layer.dtype_policy.name
    sizes[name] = sizes.get(name, 0) + size
  if not sizes:
    return str(model.dtype_policy.name)
  return max(sizes, key=lambda name: sizes[name])


def _layers(model: Any) -> list[Any]:
  return list(model._flatten_layers(include_self=False))


def rebuilt(model: Any, precision: str) -> Any:
  """Returns a copy of a model under another dtype policy, compiled alike.

  Layers whose policy differs from that of the model's heaviest layers keep
  theirs, such as a softmax in float32. The weights of the copy are new.

  Raises:
    ExtractionError: the model cannot be rebuilt from its configuration.
  """
  import keras

  before = policy_of(model)
  if before == precision:
    return model
  classes = {type(layer).__name__: type(layer) for layer in _layers(model)}
  try:
    with policy_scope(precision), keras.saving.custom_object_scope(classes):
      config = _with_policy(model.get_config(), before, precision)
      copy = type(model).from_config(config)
      if model.compiled:
        copy.compile_from_config(model.get_compile_config())
  except Exception as error:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise ExtractionError(
      f"model {model.name!r} cannot be rebuilt in {precision}:"
      f" {reason:.200}; build it under keras.config.set_dtype_policy"
      f"({precision!r}) and estimate that model"
    ) from error
  if policy_of(copy) != precision:
    raise ExtractionError(
      f"model {model.name!r} cannot be rebuilt in {precision}: its layers set"
      f" {policy_of(copy)!r} themselves; build it with that policy"
    )
  if model.compiled and not copy.compiled:
    raise ExtractionError(
      f"model {model.name!r} cannot be rebuilt in {precision}: its loss or"
      " optimizer has no configuration; compile a copy of it yourself"
    )
  return copy


def _with_policy(value: Any, old: str, new: str) -> Any:
  """Returns a configuration with one dtype policy replaced by another."""
  if isinstance(value, list | tuple):
    return type(value)(_with_policy(item, old, new) for item in value)
  if not isinstance(value, dict):
    return value
  if value.get("class_name") == "DTypePolicy":
    inner = value.get("config") or {}
    if inner.get("name") == old:
      return {**value, "config": {**inner, "name": new}}
  return {key: _with_policy(item, old, new) for key, item in value.items()}


@contextlib.contextmanager
def policy_scope(precision: str | None) -> Iterator[None]:
  """Builds models under a dtype policy; None changes nothing."""
  import keras

  if precision is None:
    yield
    return
  kept = keras.config.dtype_policy()
  keras.config.set_dtype_policy(precision)
  try:
    yield
  finally:
    keras.config.set_dtype_policy(kept)
