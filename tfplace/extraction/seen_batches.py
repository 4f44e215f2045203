"""Shapes of the batches that a Keras model has seen.

Keras keeps no record of them. But the functions that `fit`, `evaluate` and
`predict` trace have them in their signatures, and a built model knows the
shapes it was built for.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

_TRACES = "_list_all_concrete_functions"  # of a `tf.function`
_FUNCTIONS = {
  "train": ("train_function", "test_function"),
  "test": ("test_function", "train_function"),
  "predict": ("predict_function", "train_function", "test_function"),
}


def seen_batch(model: keras.Model, kind: str) -> Any:
  """Returns the batch that a traced step of a model took, or None.

  The batch of another kind ("train", "test" or "predict") is used, as `(x, y)`
  or `(x,)`, if there is none of this kind.

  Returns:
    Nested `tf.TensorSpec`s, of which only the first dimension may be unknown.
    If shapes changed since the model was compiled, these are the first ones,
    because TensorFlow then generalizes what it traces.
  """
  for name in _FUNCTIONS[kind]:
    for batch in _traced_data(getattr(model, name, None)):
      # Keras predicts a list of batches at once.
      several = name == "predict_function" and isinstance(batch, tuple | list)
      data = batch[0] if several else batch
      if _is_known(data):
        return data
  return None


def built_inputs(model: keras.Model) -> Any:
  """Returns the inputs that a subclassed model was built for, or None.

  Their type is Keras' default float type, since Keras records no other.
  """
  if not model.built:
    return None
  shape = (model.get_build_config() or {}).get("input_shape")
  specs = None if shape is None else _specs(shape)
  return specs if _is_known(specs) else None


def _traced_data(function: Any) -> Iterator[Any]:
  """Yields the data of each trace of a function of Keras.

  The function is a `tf.function` of a batch, or encloses a wrapped one.
  """
  steps = [function]
  if inspect.isfunction(function):
    steps += inspect.getclosurevars(function).nonlocals.values()
  for step in steps:
    inner = inspect.unwrap(step, stop=lambda f: hasattr(f, _TRACES))
    for trace in getattr(inner, _TRACES, list)():
      (data,), _ = trace.structured_input_signature
      yield data


def _is_known(data: Any) -> bool:
  leaves = tf.nest.flatten(data)
  return bool(leaves) and all(
    isinstance(leaf, tf.TensorSpec)
    and leaf.shape.rank
    and leaf.shape[1:].is_fully_defined()
    for leaf in leaves
    if leaf is not None
  )


def _specs(shape: Any) -> Any:
  if isinstance(shape, dict):
    return {name: _specs(value) for name, value in shape.items()}
  if all(size is None or isinstance(size, int) for size in shape):
    return tf.TensorSpec(tuple(shape), keras.config.floatx())
  return [_specs(value) for value in shape]
