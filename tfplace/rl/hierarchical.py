"""The hierarchical placer (HDP, Mirhoseini et al. 2018) in training.

Grouper and placer learn jointly: both see the advantage of the placement that
they made together.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tfplace.policies import keras2, op_embedding, sampling

keras2.check_training_process()

import tensorflow as tf  # noqa: E402

from tfplace.policies import sequence_export  # noqa: E402
from tfplace.policies.exported import Exportable  # noqa: E402
from tfplace.policies.hierarchical_network import (  # noqa: E402
  HierarchicalConfig,
  HierarchicalNetwork,
)
from tfplace.rl.reinforce import Choices  # noqa: E402
from tfplace.rl.sequence_learner import (  # noqa: E402
  Inputs,
  SequenceLearner,
  with_types,
)


class HierarchicalLearner(SequenceLearner):
  """Two kinds of decision: the group of each op, the device of each group."""

  network_type: ClassVar[type] = HierarchicalConfig
  _kinds: ClassVar[tuple[str, ...]] = ("group", "device")

  def exportable(self) -> Exportable:
    """The network as functions of a problem's embedding."""
    return sequence_export.export_hierarchical(self.network)

  def _complete(self, config: HierarchicalConfig) -> HierarchicalConfig:
    config = with_types(config, self._tasks)
    if config.groups:
      return config
    devices = max(t.decisions.problem.cluster.num_devices for t in self._tasks)
    ops = max(t.decisions.num_decisions for t in self._tasks)
    return dataclasses.replace(config, groups=min(256, 20 * devices, ops))

  def _make_network(self, config: HierarchicalConfig) -> HierarchicalNetwork:
    network = HierarchicalNetwork(config)
    signature = sequence_export.signature(len(config.types))
    self._fallback = [
      op_embedding.fallback_devices(task.decisions) for task in self._tasks
    ]
    self._group_logits = tf.function(
      network.group_logits, input_signature=[signature], autograph=False
    )
    self._decode = tf.function(
      network.decode,
      input_signature=[
        signature,
        sequence_export.GROUPING,
        sequence_export.NOISE,
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
    return op_embedding.follow_groups(
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
