"""The tf-agents faces of the placement network, and the value network.

An observation is one int32: the number of a graph in the bank. A batch holds
one graph, so the policy runs once per batch and its logits are broadcast.
"""

from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.networks import network
from tf_agents.specs import tensor_spec

from tfplace.learned.gdp.network import NEVER, PlacementNetwork
from tfplace.learned.train.graph_bank import GraphBank


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
