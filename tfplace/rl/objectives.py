"""What several learners want of logits: losses and figures. No networks."""

import numpy as np

from tfplace.policies import keras2

keras2.check_training_process()

import tensorflow as tf  # noqa: E402


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
