"""Imitation loss, gradient clipping, elites and entropy of learners."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf


def clipped(gradients: Sequence[tf.Tensor], max_norm: float) -> list[tf.Tensor]:
  """Clips gradients to a global norm of `max_norm`.

  Unlike `tf.clip_by_global_norm`, finite gradients whose squares overflow yield
  no NaNs; an LSTM over 48 steps can produce such gradients. If a gradient is
  infinite or NaN, all are set to zero. Sparse gradients become dense.
  """
  dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
  largest = tf.reduce_max([tf.reduce_max(tf.abs(g)) for g in dense])
  is_finite = tf.math.is_finite(largest)
  unit = tf.where(is_finite & (largest > 0), largest, 1.0)
  scaled = [tf.where(is_finite, g / unit, 0.0) for g in dense]
  norm = tf.maximum(tf.linalg.global_norm(scaled), 1e-9)
  factor = tf.minimum(unit, max_norm / norm)
  return [g * factor for g in scaled]


def margins(rewards: tf.Tensor, share: float) -> tf.Tensor:
  """Computes the rewards of the elite above the best of the others.

  The others get 0. This is the risk-seeking policy gradient (Petersen et al.,
  "Deep symbolic regression", ICLR 2021): a placer keeps its best sample, so the
  mean does not matter.

  Args:
    rewards: [B] or [B, 1] rewards of samples of one graph.
    share: Elite fraction of the samples, in (0, 1]; 1 returns the rewards.
  """
  if share >= 1.0:
    return rewards
  ranked = tf.sort(tf.reshape(rewards, [-1]), direction="DESCENDING")
  count = tf.cast(tf.size(ranked), tf.float32)
  kept = tf.cast(tf.round(share * count), tf.int32)
  rest = ranked[tf.clip_by_value(kept, 1, tf.size(ranked) - 1)]
  return tf.maximum(rewards - rest, 0.0)


def imitation_loss(
  logits: tf.Tensor, allowed: tf.Tensor, target: tf.Tensor, smoothing: float
) -> tf.Tensor:
  """Computes the mean cross-entropy of [N, D] logits and [N] targets.

  Smoothing distributes probability evenly over the other allowed devices.
  """
  exact = tf.one_hot(target, tf.shape(logits)[1])
  others = tf.cast(allowed, tf.float32) - exact
  number = tf.reduce_sum(others, axis=1, keepdims=True)
  kept = tf.where(number > 0, smoothing, 0.0)
  wanted = (1.0 - kept) * exact + kept * others / tf.maximum(number, 1.0)
  log_probs = tf.nn.log_softmax(logits)
  terms = tf.where(allowed, wanted * log_probs, 0.0)
  return -tf.reduce_mean(tf.reduce_sum(terms, axis=1))


def mean_entropy(logits: np.ndarray) -> float:
  """Computes the mean entropy of [N, D] masked logits in nats."""
  shifted = logits - logits.max(axis=1, keepdims=True)
  weight = np.exp(shifted)
  probs = weight / weight.sum(axis=1, keepdims=True)
  log_probs = np.log(np.maximum(probs, 1e-30))
  return float(-(probs * log_probs).sum(axis=1).mean())
