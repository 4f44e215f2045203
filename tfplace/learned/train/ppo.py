"""What the methods that learn by tf-agents' PPO share.

An observation names a graph by its number in a bank: a trajectory that carried
whole graphs would spend its memory on copies. A batch is about one graph.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfplace.learned import Signature
from tfplace.learned.exported import PolicyInputs
from tfplace.learned.train import network, ppo_clip_agent, tensor_spec
from tfplace.learned.train import time_step as ts
from tfplace.learned.train.config import PPOConfig


class GraphBank(tf.Module):
  """What a policy sees of G graphs, each field joined end to end.

  Args:
    graphs: at least one.
    signature: of `tensors()` of each, at least.

  Attributes:
    num_graphs: G.
    max_decisions: most decisions of any graph.
    max_devices: most devices of any graph.
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
    """Scalar graph number -> `PolicyInputs.tensors()` of that graph."""
    result = {}
    for field, (joined, bounds, shapes) in self._fields.items():
      part = joined[bounds[graph] : bounds[graph + 1]]
      array = tf.reshape(part, tf.constant(shapes)[graph])
      result[field] = tf.ensure_shape(array, self._signature[field][0])
    return result

  def graph_spec(self) -> tensor_spec.BoundedTensorSpec:
    """Scalar graph number; bounded, since building a network samples it."""
    return tensor_spec.BoundedTensorSpec(
      (), tf.int32, 0, self.num_graphs - 1, "graph"
    )


class ValueNetwork(network.Network):
  """Observations to expected rewards: a small MLP that shares nothing with the
  policy.

  Args:
    observation_spec: of the observations.
    see: [...] observations -> [..., F] what the MLP reads.
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
    """[...] observations -> [...] expected rewards."""
    value = self._value(self._hidden(self._see(observation)))
    return value[..., 0], network_state


class PPO:
  """An agent, ready to train; no default of tf-agents' PPO is relied on.

  Args:
    actor: observations to a distribution of actions.
    value: observations to expected rewards.
    action_spec: of an action.
    config: see `PPOConfig`.
    agent_type: makes the agent, as `PPOClipAgent` does.
    **differs: settings in which the methods differ.
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
      num_epochs=1,  # learners call `train` once per pass: less to trace
      normalize_rewards=False,  # relative to a baseline of each graph already
      normalize_observations=False,  # devices and numbers of graphs
      log_prob_clipping=0.0,
      gradient_clipping=config.max_gradient_norm,
      value_clipping=None,
      update_normalizers_in_train=False,
      aggregate_losses_across_replicas=False,
      train_step_counter=tf.Variable(0, dtype=tf.int64, name="train_step"),
      **differs,
    )
    self.agent.initialize()
    # The slots, which a checkpoint must find.
    self._optimizer.build([*actor.trainable_weights, *value.trainable_weights])
    self.train = tf.function(self.agent.train, autograph=False)
    self._look = tf.function(self._distribution, autograph=False)

  def tracked(self) -> dict[str, Any]:
    """For a checkpoint, besides the policy."""
    return {
      "value": self._value,
      "optimizer": self._optimizer,
      "train_step": self.agent.train_step_counter,
    }

  def look(self, time_step: ts.TimeStep) -> dict[str, Any]:
    """What of the policy training needs later: `dist_params` with logits."""
    return self._look(tf.nest.map_structure(tf.convert_to_tensor, time_step))

  def _distribution(self, time_step: ts.TimeStep) -> dict[str, Any]:
    return self.agent.collect_policy.distribution(time_step).info
