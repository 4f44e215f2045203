"""Placeto by REINFORCE, as its paper trains it (arXiv 1906.08879).

The loss is that of tf-agents' `ReinforceAgent`, divided by the steps of an
episode so that the weight of the entropy means the same on every graph. It is
written out because gradients are summed over minibatches before one step of
Adam: an episode of 128 groups does not fit through the network at once.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tfplace.learned.placeto.agents import (
  Losses,
  PlacetoActor,
  PlacetoBank,
  PlacetoConfig,
)
from tfplace.learned.placeto.network import PlacetoNetwork
from tfplace.learned.train.keras2 import time_step as ts
from tfplace.learned.train.keras2 import trajectory
from tfplace.learned.train.objectives import clipped


class ReinforceUpdate:
  """REINFORCE on the episodes of one iteration after the other.

  Everything that the next iteration depends on is a variable: the number of
  iterations, and the mean returns of each graph's last ones.
  """

  def __init__(
    self,
    bank: PlacetoBank,
    policy: PlacetoNetwork,
    config: PlacetoConfig,
  ) -> None:
    self._config = config
    self._policy = policy
    self._actor = PlacetoActor(bank, policy)
    self._actor.create_variables(bank.observation_spec)
    self.optimizer = tf.keras.optimizers.Adam(config.first_learning_rate)
    self.optimizer.build(policy.trainable_variables)
    shape = [bank.num_graphs, config.baseline_rounds, bank.max_decisions]
    self.returns = tf.Variable(tf.zeros(shape), trainable=False)
    self.rounds = tf.Variable(
      tf.zeros([bank.num_graphs], tf.int32), trainable=False
    )
    self.iteration = tf.Variable(0, dtype=tf.int64, trainable=False)
    self._sums = [
      tf.Variable(tf.zeros_like(v), trainable=False)
      for v in policy.trainable_variables
    ]
    self._look = tf.function(self._actor.logits, autograph=False)
    self._accumulate = tf.function(self._add_gradients, autograph=False)

  def tracked(self) -> dict[str, Any]:
    """For a checkpoint, besides the policy."""
    return {
      "optimizer": self.optimizer,
      "returns": self.returns,
      "rounds": self.rounds,
      "iteration": self.iteration,
    }

  def look(self, time_step: ts.TimeStep) -> dict[str, Any]:
    """The logits, [B, max_devices], named as tf-agents' PPO names them."""
    state = tf.nest.map_structure(tf.convert_to_tensor, time_step.observation)
    return {"dist_params": {"logits": self._look(state)}}

  def update(
    self, episodes: trajectory.Trajectory, rng: np.random.Generator
  ) -> Losses:
    """One step of Adam on [B, N + 1] steps, the last of them a boundary."""
    rewards = episodes.reward.numpy()[:, :-1]
    returns = discounted_returns(rewards, self._config.discount)
    graph = int(episodes.observation["graph"][0, 0])
    baseline = self._baseline(graph, returns.mean(axis=0))
    advantages = (returns - baseline).astype(np.float32).reshape(-1)
    states = {
      name: tf.reshape(x[:, :-1], [-1, *x.shape[2:]])
      for name, x in episodes.observation.items()
    }
    actions = tf.reshape(episodes.action[:, :-1], [-1])
    share = min(1.0, int(self.iteration) / self._config.anneal_iterations)
    loss = self._gradients(
      states, actions, advantages, self._between("entropy", share)
    )
    self.optimizer.learning_rate.assign(self._between("learning_rate", share))
    gradients = clipped(
      [tf.identity(s) for s in self._sums], self._config.max_gradient_norm
    )
    self.optimizer.apply_gradients(
      zip(gradients, self._policy.trainable_variables, strict=True)
    )
    self.iteration.assign_add(1)
    return Losses(loss, 0.0, 0.0)

  def _between(self, name: str, share: float) -> float:
    first = getattr(self._config, f"first_{name}")
    return first + share * (getattr(self._config, f"last_{name}") - first)

  def _baseline(self, graph: int, mean: np.ndarray) -> np.ndarray:
    """[N] mean return of each step over the last rounds, this one included."""
    at = int(self.rounds[graph]) % self._config.baseline_rounds
    row = np.zeros(self.returns.shape[-1], np.float32)
    row[: len(mean)] = mean
    self.returns[graph, at].assign(row)
    self.rounds[graph].assign(self.rounds[graph] + 1)
    known = min(int(self.rounds[graph]), self._config.baseline_rounds)
    return self.returns[graph, :known, : len(mean)].numpy().mean(axis=0)

  def _gradients(
    self,
    states: dict[str, tf.Tensor],
    actions: tf.Tensor,
    advantages: np.ndarray,
    entropy_weight: float,
  ) -> float:
    """Fills `_sums` with the gradient of the mean loss; returns the loss."""
    for total in self._sums:
      total.assign(tf.zeros_like(total))
    count, loss = len(advantages), 0.0
    for first in range(0, count, self._config.minibatch):
      rows = slice(first, first + self._config.minibatch)
      loss += float(
        self._accumulate(
          {name: x[rows] for name, x in states.items()},
          actions[rows],
          tf.constant(advantages[rows] / count),
          tf.constant(entropy_weight / count, tf.float32),
        )
      )
    return loss

  def _add_gradients(
    self,
    states: dict[str, tf.Tensor],
    actions: tf.Tensor,
    advantages: tf.Tensor,
    entropy_weight: tf.Tensor,
  ) -> tf.Tensor:
    with tf.GradientTape() as tape:
      logits = self._actor.logits(states)
      loss = reinforce_loss(logits, actions, advantages, entropy_weight)
    gradients = tape.gradient(loss, self._policy.trainable_variables)
    for total, gradient in zip(self._sums, gradients, strict=True):
      total.assign_add(gradient)
    return loss


def reinforce_loss(
  logits: tf.Tensor,
  actions: tf.Tensor,
  advantages: tf.Tensor,
  entropy_weight: tf.Tensor,
) -> tf.Tensor:
  """Minus the sum of advantage times log-probability, and of the entropy.

  Args:
    logits: [S, D] masked.
    actions: [S] devices.
    advantages: [S].
    entropy_weight: scalar.
  """
  log_probs = tf.nn.log_softmax(logits)
  taken = tf.gather(log_probs, actions, batch_dims=1)
  entropy = -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=1)
  return -tf.reduce_sum(advantages * taken) - entropy_weight * tf.reduce_sum(
    entropy
  )


def discounted_returns(rewards: np.ndarray, discount: float) -> np.ndarray:
  """[B, N] rewards -> [B, N] sums of each and, discounted, all later ones."""
  returns = rewards.astype(np.float64)
  for step in reversed(range(returns.shape[1] - 1)):
    returns[:, step] += discount * returns[:, step + 1]
  return returns
