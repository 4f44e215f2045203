"""Learner of GDP: all decisions of a graph in one pass."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.core import symmetry
from tfplace.learned.decisions import NEVER, sample
from tfplace.learned.encoder import features
from tfplace.learned.encoder.agent import GRAPH, GraphBank, PlacementActor
from tfplace.learned.encoder.learner import EncoderLearner, logits_of
from tfplace.learned.encoder.network import Encoder, EncoderConfig
from tfplace.learned.export import as_function
from tfplace.learned.policy_format import Exportable
from tfplace.learned.train import time_step as ts
from tfplace.learned.train.learner import SMOOTHING, imitation_loss


@dataclasses.dataclass(frozen=True)
class NetworkConfig(EncoderConfig):
  """Sizes of the network.

  Attributes:
    pair_units: Width of the scorer of decision-device pairs.
  """

  pair_units: int = 48


class PlacementNetwork(Encoder):
  """Network from the features of one problem to logits.

  GraphSAGE over both edge directions, attention in topological order
  conditioned on the pooled graph, then a scorer f(decision, device, pair)
  shared by all devices. One set of weights serves any graph and number of
  devices. Follows GDP (arXiv 1910.01578); the device-aware scorer is ours.
  """

  def __init__(self, config: NetworkConfig | None = None) -> None:
    config = config or NetworkConfig()
    super().__init__(config, "placement_network")
    self._pair_units = config.pair_units
    dense = tf.keras.layers.Dense
    self._of_node = dense(config.pair_units)
    self._of_device = dense(config.pair_units, use_bias=False)
    self._of_pair = dense(config.pair_units, use_bias=False)
    self._scorer = dense(config.pair_units, activation="relu")
    self._score = dense(1)
    self._query = dense(config.pair_units, use_bias=False)
    self._key = dense(config.pair_units, use_bias=False)

  def call(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
    """Maps `Features.tensors()` of one problem to [N, D] masked logits."""
    state, graph = self.encode(inputs)
    device = tf.concat(
      [inputs["device"], tf.repeat(graph, tf.shape(inputs["device"])[0], 0)],
      axis=-1,
    )
    logits = self.run(self._scores, state, inputs["pair"], device)
    return tf.where(inputs["allowed"], logits, NEVER)

  def _scores(
    self, state: tf.Tensor, pair: tf.Tensor, device: tf.Tensor
  ) -> tf.Tensor:
    """Maps [N, units] states and [N, D, F] pairs to [N, D] logits."""
    joined = (
      self._of_node(state)[:, None]
      + self._of_device(device)[None]
      + self._of_pair(pair)
    )
    logits = self._score(self._scorer(tf.nn.relu(joined)))[..., 0]
    # The product of decision and device lets the preferences of neighbors
    # differ from the first step on. The sum alone learns that slowly.
    product = tf.matmul(self._query(state), self._key(device), transpose_b=True)
    return logits + product * self._pair_units**-0.5


def exportable(network: PlacementNetwork) -> Exportable:
  """Exports `logits`: `Features.tensors()`, in order -> [N, D]."""
  signature = features.signature(network.config.axes)
  return Exportable(
    strategy="gdp",
    network=dataclasses.asdict(network.config),
    variables=list(network.variables),
    functions={"logits": as_function(lambda **seen: network(seen), signature)},
  )


class GdpActor(PlacementActor):
  """Runs the policy once per batch and repeats its logits."""

  def __init__(self, bank: GraphBank, policy: PlacementNetwork) -> None:
    super().__init__(bank, {GRAPH: bank.graph_spec})
    self._policy = policy

  def logits(self, observation: dict[str, tf.Tensor]) -> tf.Tensor:
    graph = observation[GRAPH]
    logits = self.padded_logits(tf.reshape(graph, [-1])[0])
    shape = tf.concat([tf.shape(graph), tf.shape(logits)], axis=0)
    return tf.broadcast_to(logits, shape)

  def padded_logits(self, graph: tf.Tensor) -> tf.Tensor:
    """Maps a scalar graph index to [max_decisions, max_devices] logits."""
    bank = self.bank
    logits = self._policy(bank.get(graph))
    decisions, devices = tf.unstack(tf.shape(logits))
    more = bank.max_decisions - decisions
    logits = tf.pad(
      logits, [[0, 0], [0, bank.max_devices - devices]], constant_values=NEVER
    )
    padding = tf.where(tf.range(bank.max_devices) == 0, 0.0, NEVER)
    padding = tf.repeat(padding[None], more, axis=0)
    return tf.concat([logits, padding], axis=0)


class GdpLearner(EncoderLearner):
  """Learner of a GDP policy."""

  network_type: ClassVar[type] = NetworkConfig
  network_class: ClassVar[type] = PlacementNetwork

  def _make_actor(self) -> GdpActor:
    return GdpActor(self._bank, self.policy)

  def _export(self, network: PlacementNetwork) -> Exportable:
    return exportable(network)

  def imitate(self, graph: int) -> float:
    target = np.zeros(self._bank.max_decisions, np.int32)
    task = self._tasks[graph]
    target[: len(task.target)] = task.target
    loss = float(self._imitate(tf.constant(graph), tf.constant(target)))
    self._add_to_average()
    return loss

  def _imitation_loss(self, graph: tf.Tensor, *given: tf.Tensor) -> tf.Tensor:
    (target,) = given
    inputs = self._bank.get(graph)
    logits = self.policy(inputs)
    target = target[: tf.shape(logits)[0]]
    return imitation_loss(logits, inputs["allowed"], target, SMOOTHING)

  def _sample(
    self, graph: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, np.ndarray, ts.TimeStep, dict[str, Any]]:
    task, number = self._tasks[graph], self._config.samples
    first, info = self._episodes({GRAPH: np.full(number, graph, np.int32)})
    decisions = task.decisions
    logits = logits_of(info)[0, : decisions.num_decisions, : len(task.classes)]
    drawn = sample(logits, number, rng, decisions.explorations)
    # Identical devices get their most probable names.
    drawn = symmetry.likeliest(drawn, logits, task.classes)
    if task.best is not None:
      drawn[-1] = task.best
    greedy = logits.argmax(axis=1).astype(np.int32)
    choices = np.concatenate((greedy[None], drawn))
    return choices, task.evaluate(choices), first, info
