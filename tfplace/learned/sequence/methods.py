"""The RNN-based placer (Mirhoseini et al. 2017) in training.

The hierarchical placer (HDP, Mirhoseini et al. 2018) in training.

Grouper and placer learn jointly: both see the advantage of the placement that
they made together."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tfplace.errors import TrainingError
from tfplace.learned import sampling
from tfplace.learned.exported import Exportable
from tfplace.learned.sequence import export, features
from tfplace.learned.sequence.learner import Inputs, SequenceLearner, with_types
from tfplace.learned.sequence.networks import (
  HierarchicalConfig,
  HierarchicalNetwork,
  RnnConfig,
  RnnNetwork,
)
from tfplace.learned.sequence.reinforce import Choices

MAX_DECISIONS = 512


class RnnLearner(SequenceLearner):
  """One kind of decision: the device of each co-location group."""

  network_type: ClassVar[type] = RnnConfig
  _kinds: ClassVar[tuple[str, ...]] = ("device",)

  def exportable(self) -> Exportable:
    """The network as functions of a problem's embedding."""
    return export.export_rnn(self.network)

  def _complete(self, config: RnnConfig) -> RnnConfig:
    for task in self._tasks:
      if task.decisions.num_decisions > MAX_DECISIONS:
        name = task.decisions.problem.graph.name
        raise TrainingError(
          f"strategy 'rnn' reads one group after the other, at most"
          f" {MAX_DECISIONS}; graph {name!r} has"
          f" {task.decisions.num_decisions}: merge them with"
          " --max_decisions=256 or fewer"
        )
    return with_types(config, self._tasks)

  def _make_network(self, config: RnnConfig) -> RnnNetwork:
    network = RnnNetwork(config)
    signature = export.signature(len(config.types))
    self._decode = tf.function(
      network.decode,
      input_signature=[signature, export.NOISE],
      autograph=False,
    )
    return network

  def _draw(
    self, graph: int, rng: np.random.Generator, samples: int
  ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    seen = self.seen[graph]
    noise = sampling.decoding_noise(
      rng, samples, seen.num_decisions, seen.num_devices
    )
    drawn = self._decode(self._inputs[graph], tf.constant(noise)).numpy()
    return np.zeros((1, 1), np.float32), (drawn,)

  def _to_choices(
    self, graph: int, chosen: tuple[np.ndarray, ...]
  ) -> np.ndarray:
    return chosen[0]

  def _target(self, graph: int) -> tuple[np.ndarray, ...]:
    return (self._tasks[graph].target[None],)

  def _choices(
    self, inputs: Inputs, noise: tf.Tensor, chosen: Sequence[tf.Tensor]
  ) -> list[Choices]:
    logits = self.network.logits(inputs, chosen[0])
    return [Choices(logits, chosen[0], tf.ones_like(logits[..., 0]))]


class HierarchicalLearner(SequenceLearner):
  """Two kinds of decision: the group of each op, the device of each group."""

  network_type: ClassVar[type] = HierarchicalConfig
  _kinds: ClassVar[tuple[str, ...]] = ("group", "device")

  def exportable(self) -> Exportable:
    """The network as functions of a problem's embedding."""
    return export.export_hierarchical(self.network)

  def _complete(self, config: HierarchicalConfig) -> HierarchicalConfig:
    config = with_types(config, self._tasks)
    if config.groups:
      return config
    devices = max(t.decisions.problem.cluster.num_devices for t in self._tasks)
    ops = max(t.decisions.num_decisions for t in self._tasks)
    return dataclasses.replace(config, groups=min(256, 20 * devices, ops))

  def _make_network(self, config: HierarchicalConfig) -> HierarchicalNetwork:
    network = HierarchicalNetwork(config)
    signature = export.signature(len(config.types))
    self._fallback = [
      features.fallback_devices(task.decisions) for task in self._tasks
    ]
    self._group_logits = tf.function(
      network.group_logits, input_signature=[signature], autograph=False
    )
    self._decode = tf.function(
      network.decode,
      input_signature=[
        signature,
        export.GROUPING,
        export.NOISE,
      ],
      autograph=False,
    )
    return network

  def _draw(
    self, graph: int, rng: np.random.Generator, samples: int
  ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    config, inputs = self._config, self._inputs[graph]
    logits = self._group_logits(inputs).numpy()
    noise = np.zeros_like(logits)
    if self._baseline.updates(graph) < config.noise_steps:
      scale = config.noise * np.sqrt((logits**2).mean())
      noise = (scale * rng.normal(size=logits.shape)).astype(np.float32)
    grouping = sampling.greedy_and_samples(logits + noise, samples, rng)
    grouping[0] = logits.argmax(axis=1)
    devices = sampling.decoding_noise(
      rng, samples, logits.shape[1], self.seen[graph].num_devices
    )
    drawn = self._decode(inputs, tf.constant(grouping), tf.constant(devices))
    return noise, (grouping, drawn.numpy())

  def _to_choices(
    self, graph: int, chosen: tuple[np.ndarray, ...]
  ) -> np.ndarray:
    grouping, devices = chosen
    return features.follow_groups(
      grouping, devices, self.seen[graph].allowed, self._fallback[graph]
    )

  def _target(self, graph: int) -> tuple[np.ndarray, ...]:
    groups = self.network.config.groups
    return target_groups(self._tasks[graph].target, groups)

  def _choices(
    self, inputs: Inputs, noise: tf.Tensor, chosen: Sequence[tf.Tensor]
  ) -> list[Choices]:
    grouping, devices = chosen
    by_group = (self.network.group_logits(inputs) + noise)[None]
    by_device = self.network.logits(inputs, grouping, devices)
    filled = tf.cast(self.network.members(grouping) > 0, tf.float32)
    return [
      Choices(by_group, grouping, tf.ones_like(by_group[..., 0])),
      Choices(by_device, devices, filled),
    ]


def target_groups(
  target: np.ndarray, groups: int
) -> tuple[np.ndarray, np.ndarray]:
  """Groups and their devices that give a placement; HDP imitates none.

  Each device has groups in proportion to its decisions, at least one, and its
  decisions fill them in order.

  Args:
    target: [N] devices, of at most `groups` different ones.
    groups: G.

  Returns:
    [1, N] int32 groups, [1, G] int32 devices (0 for an empty group).
  """
  used, counts = np.unique(target, return_counts=True)
  room = groups - len(used)
  number = 1 + room * counts // max(1, counts.sum())
  first = np.cumsum(number) - number
  grouping = np.zeros(len(target), np.int32)
  devices = np.zeros(groups, np.int32)
  for device, count, size, at in zip(used, counts, number, first, strict=True):
    grouping[target == device] = at + np.arange(count) * size // count
    devices[at : at + size] = device
  return grouping[None], devices[None]
