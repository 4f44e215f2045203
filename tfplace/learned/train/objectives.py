"""Losses, gradient clipping, baselines and entropy of learners.

Losses average log-probabilities per decision, because the joint log-probability
of a placement is a sum of thousands of terms.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfplace.learned.train.config import ReinforceConfig


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

  def entropy(self) -> tf.Tensor:
    """Returns the mean entropy per decision in nats."""
    log_probs = tf.nn.log_softmax(self.logits)
    terms = tf.where(log_probs > -1e8, tf.exp(log_probs) * log_probs, 0.0)
    return -tf.reduce_mean(self.mean(tf.reduce_sum(terms, axis=-1)))


def policy_loss(kinds: Sequence[Choices], advantages: tf.Tensor) -> tf.Tensor:
  """Computes the policy gradient loss, summed over kinds of decision.

  Args:
    kinds: Choices of each kind, such as groups and devices.
    advantages: [B], shared by all decisions of a placement.
  """
  loss = 0.0
  for kind in kinds:
    loss -= tf.reduce_mean(kind.mean(kind.log_probs() * advantages[:, None]))
  return loss


class MovingBaseline(tf.Module):
  """Moving averages of the mean and variance of each graph's rewards.

  The papers average only the mean. The variance normalizes advantages, so that
  the entropy weight is independent of the graph.
  """

  def __init__(self, graphs: int, config: ReinforceConfig) -> None:
    super().__init__(name="moving_baseline")
    self._config = config
    zeros = np.zeros(graphs)
    self._mean = tf.Variable(zeros, name="mean")
    self._variance = tf.Variable(zeros, name="variance")
    self._updates = tf.Variable(zeros.astype(np.int64), name="updates")

  def updates(self, graph: int) -> int:
    """Returns the number of batches of a graph so far."""
    return int(self._updates[graph])

  def advantages(
    self, graph: int, step_us: np.ndarray, rewards: np.ndarray
  ) -> np.ndarray:
    """Normalizes [B] rewards by the baseline, then updates it.

    The first batch of a graph is its own baseline. After `valid_only_after`
    batches, infeasible placements (infinite `step_us`, [B]) get advantage 0 and
    do not update the baseline.
    """
    config = self._config
    counts = np.isfinite(step_us)
    if self.updates(graph) < config.valid_only_after:
      counts[:] = True
    mean, variance = float(self._mean[graph]), float(self._variance[graph])
    if counts.any():
      fresh = rewards[counts]
      if not self.updates(graph):
        mean, variance = fresh.mean(), fresh.var()
      spread = np.sqrt(variance) + 1e-6
      advantages = np.where(counts, (rewards - mean) / spread, 0.0)
      keep = config.baseline_decay
      off = ((fresh - mean) ** 2).mean()
      self._assign(self._mean, graph, keep * mean + (1 - keep) * fresh.mean())
      self._assign(self._variance, graph, keep * variance + (1 - keep) * off)
    else:
      advantages = np.zeros(len(rewards))
    self._assign(self._updates, graph, self.updates(graph) + 1)
    return advantages.astype(np.float32)

  def _assign(self, variable: tf.Variable, graph: int, value: float) -> None:
    values = variable.numpy()
    values[graph] = value
    variable.assign(values)
