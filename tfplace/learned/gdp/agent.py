"""GDP by PPO: graphs by number, actor and value network, and the agent.

An observation is one int32, the number of a graph in a bank: methods that
replay whole graphs spend their memory on copies. A batch holds one graph, so
the policy runs once per batch and its logits are broadcast. An action is
thousands of device choices, and the ratio of joint probabilities a product of
thousands of ratios, which is clipped away, or explodes, at the first step that
changes anything: so probability ratios are clipped per decision.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfplace.learned.gdp.features import Features
from tfplace.learned.gdp.network import NEVER, PlacementNetwork
from tfplace.learned.train.config import PPOConfig
from tfplace.learned.train.keras2 import (
  network,
  ppo_clip_agent,
  ppo_utils,
  tensor_spec,
  tf_agent,
  tfp,
)
from tfplace.learned.train.keras2 import time_step as ts
from tfplace.learned.train.objectives import clipped_objective, margins

_PER_DECISION = ("type_id", "node")
_PER_LINK = ("edge_src", "edge_dst", "edge")
_PER_DEVICE = ("device",)
_PER_PAIR = ("pair", "allowed")
LARGE = 8192  # decisions above which gradients save memory rather than time


class GraphBank(tf.Module):
  """Features of G graphs, joined end to end.

  Attributes:
    num_graphs: G.
    max_decisions: most decisions of any graph: the length of an action.
    max_devices: most devices of any graph.
    is_large: whether gradients recompute what they need (`layers.recomputed`).
    num_decisions: [G] int32.
    num_devices: [G] int32.
    summary: [G, S] float32, what the value network sees of a graph.
  """

  def __init__(self, graphs: Sequence[Features]) -> None:
    super().__init__(name="graph_bank")
    self.num_graphs = len(graphs)
    decisions = np.array([g.num_decisions for g in graphs], np.int32)
    devices = np.array([g.num_devices for g in graphs], np.int32)
    self.max_decisions = int(decisions.max())
    self.max_devices = int(devices.max())
    self.is_large = self.max_decisions > LARGE
    self.num_decisions = tf.constant(decisions)
    self.num_devices = tf.constant(devices)
    self.summary = tf.constant(np.stack([_summary(g) for g in graphs]))
    sizes = {
      _PER_DECISION: decisions,
      _PER_LINK: np.array([len(g.edge_src) for g in graphs]),
      _PER_DEVICE: devices,
      _PER_PAIR: decisions * devices,
    }
    self._rows: dict[str, tf.Tensor] = {}
    self._bounds: dict[str, tf.Tensor] = {}
    for fields, counts in sizes.items():
      bounds = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
      for field in fields:
        arrays = [getattr(g, field) for g in graphs]
        if fields is _PER_PAIR:
          arrays = [a.reshape(-1, *a.shape[2:]) for a in arrays]
        self._rows[field] = tf.constant(np.concatenate(arrays))
        self._bounds[field] = tf.constant(bounds)

  def get(self, graph: tf.Tensor) -> dict[str, tf.Tensor]:
    """Scalar graph number -> `Features.tensors()` of that graph."""
    result = {}
    for field, rows in self._rows.items():
      bounds = self._bounds[field]
      result[field] = rows[bounds[graph] : bounds[graph + 1]]
    shape = [self.num_decisions[graph], self.num_devices[graph]]
    for field in _PER_PAIR:
      tail = result[field].shape[1:]
      result[field] = tf.reshape(result[field], [*shape, *tail])
    return result


def _summary(graph: Features) -> np.ndarray:
  """[S] float32: means over decisions and devices, and the two sizes."""
  sizes = [np.log(graph.num_decisions) / 10, graph.num_devices / 8]
  parts = [graph.node.mean(axis=0), graph.device.mean(axis=0), sizes]
  return np.concatenate(parts).astype(np.float32)


def observation_spec(bank: GraphBank) -> tensor_spec.BoundedTensorSpec:
  """Scalar graph number; bounded, since building a network samples it."""
  return tensor_spec.BoundedTensorSpec(
    (), tf.int32, minimum=0, maximum=bank.num_graphs - 1, name="graph"
  )


def action_spec(bank: GraphBank) -> tensor_spec.BoundedTensorSpec:
  """[max_decisions] device indices; decisions past the graph's are padding."""
  return tensor_spec.BoundedTensorSpec(
    (bank.max_decisions,),
    tf.int32,
    minimum=0,
    maximum=bank.max_devices - 1,
    name="devices",
  )


