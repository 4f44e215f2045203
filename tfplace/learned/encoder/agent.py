"""PPO for whole placements, with an importance ratio per decision.

The joint ratio of thousands of choices would be clipped or explode at the first
update.
"""

import abc
import functools
from typing import Any

import tensorflow as tf

from tfplace.learned.train import (
  network,
  ppo_clip_agent,
  ppo_utils,
  tensor_spec,
  tf_agent,
  tfp,
)
from tfplace.learned.train import time_step as ts
from tfplace.learned.train.config import PPOConfig
from tfplace.learned.train.objectives import margins
from tfplace.learned.train.ppo import PPO, GraphBank

GRAPH = "graph"  # part of every observation: the index of the graph


class PlacementActor(network.Network):
  """Network from observations to distributions over placements.

  A batch contains one graph. Padding decisions choose the first device with
  probability 1, so that their log-probability, ratio and entropy are always 0,
  1 and 0.
  """

  def __init__(self, bank: GraphBank, observation_spec: dict[str, Any]) -> None:
    super().__init__(input_tensor_spec=observation_spec, name="actor")
    self.bank = bank

  @abc.abstractmethod
  def logits(self, observation: dict[str, tf.Tensor]) -> tf.Tensor:
    """Maps [...] observations to [..., max_decisions, max_devices] logits."""

  def call(
    self,
    observation: dict[str, tf.Tensor],
    step_type: tf.Tensor | None = None,
    network_state: Any = (),
    training: bool = False,
  ) -> tuple[tfp.distributions.Distribution, Any]:
    """Maps [...] observations to a distribution over [..., max_decisions]."""
    logits = self.logits(observation)
    shape = self.bank.max_decisions, self.bank.max_devices
    logits.set_shape([*observation[GRAPH].shape, *shape])
    choices = tfp.distributions.Categorical(logits=logits, dtype=tf.int32)
    return tfp.distributions.Independent(choices, 1), network_state


class NoValue(network.Network):
  """Value network of zeros without weights, for tf-agents' PPO.

  An episode is one step of one graph. The best possible prediction is the same
  for all placements of the graph, and the mean reward of the batch is better.
  """

  def __init__(self, observation_spec: dict[str, Any]) -> None:
    super().__init__(input_tensor_spec=observation_spec, name="no_value")

  def call(
    self,
    observation: dict[str, tf.Tensor],
    step_type: tf.Tensor | None = None,
    network_state: Any = (),
    training: bool = False,
  ) -> tuple[tf.Tensor, Any]:
    """Maps [...] observations to [...] zeros."""
    return tf.zeros_like(observation[GRAPH], tf.float32), network_state


