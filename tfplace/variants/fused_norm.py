"""Batch normalization by TensorFlow's fused op, for steps without XLA.

Keras 3 traces BatchNormalization of a training step as some 20 ops a pass, each
of which reads or writes an activation. `FusedBatchNormV3` and its gradient take
their place while the step is traced.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tfplace.variants.microbatches.whole_batch import replaced

_SCOPE = "tfplace_fused_norm"  # of the ops, inside that of their layer
_LEAST_EPSILON = 1.001e-5  # of cuDNN, as in `tf.compat.v1.nn`
_TYPES = (tf.float32, tf.float16, tf.bfloat16)


def is_named(names: Iterable[str]) -> bool:
  """Returns whether ops of these names are of a step with fused layers."""
  return any(f"/{_SCOPE}/" in name for name in names)


@contextlib.contextmanager
def fused(model: keras.Model) -> Iterator[None]:
  """Fuses BatchNormalization of training steps that are traced inside.

  Outputs, gradients and moving statistics are Keras' up to rounding. Layers of
  subclasses, masks, other axes than the last and inputs that are not images
  keep Keras' ops.
  """
  with contextlib.ExitStack() as stack:
    for layer in model._flatten_layers():
      if _is_fit(layer):
        call = functools.partial(_call, layer)
        stack.enter_context(replaced(layer, "call", call))
    yield


def _is_fit(layer: keras.layers.Layer) -> bool:
  return (
    type(layer) is keras.layers.BatchNormalization
    and "call" not in vars(layer)
    and layer.axis in (-1, 3)
    and layer.epsilon >= _LEAST_EPSILON
    and layer.variable_dtype == "float32"
    and not (layer.synchronized or getattr(layer, "renorm", False))
  )


def _call(
  layer: Any, inputs: Any, training: Any = None, mask: Any = None
) -> Any:
  is_plain = (
    (training is True and layer.trainable and mask is None)
    and (isinstance(inputs, tf.Tensor) and inputs.shape.rank == 4)
    and (inputs.dtype in _TYPES and inputs.dtype == layer.compute_dtype)
  )
  if not is_plain:
    return type(layer).call(layer, inputs, training=training, mask=mask)
  channels = layer.moving_mean.shape[0]
  with tf.name_scope(_SCOPE):
    y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
      x=inputs,
      scale=tf.ones([channels]) if layer.gamma is None else layer.gamma,
      offset=tf.zeros([channels]) if layer.beta is None else layer.beta,
      mean=tf.zeros([0]),
      variance=tf.zeros([0]),
      epsilon=layer.epsilon,
    )
    # The op divides by the number of rows less one, Keras by that of rows.
    rows = tf.cast(tf.size(inputs) // channels, tf.float32)
    batch = mean, variance * ((rows - 1.0) / rows)
    moving = layer.moving_mean, layer.moving_variance
    for old, new in zip(moving, batch, strict=True):
      kept = ops.convert_to_tensor(old) * layer.momentum
      old.assign(kept + new * (1.0 - layer.momentum))
  return y
