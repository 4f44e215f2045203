"""Learner of GDP: all decisions of a graph in one pass."""

from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.learned.decisions import NEVER
from tfplace.learned.encoder.agent import GRAPH, PlacementActor
from tfplace.learned.encoder.learner import EncoderLearner, logits_of
from tfplace.learned.gdp.network import (
  NetworkConfig,
  PlacementNetwork,
  exportable,
)
from tfplace.learned.gdp.sampling import gdp_draws
from tfplace.learned.policy_format import Exportable
from tfplace.learned.sampling import Drawn
from tfplace.learned.train import time_step as ts
from tfplace.learned.train.objectives import imitation_loss
from tfplace.learned.train.ppo import GraphBank


class GdpActor(PlacementActor):
  """Runs the policy once per batch and repeats its logits."""

  def __init__(
    self, bank: GraphBank, policy: PlacementNetwork, recomputes: bool = False
  ) -> None:
    super().__init__(bank, {GRAPH: bank.graph_spec()})
    self._policy = policy
    self._recomputes = recomputes

  def logits(self, observation: dict[str, tf.Tensor]) -> tf.Tensor:
    graph = observation[GRAPH]
    logits = self.padded_logits(tf.reshape(graph, [-1])[0])
    shape = tf.concat([tf.shape(graph), tf.shape(logits)], axis=0)
    return tf.broadcast_to(logits, shape)

  def padded_logits(self, graph: tf.Tensor) -> tf.Tensor:
    """Maps a scalar graph index to [max_decisions, max_devices] logits."""
    bank = self.bank
    logits = self._policy(bank.get(graph), recomputes=self._recomputes)
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
    return GdpActor(self._bank, self.policy, self._recomputes)

  @property
  def _recomputes(self) -> bool:
    return self._bank.max_decisions > self._method.recompute_above

  def exportable(self) -> Exportable:
    """Returns the averaged network as a function of features."""
    return exportable(self._averaged)

  def imitate(self, graph: int) -> float:
    target = np.zeros(self._bank.max_decisions, np.int32)
    task = self._tasks[graph]
    target[: len(task.target)] = task.target
    loss = float(self._imitate(tf.constant(graph), tf.constant(target)))
    self._average.step()
    return loss

  def _imitation_loss(self, graph: tf.Tensor, *given: tf.Tensor) -> tf.Tensor:
    (target,) = given
    inputs = self._bank.get(graph)
    logits = self.policy(inputs, recomputes=self._recomputes)
    return imitation_loss(
      logits,
      inputs["allowed"],
      target[: tf.shape(logits)[0]],
      self._config.imitation.smoothing,
    )

  def _sample(
    self, graph: int, rng: np.random.Generator
  ) -> tuple[Drawn, ts.TimeStep, dict[str, Any]]:
    task, number = self._tasks[graph], self._method.samples
    first, info = self._look({GRAPH: np.full(number, graph, np.int32)})
    count = task.decisions.num_decisions
    logits = logits_of(info)[0, :count, : len(task.context.classes)]
    draws = gdp_draws(logits, number, rng, task.groupings, task.best)
    return task.draw(draws), first, info
