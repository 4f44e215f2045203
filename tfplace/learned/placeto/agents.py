"""Placeto by PPO: the tf-agents agent, and what it makes of episodes."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.agents.ppo import ppo_clip_agent
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tfplace.learned.placeto.agent_networks import (
  PlacetoActor,
  PlacetoBank,
  PlacetoValue,
)
from tfplace.learned.placeto.learner import PlacetoConfig
from tfplace.learned.placeto.network import PlacetoNetwork
from tfplace.learned.train.config import PPOConfig


class Losses(NamedTuple):
  """Of the last gradient step of an iteration."""

  policy: float
  value: float
  clip_fraction: float


def make_ppo(
  bank: PlacetoBank,
  policy: PlacetoNetwork,
  ppo: PPOConfig,
  config: PlacetoConfig,
) -> ppo_clip_agent.PPOClipAgent:
  """PPO with every choice of tf-agents made here.

  An action is one device, so the ratio of probabilities is that of one
  decision as it is. Returns and advantages are computed once per iteration
  (`preprocess_sequence`), before minibatches are drawn.
  """
  return ppo_clip_agent.PPOClipAgent(
    ts.time_step_spec(bank.observation_spec),
    tensor_spec.BoundedTensorSpec(
      (), tf.int32, minimum=0, maximum=bank.max_devices - 1, name="device"
    ),
    optimizer=tf.keras.optimizers.Adam(ppo.learning_rate),
    actor_net=PlacetoActor(bank, policy),
    value_net=PlacetoValue(bank),
    greedy_eval=True,
    importance_ratio_clipping=ppo.clip,
    lambda_value=config.gae_lambda,
    discount_factor=config.discount,
    entropy_regularization=ppo.entropy,
    policy_l2_reg=0.0,
    value_function_l2_reg=0.0,
    shared_vars_l2_reg=0.0,
    value_pred_loss_coef=ppo.value_weight,
    num_epochs=1,  # `train` is called once per minibatch
    use_gae=True,
    use_td_lambda_return=True,
    normalize_rewards=False,  # relative to a baseline of each graph already
    normalize_observations=False,  # devices and numbers of graphs
    log_prob_clipping=0.0,
    gradient_clipping=ppo.max_gradient_norm,
    value_clipping=None,
    compute_value_and_advantage_in_train=False,
    update_normalizers_in_train=False,
    aggregate_losses_across_replicas=False,
    train_step_counter=tf.Variable(0, dtype=tf.int64, name="train_step"),
  )


class PPOUpdate:
  """PPO on the episodes of one iteration after the other."""

  def __init__(
    self,
    bank: PlacetoBank,
    policy: PlacetoNetwork,
    ppo: PPOConfig,
    config: PlacetoConfig,
  ) -> None:
    self._ppo = ppo
    steps = (ppo.samples - 1) * int(tf.reduce_min(bank.num_decisions))
    # Of one size for all graphs: another size would be traced anew.
    self._minibatch = max(1, min(config.minibatch, steps))
    self.agent = make_ppo(bank, policy, ppo, config)
    self.agent.initialize()
    self.optimizer = self.agent._optimizer  # tf-agents has no accessor
    # Built now, so that a checkpoint finds the slots.
    self.optimizer.build(
      [
        *self.agent.actor_net.trainable_weights,
        *self.agent._value_net.trainable_weights,
      ]
    )
    self._look = tf.function(self._distribution, autograph=False)
    self._train = tf.function(self.agent.train, autograph=False)

  def tracked(self) -> dict[str, Any]:
    """For a checkpoint, besides the policy."""
    return {
      "value": self.agent._value_net,
      "optimizer": self.optimizer,
      "train_step": self.agent.train_step_counter,
    }

  def look(self, time_step: ts.TimeStep) -> dict[str, Any]:
    """What of the policy must be kept for training, `dist_params` with logits
    [B, max_devices] among it."""
    return self._look(tf.nest.map_structure(tf.convert_to_tensor, time_step))

  def _distribution(self, time_step: ts.TimeStep) -> dict[str, Any]:
    return self.agent.collect_policy.distribution(time_step).info

  def update(
    self, episodes: trajectory.Trajectory, rng: np.random.Generator
  ) -> Losses:
    """A few epochs over [B, N + 1] steps, the last of them a boundary.

    Args:
      episodes: whole ones, of one graph.
      rng: draws the minibatches.
    """
    ready = self.agent.preprocess_sequence(episodes)
    states = tf.nest.map_structure(_flat, ready)
    count = int(states.reward.shape[0])
    for _ in range(self._ppo.epochs):
      order = rng.permutation(count)
      outside = []
      for first in range(0, count - self._minibatch + 1, self._minibatch):
        chosen = order[first : first + self._minibatch]
        loss = self._train(
          tf.nest.map_structure(
            lambda x, rows=chosen: tf.gather(x, rows), states
          )
        ).extra
        outside.append(float(loss.clip_fraction))
      if np.mean(outside) > self._ppo.max_clip_fraction:
        break
    return Losses(
      float(loss.policy_gradient_loss),
      float(loss.value_estimation_loss),
      float(np.mean(outside)),
    )


def _flat(tensor: tf.Tensor) -> tf.Tensor:
  """[B, N + 1, ...] -> [B * N, 1, ...] without the boundaries."""
  inner = tensor[:, :-1]
  return tf.reshape(inner, [-1, 1, *inner.shape[2:]])
