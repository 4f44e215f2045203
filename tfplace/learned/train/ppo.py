"""Shared parts of the methods that use tf-agents' PPO.

Observations index a `GraphBank`, so trajectories store no copies of graphs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfplace.learned import Signature
from tfplace.learned.policy_format import PolicyInputs
from tfplace.learned.train import network, ppo_clip_agent, tensor_spec
from tfplace.learned.train import time_step as ts
from tfplace.learned.train.config import PPOConfig


class GraphBank(tf.Module):
  """Policy inputs of G graphs, concatenated per field.

  Args:
    graphs: At least one graph.
    signature: Signature of each graph's `tensors()`, at least.

  Attributes:
    num_graphs: G.
    max_decisions: Maximum number of decisions of a graph.
    max_devices: Maximum number of devices of a graph.
    num_decisions: [G] int32.
  """

  def __init__(
    self, graphs: Sequence[PolicyInputs], signature: Signature
  ) -> None:
    super().__init__(name="graph_bank")
    self._signature = signature
    self.num_graphs = len(graphs)
    self.max_decisions = max(g.num_decisions for g in graphs)
    self.max_devices = max(g.num_devices for g in graphs)
    self.num_decisions = tf.constant([g.num_decisions for g in graphs])
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

  def graph_spec(self) -> tensor_spec.BoundedTensorSpec:
    """Returns the bounded spec of a graph index, which agents sample."""
    return tensor_spec.BoundedTensorSpec(
      (), tf.int32, 0, self.num_graphs - 1, "graph"
    )


class ValueNetwork(network.Network):
  """Small MLP from observations to expected rewards.

  It shares nothing with the policy.

  Args:
    see: Maps [...] observations to [..., F] inputs of the MLP.
  """

  def __init__(
    self, observation_spec: Any, see: Callable[[Any], tf.Tensor]
  ) -> None:
    super().__init__(input_tensor_spec=observation_spec, name="value")
    self._see = see
    self._hidden = tf.keras.layers.Dense(32, activation="tanh")
    self._value = tf.keras.layers.Dense(1, kernel_initializer="zeros")

  def call(
    self,
    observation: Any,
    step_type: tf.Tensor | None = None,
    network_state: Any = (),
    training: bool = False,
  ) -> tuple[tf.Tensor, Any]:
    """Maps [...] observations to [...] expected rewards."""
    value = self._value(self._hidden(self._see(observation)))
    return value[..., 0], network_state


class PPO:
  """Initialized PPO agent; no tf-agents default is used.

  Args:
    actor: Network from observations to action distributions.
    value: Network from observations to expected rewards.
    agent_type: Constructor of the agent, such as `PPOClipAgent`.
    **differs: Settings in which the methods differ.
  """

  def __init__(
    self,
    actor: network.Network,
    value: network.Network,
    action_spec: tensor_spec.BoundedTensorSpec,
    config: PPOConfig,
    agent_type: Callable[..., Any] = ppo_clip_agent.PPOClipAgent,
    **differs: Any,
  ) -> None:
    self._value = value
    self._optimizer = tf.keras.optimizers.Adam(config.learning_rate)
    self.agent = agent_type(
      ts.time_step_spec(actor.input_tensor_spec),
      action_spec,
      optimizer=self._optimizer,
      actor_net=actor,
      value_net=value,
      greedy_eval=True,
      importance_ratio_clipping=config.clip,
      entropy_regularization=config.entropy,
      policy_l2_reg=0.0,
      value_function_l2_reg=0.0,
      shared_vars_l2_reg=0.0,
      value_pred_loss_coef=config.value_weight,
      num_epochs=1,  # Learners call `train` once per epoch, which traces less.
      normalize_rewards=False,  # Rewards are relative to each graph's baseline.
      # Observations are devices and graph indices.
      normalize_observations=False,
      log_prob_clipping=0.0,
      gradient_clipping=config.max_gradient_norm,
      value_clipping=None,
      update_normalizers_in_train=False,
      aggregate_losses_across_replicas=False,
      train_step_counter=tf.Variable(0, dtype=tf.int64, name="train_step"),
      **differs,
    )
    self.agent.initialize()
    # Creates the optimizer slots, which a checkpoint must find.
    self._optimizer.build([*actor.trainable_weights, *value.trainable_weights])
    self.train = tf.function(self.agent.train, autograph=False)
    self._look = tf.function(self._distribution, autograph=False)

  def tracked(self) -> dict[str, Any]:
    """Returns the objects to checkpoint besides the policy."""
    return {
      "value": self._value,
      "optimizer": self._optimizer,
      "train_step": self.agent.train_step_counter,
    }

  def look(self, time_step: ts.TimeStep) -> dict[str, Any]:
    """Returns `dist_params`, the logits that training needs later."""
    return self._look(tf.nest.map_structure(tf.convert_to_tensor, time_step))

  def _distribution(self, time_step: ts.TimeStep) -> dict[str, Any]:
    return self.agent.collect_policy.distribution(time_step).info