class ActorNetwork(network.Network):
  """Graph numbers to a distribution over placements.

  Decisions are independent given the graph. Padding decisions have one device
  (the first) of probability 1: their log-probability, ratio and entropy are
  0, 1 and 0 whatever the weights.
  """

  def __init__(self, bank: GraphBank, policy: PlacementNetwork) -> None:
    super().__init__(input_tensor_spec=observation_spec(bank), name="actor")
    self._bank = bank
    self._policy = policy

  def call(
    self,
    observation: tf.Tensor,
    step_type: tf.Tensor | None = None,
    network_state: Any = (),
    training: bool = False,
  ) -> tuple[tfp.distributions.Distribution, Any]:
    """[...] equal graph numbers -> distribution over [..., max_decisions]."""
    logits = self.padded_logits(tf.reshape(observation, [-1])[0])
    outer = tf.shape(observation)
    logits = tf.broadcast_to(logits, tf.concat([outer, tf.shape(logits)], 0))
    logits.set_shape(
      [*observation.shape, self._bank.max_decisions, self._bank.max_devices]
    )
    choices = tfp.distributions.Categorical(logits=logits, dtype=tf.int32)
    return tfp.distributions.Independent(choices, 1), network_state

  def padded_logits(self, graph: tf.Tensor) -> tf.Tensor:
    """Scalar graph number -> [max_decisions, max_devices] logits."""
    bank = self._bank
    logits = self._policy(bank.get(graph), recomputes=bank.is_large)
    decisions, devices = tf.shape(logits)[0], tf.shape(logits)[1]
    more = bank.max_decisions - decisions
    logits = tf.pad(
      logits, [[0, 0], [0, bank.max_devices - devices]], constant_values=NEVER
    )
    padding = tf.where(tf.range(bank.max_devices) == 0, 0.0, NEVER)
    padding = tf.repeat(padding[None], more, axis=0)
    return tf.ensure_shape(
      tf.concat([logits, padding], axis=0),
      [bank.max_decisions, bank.max_devices],
    )


class ValueNetwork(network.Network):
  """Graph numbers to expected rewards: a small MLP on the graph's summary.

  It shares nothing with the policy. Within a batch, which holds one graph, it
  cannot favour one placement over another; it reports what is expected.
  """

  def __init__(self, bank: GraphBank, units: int = 32) -> None:
    super().__init__(input_tensor_spec=observation_spec(bank), name="value")
    self._bank = bank
    self._hidden = tf.keras.layers.Dense(units, activation="tanh")
    self._value = tf.keras.layers.Dense(1, kernel_initializer="zeros")

  def call(
    self,
    observation: tf.Tensor,
    step_type: tf.Tensor | None = None,
    network_state: Any = (),
    training: bool = False,
  ) -> tuple[tf.Tensor, Any]:
    """[...] graph numbers -> [...] expected rewards."""
    summary = tf.gather(self._bank.summary, observation)
    return self._value(self._hidden(summary))[..., 0], network_state


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
  """

  def __init__(
    self, bank: GraphBank, elite: float, *args: Any, **kwargs: Any
  ) -> None:
    self._elite = elite
    self._num_decisions = bank.num_decisions
    self._max_decisions = bank.max_decisions
    super().__init__(*args, **kwargs)

  @property
  def value_net(self) -> ValueNetwork:
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
    objective = clipped_objective(ratio, advantages[..., None], clip)
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
    ts.time_step_spec(observation_spec(bank)),
    action_spec(bank),
    optimizer=tf.keras.optimizers.Adam(config.learning_rate),
    actor_net=ActorNetwork(bank, policy),
    value_net=ValueNetwork(bank),
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
