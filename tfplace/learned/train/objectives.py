"""What learners make of logits and rewards: losses, gradients, baselines.

Log-probabilities are those of single decisions, then a mean: a placement's
joint one is a sum of thousands.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfplace.learned.train.config import ReinforceConfig


def clipped(gradients: Sequence[tf.Tensor], max_norm: float) -> list[tf.Tensor]:
  """Scaled down together to a norm of at most `max_norm`.

  `tf.clip_by_global_norm` makes NaNs of finite gradients whose squares
  overflow, as those of an LSTM over 48 steps do now and then. All zeros where
  one of the gradients is infinite or NaN; sparse ones become dense.
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


@dataclasses.dataclass(frozen=True)
class Choices:
  """One kind of decision of a policy: its logits and what was chosen.

  Attributes:
    logits: [B or 1, K, C], far below 0 where not allowed.
    chosen: [B, K] int32.
    weight: [B or 1, K] float32, 0 for a decision without an effect.
  """

  logits: tf.Tensor
  chosen: tf.Tensor
  weight: tf.Tensor

  def log_probs(self) -> tf.Tensor:
    """[B, K] log-probability of each choice."""
    every = tf.nn.log_softmax(self.logits)
    if self.logits.shape[0] != 1:
      return tf.gather(every, self.chosen, batch_dims=2)
    # The same logits for all placements: no copy of them for each.
    found = tf.gather(every[0], tf.transpose(self.chosen), batch_dims=1)
    return tf.transpose(found)

  def mean(self, values: tf.Tensor) -> tf.Tensor:
    """[B, K] -> [B], weighted means over the decisions of a placement."""
    total = tf.maximum(tf.reduce_sum(self.weight, axis=1), 1e-9)
    return tf.reduce_sum(values * self.weight, axis=1) / total

  def entropy(self) -> tf.Tensor:
    """Scalar, nats per decision."""
    log_probs = tf.nn.log_softmax(self.logits)
    terms = tf.where(log_probs > -1e8, tf.exp(log_probs) * log_probs, 0.0)
    return -tf.reduce_mean(self.mean(tf.reduce_sum(terms, axis=-1)))


def policy_loss(kinds: Sequence[Choices], advantages: tf.Tensor) -> tf.Tensor:
  """Scalar to be minimised: the sum over kinds of means over decisions.

  Args:
    kinds: what was chosen, such as groups and devices.
    advantages: [B], shared by all decisions of a placement.
  """
  loss = 0.0
  for kind in kinds:
    loss -= tf.reduce_mean(kind.mean(kind.log_probs() * advantages[:, None]))
  return loss


class MovingBaseline(tf.Module):
  """Moving averages of each graph's rewards and, beyond the papers, of their
  spread, so that the weight of entropy means the same on every graph."""

  def __init__(self, graphs: int, config: ReinforceConfig) -> None:
    super().__init__(name="moving_baseline")
    self._config = config
    zeros = np.zeros(graphs)
    self._mean = tf.Variable(zeros, name="mean")
    self._variance = tf.Variable(zeros, name="variance")
    self._updates = tf.Variable(zeros.astype(np.int64), name="updates")

  def updates(self, graph: int) -> int:
    """Batches of a graph seen so far."""
    return int(self._updates[graph])

  def advantages(
    self, graph: int, step_us: np.ndarray, rewards: np.ndarray
  ) -> np.ndarray:
    """[B] rewards less the baseline, over the spread; then the update.

    A graph's first batch is its own baseline. After `valid_only_after`
    batches, placements that do not fit ([B] `step_us` infinite) neither teach
    nor count.
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
