"""PPO for whole placements, with an importance ratio per decision.

The joint ratio of thousands of choices would be clipped or explode at the first
update. Observations index a `GraphBank`, so trajectories store no copies of
graphs.
"""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfplace.learned import Signature
from tfplace.learned.config import TrainConfig
from tfplace.learned.policy_format import PolicyInputs
from tfplace.learned.train import (
  network,
  ppo_clip_agent,
  ppo_utils,
  tensor_spec,
  tf_agent,
  tfp,
)
from tfplace.learned.train import time_step as ts
from tfplace.learned.train.learner import MAX_GRADIENT_NORM, margins

GRAPH = "graph"  # Part of every observation: the index of the graph.
EPOCHS = 4  # Passes over the samples (a public re-creation of GO: 4).
CLIP = 0.2  # Bound on the importance ratio of each decision (PPO, GO: 0.2).
# Clipped fraction of decisions above which no further epoch runs.
MAX_CLIP_FRACTION = 0.1


class GraphBank(tf.Module):
  """Policy inputs of G graphs, concatenated per field.

  Args:
    graphs: At least one graph.
    signature: Signature of each graph's `tensors()`, at least.

  Attributes:
    max_decisions: Maximum number of decisions of a graph.
    max_devices: Maximum number of devices of a graph.
    num_decisions: [G] int32.
    graph_spec: Bounded spec of a graph index, which agents sample.
  """

  def __init__(
    self, graphs: Sequence[PolicyInputs], signature: Signature
  ) -> None:
    super().__init__(name="graph_bank")
    self._signature = signature
    self.max_decisions = max(g.num_decisions for g in graphs)
    self.max_devices = max(g.num_devices for g in graphs)
    self.num_decisions = tf.constant([g.num_decisions for g in graphs])
    self.graph_spec = tensor_spec.BoundedTensorSpec(
      (), tf.int32, 0, len(graphs) - 1, GRAPH
    )
    self._fields = {}
    for field in graphs[0].tensors():
      arrays = [g.tensors()[field] for g in graphs]
      shapes = np.array([array.shape for array in arrays], np.int32)
      bounds = np.concatenate(([0], np.cumsum([a.size for a in arrays])))
      joined = tf.constant(np.concatenate([a.ravel() for a in arrays]))
      self._fields[field] = (joined, tf.constant(bounds), shapes)

  def get(self, graph: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns `PolicyInputs.tensors()` of a graph by scalar index."""
    result = {}
    for field, (joined, bounds, shapes) in self._fields.items():
      part = joined[bounds[graph] : bounds[graph + 1]]
      array = tf.reshape(part, tf.constant(shapes)[graph])
      result[field] = tf.ensure_shape(array, self._signature[field][0])
    return result


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
  batch, which contains one graph. No default of tf-agents is used.

  Attributes:
    adam: Optimizer, with its slots.
  """

  def __init__(self, actor: PlacementActor, config: TrainConfig) -> None:
    self._elite = config.elite
    self._num_decisions = actor.bank.num_decisions
    self._max_decisions = actor.bank.max_decisions
    self.adam = tf.keras.optimizers.Adam(config.learning_rate)
    super().__init__(
      ts.time_step_spec(actor.input_tensor_spec),
      # [max_decisions] devices, padded beyond the decisions of the graph.
      tensor_spec.BoundedTensorSpec(
        (self._max_decisions,),
        *(tf.int32, 0, actor.bank.max_devices - 1, "devices"),
      ),
      optimizer=self.adam,
      actor_net=actor,
      value_net=NoValue(actor.input_tensor_spec),
      greedy_eval=True,
      importance_ratio_clipping=CLIP,
      entropy_regularization=config.entropy,
      policy_l2_reg=0.0,
      value_function_l2_reg=0.0,
      shared_vars_l2_reg=0.0,
      value_pred_loss_coef=0.0,
      num_epochs=1,  # Learners call `train` once per epoch, which traces less.
      discount_factor=1.0,  # One-step episodes.
      lambda_value=1.0,
      use_gae=False,
      use_td_lambda_return=False,
      compute_value_and_advantage_in_train=True,
      normalize_rewards=False,  # Rewards are relative to each graph's baseline.
      # Observations are devices and graph indices.
      normalize_observations=False,
      log_prob_clipping=0.0,
      gradient_clipping=MAX_GRADIENT_NORM,
      value_clipping=None,
      update_normalizers_in_train=False,
      aggregate_losses_across_replicas=False,
      train_step_counter=tf.Variable(0, dtype=tf.int64, name="train_step"),
    )
    self.initialize()
    # Creates the optimizer slots, which a checkpoint must find.
    self.adam.build(actor.trainable_weights)

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
      old.distribution.log_prob(actions),
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
    log_probs = current_policy_distribution.distribution.log_prob(actions)
    ratio = tf.exp(log_probs - sample_action_log_probs)
    bounded = tf.clip_by_value(ratio, 1.0 - CLIP, 1.0 + CLIP)
    advantages = advantages[..., None]
    objective = tf.minimum(ratio * advantages, bounded * advantages)
    count = self._counts(time_steps)[..., None]
    mask = tf.cast(tf.range(self._max_decisions) < count, tf.float32)
    mask *= weights[..., None]
    total = tf.maximum(tf.reduce_sum(mask), 1.0)
    outside = tf.cast(tf.abs(ratio - 1.0) > CLIP, tf.float32)
    self._clip_fraction = tf.reduce_sum(outside * mask) / total
    return -tf.reduce_sum(objective * mask) / total

  def entropy_regularization_loss(
    self,
    time_steps: ts.TimeStep,
    entropy: tf.Tensor,
    weights: tf.Tensor,
    debug_summaries: bool = False,
  ) -> tf.Tensor:
    """Returns the entropy loss per decision; `entropy` is a [B, T] sum."""
    each = entropy / tf.cast(self._counts(time_steps), tf.float32)
    total = tf.maximum(tf.reduce_sum(weights), 1.0)
    return -self._entropy_regularization * tf.reduce_sum(each * weights) / total

  def _counts(self, time_steps: ts.TimeStep) -> tf.Tensor:
    """Returns the numbers of decisions, [B, T]."""
    return tf.gather(self._num_decisions, time_steps.observation[GRAPH])
