"""Learner of GDP: all decisions of a graph in one pass."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.graph import symmetry
from tfplace.learned import features
from tfplace.learned.decisions import NEVER
from tfplace.learned.sampling import sample
from tfplace.training.encoder.agent import DECISION, GRAPH, PlacementActor
from tfplace.training.encoder.learner import EncoderLearner
from tfplace.training.encoder.network import Encoder, EncoderConfig
from tfplace.training.export import as_function
from tfplace.training.learner import SMOOTHING, imitation_loss


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

  def __init__(self, config: NetworkConfig) -> None:
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

  def exported_functions(self) -> dict[str, Any]:
    """Returns `logits`: `Features.tensors()`, in order -> [N, D]."""
    signature = features.signature(self.config.axes)
    return {"logits": as_function(lambda **seen: self(seen), signature)}

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


class GdpActor(PlacementActor):
  """Runs the policy once for all observations of a graph."""

  def logits(self, observation: dict[str, tf.Tensor]) -> tf.Tensor:
    graph = tf.reshape(observation[GRAPH], [-1])[0]
    logits = self._policy(self._bank.get(graph))
    more = self._bank.max_devices - tf.shape(logits)[1]
    logits = tf.pad(logits, [[0, 0], [0, more]], constant_values=NEVER)
    return tf.gather(logits, observation[DECISION])


class GdpLearner(EncoderLearner):
  """Learner of a GDP policy."""

  network_type: ClassVar[type] = NetworkConfig
  network_class: ClassVar[type] = PlacementNetwork
  actor_class: ClassVar[type] = GdpActor

  def imitate(self, graph: int) -> float:
    target = self._tasks[graph].target.astype(np.int32)
    loss = float(self._imitate(tf.constant(graph), tf.constant(target)))
    self._add_to_average()
    return loss

  def _imitation_loss(self, graph: tf.Tensor, *given: tf.Tensor) -> tf.Tensor:
    (target,) = given
    inputs = self._bank.get(graph)
    logits = self.policy(inputs)
    return imitation_loss(logits, inputs["allowed"], target, SMOOTHING)

  def _sample(
    self, graph: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, dict[str, np.ndarray], tf.Tensor]:
    task, observation = self._tasks[graph], self._indices(graph)
    every = self._logits(observation)
    logits = every.numpy()[0, :, : len(task.classes)]
    groupings = task.decisions.explorations
    choices = sample(logits, self._config.samples, rng, groupings=groupings)
    # Identical devices get their most probable names.
    choices = symmetry.likeliest(choices, logits, task.classes)
    if task.best is not None:
      choices[-1] = task.best
    greedy = logits.argmax(axis=1).astype(np.int32)
    return np.concatenate((greedy[None], choices)), observation, every
