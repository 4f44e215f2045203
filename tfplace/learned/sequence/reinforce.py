"""REINFORCE with a moving-average baseline, per decision.

What the RNN-based placer (Mirhoseini et al. 2017) and the hierarchical one
(HDP, 2018) are trained with. Log-probabilities are those of single decisions,
then a mean: a placement's joint one is a sum of thousands.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfplace.learned.train.config import check_elite


@dataclasses.dataclass(frozen=True)
class ReinforceConfig:
  """REINFORCE as the recurrent placers use it; values without a source were
  chosen by trial.

  Attributes:
    samples: placements per iteration, judged in one call.
    learning_rate: of Adam. (hierarchical_controller: 0.1. On graphs of ten
      ops, 1e-3 had learnt nothing after 10,000 placements.)
    entropy: weight of the mean entropy per decision.
    baseline_decay: share of the moving-average baseline that each iteration
      keeps (TensorFlow's hierarchical_controller: 0.9).
    infeasible_reward: of a placement that does not fit or cannot run, unless
      one that fits has less (`root_rewards`); -3 is 9 times the baseline's
      time. HDP has -10 where step times are in seconds, mostly below 1.
    noise: standard deviation of the noise on the grouper's logits, as a share
      of their root mean square (hierarchical_controller: 0.5).
    noise_steps: iterations of a graph with that noise (HDP: 500).
    valid_only_after: iterations of a graph after which only placements that
      fit teach (hierarchical_controller: 1,000).
    max_gradient_norm: gradients are scaled down to it (hierarchical_controller:
      1).
    elite: share of the samples that teach, see `PPOConfig`; the papers' is 1.
  """

  samples: int = 16
  learning_rate: float = 1e-2
  entropy: float = 0.01
  baseline_decay: float = 0.9
  infeasible_reward: float = -3.0
  noise: float = 0.5
  noise_steps: int = 500
  valid_only_after: int = 1000
  max_gradient_norm: float = 1.0
  elite: float = 1.0

  def __post_init__(self) -> None:
    check_elite(self.elite)


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
  """Moving averages of each graph's rewards: the baseline, and their spread.

  The papers have the average only. Advantages are divided by the spread, so
  that the weight of entropy means the same on every graph.
  """

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
    batches, placements that do not fit neither teach nor count.

    Args:
      graph: number of the graph.
      step_us: [B], infinite where a placement does not fit.
      rewards: [B].
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
