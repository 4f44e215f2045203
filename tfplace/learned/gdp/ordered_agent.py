"""PPO that recomputes choice probabilities from stored observations."""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from tfplace.learned.gdp.agent import NoValue, PerDecisionPPOAgent
from tfplace.learned.gdp.decoding import SEEN, Draws
from tfplace.learned.gdp.ordered import OrderedNetwork
from tfplace.learned.train import network, tensor_spec, tfp
from tfplace.learned.train.config import PPOConfig
from tfplace.learned.train.ppo import PPO, GraphBank

GRAPH, SEES, MAY = "graph", "seen", "may"  # parts of an observation


class OrderedActor(network.Network):
  """Network from observations to distributions over placements.

  A batch contains one graph. Padding decisions choose the first device with
  probability 1, so that their log-probability, ratio and entropy are 0, 1 and
  0.
  """

  def __init__(
    self, bank: GraphBank, policy: OrderedNetwork, temperature: float
  ) -> None:
    super().__init__(input_tensor_spec=observation_spec(bank), name="actor")
    self._bank = bank
    self._temperature = temperature
    self._policy = policy

  def call(
    self,
    observation: dict[str, tf.Tensor],
    step_type: tf.Tensor | None = None,
    network_state: Any = (),
    training: bool = False,
  ) -> tuple[tfp.distributions.Distribution, Any]:
    """Maps [...] observations to a distribution over [..., max_decisions]."""
    bank = self._bank
    graph = tf.reshape(observation[GRAPH], [-1])[0]
    context, slope = self._policy(bank.get(graph))
    more = [[0, bank.max_decisions - tf.shape(context)[0]], [0, 0]]
    told = tf.pad(context, more), tf.pad(slope, more)
    may = observation[MAY] > 0
    logits = self._policy.logits(told, observation[SEES], may)
    logits /= self._temperature
    logits.set_shape(observation[MAY].shape)
    choices = tfp.distributions.Categorical(logits=logits, dtype=tf.int32)
    return tfp.distributions.Independent(choices, 1), network_state


class OrderedPPOAgent(PerDecisionPPOAgent):
  """`PerDecisionPPOAgent` whose observations contain more than an index."""

  def policy_gradient_loss(
    self, time_steps: Any, *args: Any, **kwargs: Any
  ) -> tf.Tensor:
    """See `PerDecisionPPOAgent`."""
    return super().policy_gradient_loss(_numbers(time_steps), *args, **kwargs)

  def entropy_regularization_loss(
    self, time_steps: Any, *args: Any, **kwargs: Any
  ) -> tf.Tensor:
    """See `PerDecisionPPOAgent`."""
    return super().entropy_regularization_loss(
      _numbers(time_steps), *args, **kwargs
    )


def _numbers(time_steps: Any) -> Any:
  return time_steps._replace(observation=time_steps.observation[GRAPH])


def observation_spec(bank: GraphBank) -> dict[str, Any]:
  """Describes observations: graph index and features of decisions."""
  shape = (bank.max_decisions, bank.max_devices)
  return {
    GRAPH: bank.graph_spec(),
    SEES: tf.TensorSpec((*shape, SEEN), tf.float32, SEES),
    MAY: tensor_spec.BoundedTensorSpec(shape, tf.int32, 0, 1, MAY),
  }


def observed(
  bank: GraphBank, graph: int, draws: Draws
) -> dict[str, np.ndarray]:
  """Converts samples of a graph to [B] padded observations."""
  number, count, devices, _ = draws.seen.shape
  shape = (number, bank.max_decisions, bank.max_devices)
  seen = np.zeros((*shape, SEEN), np.float32)
  seen[:, :count, :devices] = draws.seen
  may = np.zeros(shape, np.int32)
  may[:, :count, :devices] = draws.may
  may[:, count:, 0] = 1
  return {GRAPH: np.full(number, graph, np.int32), SEES: seen, MAY: may}


def make_ppo(bank: GraphBank, policy: OrderedNetwork, config: PPOConfig) -> PPO:
  """Builds PPO for one-step episodes, like `agent.make_ppo`."""
  action_spec = tensor_spec.BoundedTensorSpec(
    (bank.max_decisions,), tf.int32, 0, bank.max_devices - 1, "devices"
  )
  return PPO(
    OrderedActor(bank, policy, config.temperature),
    NoValue(observation_spec(bank), lambda seen: seen[GRAPH]),
    action_spec,
    config,
    functools.partial(OrderedPPOAgent, bank, config.elite),
    discount_factor=1.0,  # one-step episodes
    lambda_value=1.0,
    use_gae=False,
    use_td_lambda_return=False,
    compute_value_and_advantage_in_train=True,
  )
