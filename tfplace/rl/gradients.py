"""Gradients that are clipped by their norm, however large they are."""

from collections.abc import Sequence

from tfplace.policies import keras2

keras2.check_training_process()

import tensorflow as tf  # noqa: E402


def clipped(gradients: Sequence[tf.Tensor], max_norm: float) -> list[tf.Tensor]:
  """Scaled down together to a norm of at most `max_norm`.

  `tf.clip_by_global_norm` makes NaNs of finite gradients whose squares
  overflow. Those of an LSTM over 48 steps do now and then: 1e20 was seen.

  Args:
    gradients: of any shapes, float32; sparse ones become dense.
    max_norm: above 0.

  Returns:
    The gradients, or zeros where one of them is infinite or NaN.
  """
  dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
  largest = tf.reduce_max([tf.reduce_max(tf.abs(g)) for g in dense])
  is_finite = tf.math.is_finite(largest)
  unit = tf.where(is_finite & (largest > 0), largest, 1.0)
  scaled = [tf.where(is_finite, g / unit, 0.0) for g in dense]
  norm = tf.maximum(tf.linalg.global_norm(scaled), 1e-9)
  factor = tf.minimum(unit, max_norm / norm)
  return [g * factor for g in scaled]