class PerDecisionPPOAgent(ppo_clip_agent.PPOClipAgent):
  """`PPOClipAgent` with a clipped importance ratio per decision.

  The decisions of a placement share its advantage. Losses are means over the
  decisions of the graph without padding. The baseline is the mean reward of the
  batch, which contains one graph.
  """

  def __init__(
    self, bank: GraphBank, elite: float, *args: Any, **kwargs: Any
  ) -> None:
    self._elite = elite
    self._num_decisions = bank.num_decisions
    self._max_decisions = bank.max_decisions
    super().__init__(*args, **kwargs)

  def get_loss(
    self,
    time_steps: ts.TimeStep,
    actions: tf.Tensor,
    act_log_probs: tf.Tensor,
    returns: tf.Tensor,
    normalized_advantages: tf.Tensor,
    action_distribution_parameters: Any,
    *args: Any,
    **kwargs: Any,
  ) -> tf_agent.LossInfo:
    """Computes the loss with old log-probabilities per decision, not joint."""
    old = ppo_utils.distribution_from_spec(
      self._action_distribution_spec,
      action_distribution_parameters,
      legacy_distribution_network=False,
    )
    return super().get_loss(
      time_steps,
      actions,
      decision_log_prob(old, actions),
      returns,
      normalized_advantages,
      action_distribution_parameters,
      *args,
      **kwargs,
    )

  def compute_advantages(
    self,
    rewards: tf.Tensor,
    returns: tf.Tensor,
    discounts: tf.Tensor,
    value_preds: tf.Tensor,
  ) -> tf.Tensor:
    """Returns [B, 1] `margins` of the returns minus their batch mean.

    `value_preds` are zeros (`NoValue`). tf-agents then divides by the standard
    deviation over [B, 2], whose second column is padding. Centered values keep
    their mean of 0 there.
    """
    returns = margins(returns, self._elite)
    return returns - tf.reduce_mean(returns)

  def policy_gradient_loss(
    self,
    time_steps: ts.TimeStep,
    actions: tf.Tensor,
    sample_action_log_probs: tf.Tensor,
    advantages: tf.Tensor,
    current_policy_distribution: tfp.distributions.Independent,
    weights: tf.Tensor,
    debug_summaries: bool = False,
  ) -> tf.Tensor:
    """Computes the mean clipped objective over decisions.

    Args:
      time_steps: [B, T] of one graph.
      actions: [B, T, max_decisions] devices.
      sample_action_log_probs: [B, T, max_decisions] at sampling time.
      advantages: [B, T].
      current_policy_distribution: Distribution over [B, T, max_decisions].
      weights: [B, T], 0 where a step is padding.
    """
    log_probs = decision_log_prob(current_policy_distribution, actions)
    ratio = tf.exp(log_probs - sample_action_log_probs)
    clip = self._importance_ratio_clipping
    bounded = tf.clip_by_value(ratio, 1.0 - clip, 1.0 + clip)
    advantages = advantages[..., None]
    objective = tf.minimum(ratio * advantages, bounded * advantages)
    mask = self._decision_mask(time_steps.observation[GRAPH])
    mask *= weights[..., None]
    count = tf.maximum(tf.reduce_sum(mask), 1.0)
    outside = tf.cast(tf.abs(ratio - 1.0) > clip, tf.float32)
    self._clip_fraction = tf.reduce_sum(outside * mask) / count
    return -tf.reduce_sum(objective * mask) / count

  def entropy_regularization_loss(
    self,
    time_steps: ts.TimeStep,
    entropy: tf.Tensor,
    weights: tf.Tensor,
    debug_summaries: bool = False,
  ) -> tf.Tensor:
    """Returns the entropy loss per decision; `entropy` is a [B, T] sum."""
    count = tf.gather(self._num_decisions, time_steps.observation[GRAPH])
    each = entropy / tf.cast(count, tf.float32)
    total = tf.maximum(tf.reduce_sum(weights), 1.0)
    return -self._entropy_regularization * tf.reduce_sum(each * weights) / total

  def _decision_mask(self, graph: tf.Tensor) -> tf.Tensor:
    count = tf.gather(self._num_decisions, graph)[..., None]
    return tf.cast(tf.range(self._max_decisions) < count, tf.float32)


def decision_log_prob(
  distribution: tfp.distributions.Independent, actions: tf.Tensor
) -> tf.Tensor:
  """Returns [..., max_decisions] log-probabilities of the choices."""
  return distribution.distribution.log_prob(actions)


def make_ppo(actor: PlacementActor, config: PPOConfig) -> PPO:
  """Builds PPO for one-step episodes, without a value network."""
  bank = actor.bank
  # [max_decisions] devices, padded beyond the decisions of the graph.
  action_spec = tensor_spec.BoundedTensorSpec(
    (bank.max_decisions,), tf.int32, 0, bank.max_devices - 1, "devices"
  )
  return PPO(
    actor,
    NoValue(actor.input_tensor_spec),
    action_spec,
    config,
    functools.partial(PerDecisionPPOAgent, bank, config.elite),
    discount_factor=1.0,  # one-step episodes
    lambda_value=1.0,
    use_gae=False,
    use_td_lambda_return=False,
    compute_value_and_advantage_in_train=True,
  )
