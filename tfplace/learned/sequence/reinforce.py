"""REINFORCE for policies of several choices per sample.

Losses average log-probabilities per decision, because the joint log-probability
of a placement is a sum of thousands of terms.
"""

import dataclasses

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Choices:
  """Logits and choices of one kind of decision.

  Attributes:
    logits: [B or 1, K, C], large negative where not allowed.
    chosen: [B, K] int32.
    weight: [B or 1, K] float32, 0 for a decision without effect.
  """

  logits: tf.Tensor
  chosen: tf.Tensor
  weight: tf.Tensor

  def log_probs(self) -> tf.Tensor:
    """Returns [B, K] log-probabilities of the choices."""
    every = tf.nn.log_softmax(self.logits)
    if self.logits.shape[0] != 1:
      return tf.gather(every, self.chosen, batch_dims=2)
    # Placements share the logits; gathering by decision avoids copies.
    found = tf.gather(every[0], tf.transpose(self.chosen), batch_dims=1)
    return tf.transpose(found)

  def mean(self, values: tf.Tensor) -> tf.Tensor:
    """Averages [B, K] values over decisions, weighted, to [B]."""
    total = tf.maximum(tf.reduce_sum(self.weight, axis=1), 1e-9)
    return tf.reduce_sum(values * self.weight, axis=1) / total

  def loss(self, advantages: tf.Tensor, smoothing: tf.Tensor) -> tf.Tensor:
    """Computes the policy gradient loss.

    With advantages of 1 it is a cross-entropy.

    Args:
      advantages: [B], shared by all decisions of a placement.
      smoothing: Share of the weight that is spread over the allowed choices.
    """
    every = tf.nn.log_softmax(self.logits)
    allowed = tf.cast(every > -1e8, tf.float32)
    total = tf.reduce_sum(allowed * every, axis=-1)
    spread = smoothing * total / tf.maximum(tf.reduce_sum(allowed, -1), 1.0)
    log_probs = (1.0 - smoothing) * self.log_probs() + spread
    return -tf.reduce_mean(self.mean(log_probs) * advantages)

  def entropy(self) -> tf.Tensor:
    """Returns the mean entropy per decision in nats."""
    log_probs = tf.nn.log_softmax(self.logits)
    terms = tf.where(log_probs > -1e8, tf.exp(log_probs) * log_probs, 0.0)
    return -tf.reduce_mean(self.mean(tf.reduce_sum(terms, axis=-1)))


def advantages(returns: np.ndarray) -> np.ndarray:
  """Standardizes [B, ...] returns by the samples of the same step."""
  off = returns - returns.mean(axis=0)
  return (off / (off.std() + 1e-6)).astype(np.float32)
