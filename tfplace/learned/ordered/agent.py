"""PPO that recomputes choice probabilities from stored observations."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfplace.learned.encoder.agent import GRAPH, PlacementActor
from tfplace.learned.ordered.decoding import SEEN, Samples
from tfplace.learned.ordered.network import OrderedNetwork
from tfplace.learned.train import tensor_spec
from tfplace.learned.train.ppo import GraphBank

SEES, MAY = "seen", "may"  # parts of an observation besides the graph


class OrderedActor(PlacementActor):
  """Computes logits from the features that the decisions observed."""

  def __init__(
    self, bank: GraphBank, policy: OrderedNetwork, temperature: float
  ) -> None:
    super().__init__(bank, observation_spec(bank))
    self._temperature = temperature
    self._policy = policy

  def logits(self, observation: dict[str, tf.Tensor]) -> tf.Tensor:
    """See `PlacementActor`."""
    graph = tf.reshape(observation[GRAPH], [-1])[0]
    context, slope = self._policy(self.bank.get(graph))
    more = [[0, self.bank.max_decisions - tf.shape(context)[0]], [0, 0]]
    told = tf.pad(context, more), tf.pad(slope, more)
    may = observation[MAY] > 0
    return self._policy.logits(told, observation[SEES], may) / self._temperature


def observation_spec(bank: GraphBank) -> dict[str, Any]:
  """Describes observations: graph index and features of decisions."""
  shape = (bank.max_decisions, bank.max_devices)
  return {
    GRAPH: bank.graph_spec(),
    SEES: tf.TensorSpec((*shape, SEEN), tf.float32, SEES),
    MAY: tensor_spec.BoundedTensorSpec(shape, tf.int32, 0, 1, MAY),
  }


def observed(
  bank: GraphBank, graph: int, samples: Samples
) -> dict[str, np.ndarray]:
  """Converts samples of a graph to [B] padded observations."""
  number, count, devices, _ = samples.seen.shape
  shape = (number, bank.max_decisions, bank.max_devices)
  seen = np.zeros((*shape, SEEN), np.float32)
  seen[:, :count, :devices] = samples.seen
  may = np.zeros(shape, np.int32)
  may[:, :count, :devices] = samples.may
  may[:, count:, 0] = 1
  return {GRAPH: np.full(number, graph, np.int32), SEES: seen, MAY: may}
