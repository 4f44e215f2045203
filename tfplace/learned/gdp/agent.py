"""PPO whose probability ratio is clipped per decision.

An action here is thousands of device choices. The ratio of joint
probabilities is a product of thousands of ratios: it is clipped away, or
explodes, at the first step that changes anything.
"""

from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.agents import tf_agent
from tf_agents.agents.ppo import ppo_clip_agent, ppo_utils
from tf_agents.trajectories import time_step as ts

from tfplace.learned.gdp import agent_networks
from tfplace.learned.gdp.network import PlacementNetwork
from tfplace.learned.train.config import PPOConfig
from tfplace.learned.train.graph_bank import GraphBank
from tfplace.learned.train.objectives import margins


class PerDecisionPPOAgent(ppo_clip_agent.PPOClipAgent):
  """`PPOClipAgent` with a ratio, and a clip, for every decision.

  The advantage of a placement is shared by its decisions; losses are means
  over the decisions of the graph, padding excluded. Advantages are centred
  within the batch, which holds one graph: the baseline of a reward is the
  mean of its siblings.

  Args:
    bank: the graphs.
    elite: see `PPOConfig`.
    *args, **kwargs: as for `PPOClipAgent`.

  Attributes:
    share: [B, 1], and
    own: [B, max_decisions]: the advantage of a decision is share * A + own of
      the shared advantage A (`rl/credit.py`); 1 and 0 until assigned.
  """

  def __init__(
    self, bank: GraphBank, elite: float, *args: Any, **kwargs: Any
  ) -> None:
    self._elite = elite
    self._num_decisions = bank.num_decisions
    self._max_decisions = bank.max_decisions
    self.share = _assigned(tf.ones([1, 1]))
    self.own = _assigned(tf.zeros([1, bank.max_decisions]))
    super().__init__(*args, **kwargs)

  @property
  def value_net(self) -> agent_networks.ValueNetwork:
    return self._value_net

  @property
  def optimizer(self) -> tf.keras.optimizers.Optimizer:
    return self._optimizer

  def build_optimizer(self) -> None:
    """Makes the optimizer's slots, which else the first step makes."""
    self._optimizer.build(
      [*self._actor_net.trainable_weights, *self._value_net.trainable_weights]
    )

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
    """As `PPOAgent.get_loss`, with old log-probabilities per decision.

    Those that tf-agents passes are joint; the per-decision ones are computed
    again from the stored parameters of the distribution.
    """
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
    """[B, 1] returns less their mean over the batch.

    Returns, or what those of the elite are above the best of the others.
    tf-agents then divides by the standard deviation over [B, 2], whose second
    column is padding: centred values keep their mean of 0 there.
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
    """The clipped objective, per decision, then its mean.

    Args:
      time_steps: [B, T] of one graph.
      actions: [B, T, max_decisions] devices.
      sample_action_log_probs: [B, T, max_decisions] when they were drawn.
      advantages: [B, T].
      current_policy_distribution: over [B, T, max_decisions].
      weights: [B, T], 0 where a step is padding.
      debug_summaries: ignored.
    """
    log_probs = decision_log_prob(current_policy_distribution, actions)
    ratio = tf.exp(log_probs - sample_action_log_probs)
    clip = self._importance_ratio_clipping
    clipped = tf.clip_by_value(ratio, 1.0 - clip, 1.0 + clip)
    advantage = self.share[:, None] * advantages[..., None] + self.own[:, None]
    objective = tf.minimum(ratio * advantage, clipped * advantage)
    mask = weights[..., None] * self._decision_mask(time_steps.observation)
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
    """Minus the mean entropy per decision, weighted.

    Args:
      time_steps: [B, T] of one graph.
      entropy: [B, T] summed over decisions, as tf-agents has it.
      weights: [B, T], 0 where a step is padding.
      debug_summaries: ignored.
    """
    count = tf.gather(self._num_decisions, time_steps.observation)
    each = entropy / tf.cast(count, tf.float32)
    total = tf.maximum(tf.reduce_sum(weights), 1.0)
    return -self._entropy_regularization * tf.reduce_sum(each * weights) / total

  def _decision_mask(self, graph: tf.Tensor) -> tf.Tensor:
    """[...] graph numbers -> [..., max_decisions], 0 at padding."""
    count = tf.gather(self._num_decisions, graph)[..., None]
    return tf.cast(tf.range(self._max_decisions) < count, tf.float32)


def _assigned(value: tf.Tensor) -> tf.Variable:
  """A variable for batches of any size."""
  return tf.Variable(
    value, shape=[None, *value.shape[1:]], trainable=False, dtype=tf.float32
  )


def decision_log_prob(
  distribution: tfp.distributions.Independent, actions: tf.Tensor
) -> tf.Tensor:
  """[..., max_decisions] log-probability of each choice."""
  return distribution.distribution.log_prob(actions)


def make_agent(
  bank: GraphBank, policy: PlacementNetwork, config: PPOConfig
) -> PerDecisionPPOAgent:
  """An agent with every choice of tf-agents' PPO made here."""
  return PerDecisionPPOAgent(
    bank,
    config.elite,
    ts.time_step_spec(agent_networks.observation_spec(bank)),
    agent_networks.action_spec(bank),
    optimizer=tf.keras.optimizers.Adam(config.learning_rate),
    actor_net=agent_networks.ActorNetwork(bank, policy),
    value_net=agent_networks.ValueNetwork(bank),
    greedy_eval=True,
    importance_ratio_clipping=config.clip,
    lambda_value=1.0,
    discount_factor=1.0,  # one-step episodes
    entropy_regularization=config.entropy,
    policy_l2_reg=0.0,
    value_function_l2_reg=0.0,
    shared_vars_l2_reg=0.0,
    value_pred_loss_coef=config.value_weight,
    num_epochs=1,  # the learner calls `train` once per epoch: less to trace
    use_gae=False,
    use_td_lambda_return=False,
    normalize_rewards=False,  # relative to a baseline of each graph already
    normalize_observations=False,  # graph numbers
    log_prob_clipping=0.0,
    gradient_clipping=config.max_gradient_norm,
    value_clipping=None,
    compute_value_and_advantage_in_train=True,
    update_normalizers_in_train=False,
    aggregate_losses_across_replicas=False,
    train_step_counter=tf.Variable(0, dtype=tf.int64, name="train_step"),
  )
