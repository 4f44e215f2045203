"""What learners make of logits and rewards: losses, gradients, figures.

No networks, no state.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf


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


def margins(rewards: tf.Tensor, share: float) -> tf.Tensor:
  """What those of the elite are above the best of the others; others have 0.

  Risk-seeking policy gradient (Petersen et al., "Deep symbolic regression",
  ICLR 2021): what a placer keeps is the best of its draws, not their mean.

  Args:
    rewards: [B] or [B, 1], of one graph's samples.
    share: of the samples that are the elite, in (0, 1]; 1 leaves the rewards
      as they are.
  """
  if share >= 1.0:
    return rewards
  ranked = tf.sort(tf.reshape(rewards, [-1]), direction="DESCENDING")
  count = tf.cast(tf.size(ranked), tf.float32)
  kept = tf.cast(tf.round(share * count), tf.int32)
  rest = ranked[tf.clip_by_value(kept, 1, tf.size(ranked) - 1)]
  return tf.maximum(rewards - rest, 0.0)


def clipped_objective(
  ratio: tf.Tensor, advantages: tf.Tensor, clip: float
) -> tf.Tensor:
  """PPO's objective, to be maximised (Schulman et al. 2017, eq. 7).

  Args:
    ratio: of a choice's probability now to that when it was drawn.
    advantages: of the choices; broadcast.
    clip: bound on the ratio.
  """
  bounded = tf.clip_by_value(ratio, 1.0 - clip, 1.0 + clip)
  return tf.minimum(ratio * advantages, bounded * advantages)


def imitation_loss(
  logits: tf.Tensor, allowed: tf.Tensor, target: tf.Tensor, smoothing: float
) -> tf.Tensor:
  """Mean cross-entropy of [N, D] logits with smoothed [N] targets.

  The smoothing goes to the other devices that are allowed, evenly.
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
  """Mean entropy per decision of [N, D] masked logits, nats."""
  shifted = logits - logits.max(axis=1, keepdims=True)
  weight = np.exp(shifted)
  probs = weight / weight.sum(axis=1, keepdims=True)
  log_probs = np.log(np.maximum(probs, 1e-30))
  return float(-(probs * log_probs).sum(axis=1).mean())
