"""PPO that recomputes choice probabilities from stored observations."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfplace.learned.encoder.agent import GRAPH, PlacementActor
from tfplace.learned.ordered.decoding import FEATURES
from tfplace.learned.ordered.network import OrderedNetwork
from tfplace.learned.train import tensor_spec
from tfplace.learned.train.ppo import GraphBank

# Parts of an observation besides the graph.
OBSERVED, CANDIDATES = "observed", "candidates"


class OrderedActor(PlacementActor):
  """Computes logits from the features that the decisions observed."""

  def __init__(
    self, bank: GraphBank, policy: OrderedNetwork, temperature: float
  ) -> None:
    super().__init__(bank, observation_spec(bank))
    self._temperature = temperature
    self._policy = policy

  def logits(self, observation: dict[str, tf.Tensor]) -> tf.Tensor:
    graph = tf.reshape(observation[GRAPH], [-1])[0]
    context, slope = self._policy(self.bank.get(graph))
    more = [[0, self.bank.max_decisions - tf.shape(context)[0]], [0, 0]]
    contexts = tf.pad(context, more), tf.pad(slope, more)
    candidates = observation[CANDIDATES] > 0
    observed = observation[OBSERVED]
    logits = self._policy.logits(contexts, observed, candidates)
    return logits / self._temperature


def observation_spec(bank: GraphBank) -> dict[str, Any]:
  """Describes observations: graph index and features of decisions."""
  shape = (bank.max_decisions, bank.max_devices)
  return {
    GRAPH: bank.graph_spec(),
    OBSERVED: tf.TensorSpec((*shape, FEATURES), tf.float32, OBSERVED),
    CANDIDATES: tensor_spec.BoundedTensorSpec(
      shape, tf.int32, 0, 1, CANDIDATES
    ),
  }


def observations(
  bank: GraphBank, graph: int, seen: np.ndarray, possible: np.ndarray
) -> dict[str, np.ndarray]:
  """Pads what B samples of a graph observed.

  Args:
    seen: [B, N, D, FEATURES], see `decoding.Samples`.
    possible: [B, N, D] bool devices to choose from.
  """
  number, count, devices, _ = seen.shape
  shape = (number, bank.max_decisions, bank.max_devices)
  observed = np.zeros((*shape, FEATURES), np.float32)
  observed[:, :count, :devices] = seen
  candidates = np.zeros(shape, np.int32)
  candidates[:, :count, :devices] = possible
  candidates[:, count:, 0] = 1
  return {
    GRAPH: np.full(number, graph, np.int32),
    OBSERVED: observed,
    CANDIDATES: candidates,
  }
