"""PPO of tf-agents for placements: an episode has a step per decision.

Steps share the advantage of their placement and have importance ratios of their
own: the joint ratio of thousands of choices would be clipped or explode at the
first update. Observations index a `GraphBank`, so trajectories store no copies
of graphs.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfplace.learned import Signature
from tfplace.learned.policy_format import PolicyInputs
from tfplace.training.config import TrainConfig
from tfplace.training.learner import MAX_GRADIENT_NORM, margins
from tfplace.training.libraries import (
  network,
  ppo_clip_agent,
  tensor_spec,
  tfp,
  trajectory,
)
from tfplace.training.libraries import time_step as ts

# Parts of every observation: indices of the graph and of the decision.
GRAPH, DECISION = "graph", "decision"
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
    max_devices: Maximum number of devices of a graph.
    spec: Bounded specs of `GRAPH` and `DECISION`, which agents sample.
  """

  def __init__(
    self, graphs: Sequence[PolicyInputs], signature: Signature
  ) -> None:
    super().__init__(name="graph_bank")
    self._signature = signature
    self.max_devices = max(g.num_devices for g in graphs)
    # Every graph has at least one decision.
    bounds = {GRAPH: len(graphs) - 1, DECISION: 0}
    self.spec = {
      name: tensor_spec.BoundedTensorSpec((), tf.int32, 0, most, name)
      for name, most in bounds.items()
    }
    self._fields = {}
    for field in graphs[0].tensors():
      arrays = [g.tensors()[field] for g in graphs]
      shapes = np.array([array.shape for array in arrays], np.int32)
      ends = np.concatenate(([0], np.cumsum([a.size for a in arrays])))
      joined = tf.constant(np.concatenate([a.ravel() for a in arrays]))
      self._fields[field] = (joined, tf.constant(ends), shapes)

  def get(self, graph: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns `PolicyInputs.tensors()` of a graph by scalar index."""
    result = {}
    for field, (joined, ends, shapes) in self._fields.items():
      part = joined[ends[graph] : ends[graph + 1]]
      array = tf.reshape(part, tf.constant(shapes)[graph])
      result[field] = tf.ensure_shape(array, self._signature[field][0])
    return result


class PlacementActor(network.Network):
  """Network from observations of one graph to distributions over devices.

  Args:
    policy: Network of the policy.
    more: Specs of observations besides those of the bank.
  """

  def __init__(
    self, bank: GraphBank, policy: Any, more: Mapping[str, Any] | None = None
  ) -> None:
    super().__init__(
      input_tensor_spec={**bank.spec, **(more or {})}, name="actor"
    )
    self._bank, self._policy = bank, policy

  @abc.abstractmethod
  def logits(self, observation: dict[str, tf.Tensor]) -> tf.Tensor:
    """Maps [...] observations to [..., max_devices] logits."""

  def call(
    self,
    observation: dict[str, tf.Tensor],
    step_type: tf.Tensor | None = None,
    network_state: Any = (),
    training: bool = False,
  ) -> tuple[tfp.distributions.Distribution, Any]:
    """Maps [...] observations to distributions over devices."""
    logits = self.logits(observation)
    logits.set_shape([*observation[GRAPH].shape, self._bank.max_devices])
    return tfp.distributions.Categorical(logits, dtype=tf.int32), network_state


class NoValue(network.Network):
  """Value network of zeros without weights, for tf-agents' PPO.

  The best possible prediction is the same for all placements of a graph, and
  the mean reward of the batch is better.
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


class PlacementAgent(ppo_clip_agent.PPOClipAgent):
  """`PPOClipAgent` whose advantages are leads of the elite.

  No default of tf-agents is used.

  Attributes:
    adam: Optimizer, with its slots.
  """

  def __init__(
    self, bank: GraphBank, actor: PlacementActor, config: TrainConfig
  ) -> None:
    self._elite = config.elite
    self.adam = tf.keras.optimizers.Adam(config.learning_rate)
    super().__init__(
      ts.time_step_spec(actor.input_tensor_spec),
      tensor_spec.BoundedTensorSpec(
        (), tf.int32, 0, bank.max_devices - 1, "device"
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
      discount_factor=1.0,
      lambda_value=1.0,
      use_gae=False,
      use_td_lambda_return=False,
      compute_value_and_advantage_in_train=True,
      normalize_rewards=False,  # Rewards are relative to each graph's baseline.
      # Observations are devices and indices.
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

  def compute_advantages(
    self,
    rewards: tf.Tensor,
    returns: tf.Tensor,
    discounts: tf.Tensor,
    value_preds: tf.Tensor,
  ) -> tf.Tensor:
    """Returns [B, N] `margins` of the returns minus their batch mean.

    The returns of a placement's decisions are its reward. tf-agents then
    divides by the standard deviation over [B, N + 1], whose last column is
    padding. Centered values keep their mean of 0 there.
    """
    lead = margins(returns[:, :1], self._elite)
    return tf.zeros_like(returns) + lead - tf.reduce_mean(lead)


def episodes(
  observation: Mapping[str, np.ndarray],
  logits: tf.Tensor,
  choices: np.ndarray,
  rewards: np.ndarray,
) -> trajectory.Trajectory:
  """Builds [B, N + 1] steps of B placements: N decisions and a boundary.

  Args:
    observation: Arrays [B, N, ...].
    logits: [B, N, max_devices] at sampling time.
    choices: [B, N] devices.
    rewards: [B], given for the last decision.
  """
  number, count = choices.shape
  step_type = np.full((number, count + 1), ts.StepType.MID, np.int32)
  step_type[:, 0], step_type[:, -1] = ts.StepType.FIRST, ts.StepType.LAST
  reward = np.zeros(step_type.shape, np.float32)
  reward[:, count - 1] = rewards
  discount = np.ones(step_type.shape, np.float32)
  discount[:, count - 1] = 0.0
  # The boundary is masked; it repeats the last decision.
  observation, choices, logits = tf.nest.map_structure(
    lambda x: tf.concat((x, x[:, -1:]), axis=1),
    (dict(observation), choices.astype(np.int32), logits),
  )
  return trajectory.Trajectory(
    tf.constant(step_type),
    observation,
    choices,
    {"dist_params": {"logits": logits}},
    tf.constant(np.roll(step_type, -1, axis=1)),
    tf.constant(reward),
    tf.constant(discount),
  )
