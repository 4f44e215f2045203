"""Learners of the RNN-based and the hierarchical policy (REINFORCE)."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.learned import Tensor
from tfplace.learned.decisions import decoding_noise, greedy_and_samples
from tfplace.learned.policy_format import Exportable
from tfplace.learned.sequence import features
from tfplace.learned.sequence.networks import (
  HierarchicalConfig,
  HierarchicalNetwork,
  RnnConfig,
  RnnNetwork,
  exportable,
)
from tfplace.learned.train.config import ReinforceConfig, TrainConfig
from tfplace.learned.train.learner import Learner, Step
from tfplace.learned.train.objectives import (
  Choices,
  MovingBaseline,
  margins,
  policy_loss,
)
from tfplace.learned.train.tasks import Task, root_rewards

Inputs = dict[str, tf.Tensor]


class SequenceLearner(Learner):
  """Base learner of recurrent policies on a fixed list of graphs."""

  method_type: ClassVar[type] = ReinforceConfig

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(tasks, config)
    self._smoothing = config.imitation.smoothing
    self.policy = self._make_network()
    self._inputs = [
      {name: tf.constant(value) for name, value in seen.tensors().items()}
      for seen in self.inputs
    ]
    self._baseline = MovingBaseline(len(tasks), self._method)
    self._optimizer = self._adam(self._method.learning_rate)
    self.imitation_optimizer = self._adam(config.imitation.learning_rate)
    chosen = [tf.TensorSpec([None, None], tf.int32)] * self._kinds
    noise = tf.TensorSpec([None, None], tf.float32)
    advantages = tf.TensorSpec([None], tf.float32)
    self._learn = self._function(self._reinforce, noise, chosen, advantages)
    self._imitate = self._function(self._imitation, noise, chosen)

  def _function(self, method: Any, *more: Any) -> Any:
    seen = _specs(features.signature(len(self.sizes.types)))
    return tf.function(method, input_signature=[seen, *more], autograph=False)

  # Methods in which the two policies differ.

  # Number of kinds of decision: groups and devices, or devices only.
  _kinds: ClassVar[int]

  @abc.abstractmethod
  def _make_network(self) -> Any:
    """Builds the network of complete sizes."""

  @abc.abstractmethod
  def _sample(
    self, graph: int, rng: np.random.Generator, samples: int
  ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Returns logit noise and, per kind, [1 + samples, K] choices.

    The first row contains the most probable choices.
    """

  @abc.abstractmethod
  def _to_choices(
    self, graph: int, chosen: tuple[np.ndarray, ...]
  ) -> np.ndarray:
    """Maps [B, K] choices per kind to [B, num_decisions] devices."""

  @abc.abstractmethod
  def _target(self, graph: int) -> tuple[np.ndarray, ...]:
    """Returns [1, K] choices per kind that produce the target."""

  @abc.abstractmethod
  def _choices(
    self, inputs: Inputs, noise: tf.Tensor, chosen: Sequence[tf.Tensor]
  ) -> list[Choices]:
    """Computes the logits of the choices per kind."""

  # Methods of the learner.

  def _complete(self, sizes: Any) -> Any:
    """Fills in the op types of the tasks, unless types are given."""
    if sizes.types:
      return dataclasses.replace(sizes, types=tuple(sizes.types))
    # A graph that occurs in several tasks, at several sizes, counts once.
    problems = [t.decisions.problem for t in self._tasks]
    distinct = {id(problem): problem for problem in problems}
    types = features.commonest_types(list(distinct.values()))
    return dataclasses.replace(sizes, types=types)

  def _extract(self, task: Task) -> features.OpEmbedding:
    return features.extract(task.decisions, self.sizes.types)

  def tracked(self) -> dict[str, Any]:
    return {
      **super().tracked(),
      "optimizer": self._optimizer,
      "baseline": self._baseline,
    }

  def fingerprint(self) -> dict[str, Any]:
    return {**super().fingerprint(), "types": list(self.sizes.types)}

  def exportable(self) -> Exportable:
    """Returns the network as functions of `OpEmbedding.tensors()`."""
    return exportable(self._config.strategy, self.policy)

  def imitate(self, graph: int) -> float:
    chosen = [tf.constant(c) for c in self._target(graph)]
    none = tf.zeros([1, 1])
    return float(self._imitate(self._inputs[graph], none, chosen))

  def improve(self, graph: int, rng: np.random.Generator) -> Step:
    """Runs one iteration: samples and evaluates placements, updates."""
    task, config = self._tasks[graph], self._method
    noise, sampled = self._sample(graph, rng, config.samples)
    every_us = task.evaluate(self._to_choices(graph, sampled))
    step_us = every_us[1:]
    reward = root_rewards(step_us, task.baseline_us, config.infeasible_reward)
    taught = margins(tf.constant(reward), config.elite).numpy()
    advantages = self._baseline.advantages(graph, step_us, taught)
    chosen = [tf.constant(c[1:]) for c in sampled]
    loss, entropy = self._learn(
      self._inputs[graph],
      tf.constant(noise),
      chosen,
      tf.constant(advantages),
    )
    return Step(
      reward=float(reward.mean()),
      greedy_us=float(every_us[0]),
      sample_us=float(np.median(step_us)),
      entropy=float(entropy),
      policy_loss=float(loss),
    )

  def _reinforce(
    self,
    inputs: Inputs,
    noise: tf.Tensor,
    chosen: list[tf.Tensor],
    advantages: tf.Tensor,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    with tf.GradientTape() as tape:
      kinds = self._choices(inputs, noise, chosen)
      policy = policy_loss(kinds, advantages)
      entropy = tf.add_n([kind.entropy() for kind in kinds]) / len(kinds)
      loss = policy - self._method.entropy * entropy
    self._descend(tape, loss, self._optimizer, self._method.max_gradient_norm)
    return policy, entropy

  def _imitation(
    self, inputs: Inputs, noise: tf.Tensor, chosen: list[tf.Tensor]
  ) -> tf.Tensor:
    """Computes the cross-entropy, with smoothing over allowed choices."""
    with tf.GradientTape() as tape:
      loss = 0.0
      for kind in self._choices(inputs, noise, chosen):
        log_probs = tf.nn.log_softmax(kind.logits)
        allowed = tf.cast(log_probs > -1e8, tf.float32)
        spread = tf.reduce_sum(
          tf.where(allowed > 0, log_probs, 0.0), axis=-1
        ) / tf.reduce_sum(allowed, axis=-1)
        each = (1.0 - self._smoothing) * kind.log_probs()
        loss -= tf.reduce_mean(kind.mean(each + self._smoothing * spread))
    norm = self._method.max_gradient_norm
    self._descend(tape, loss, self.imitation_optimizer, norm)
    return loss


class RnnLearner(SequenceLearner):
  """Learner with one kind of decision: the device of each group."""

  network_type: ClassVar[type] = RnnConfig
  _kinds: ClassVar[int] = 1
  max_decisions: ClassVar[int | None] = 512

  def _make_network(self) -> RnnNetwork:
    network = RnnNetwork(self.sizes)
    self._decode = self._function(
      network.decode, *_specs(features.NOISE).values()
    )
    return network

  def _sample(
    self, graph: int, rng: np.random.Generator, samples: int
  ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    seen = self.inputs[graph]
    noise = decoding_noise(rng, samples, seen.num_decisions, seen.num_devices)
    sampled = self._decode(self._inputs[graph], tf.constant(noise)).numpy()
    return np.zeros((1, 1), np.float32), (sampled,)

  def _to_choices(
    self, graph: int, chosen: tuple[np.ndarray, ...]
  ) -> np.ndarray:
    return chosen[0]

  def _target(self, graph: int) -> tuple[np.ndarray, ...]:
    return (self._tasks[graph].target[None],)

  def _choices(
    self, inputs: Inputs, noise: tf.Tensor, chosen: Sequence[tf.Tensor]
  ) -> list[Choices]:
    logits = self.policy.logits(inputs, chosen[0])
    return [Choices(logits, chosen[0], tf.ones_like(logits[..., 0]))]


class HierarchicalLearner(SequenceLearner):
  """Learner with two kinds of decision: groups and their devices."""

  network_type: ClassVar[type] = HierarchicalConfig
  _kinds: ClassVar[int] = 2

  def _complete(self, sizes: HierarchicalConfig) -> HierarchicalConfig:
    sizes = super()._complete(sizes)
    if sizes.groups:
      return sizes
    devices = max(t.decisions.problem.cluster.num_devices for t in self._tasks)
    ops = max(t.decisions.num_decisions for t in self._tasks)
    return dataclasses.replace(sizes, groups=min(256, 20 * devices, ops))

  def _make_network(self) -> HierarchicalNetwork:
    network = HierarchicalNetwork(self.sizes)
    self._fallback = [
      features.fallback_devices(task.decisions) for task in self._tasks
    ]
    more = _specs({**features.GROUPING, **features.NOISE})
    self._group_logits = self._function(network.group_logits)
    self._decode = self._function(network.decode, *more.values())
    return network

  def _sample(
    self, graph: int, rng: np.random.Generator, samples: int
  ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    config, inputs = self._method, self._inputs[graph]
    logits = self._group_logits(inputs).numpy()
    noise = np.zeros_like(logits)
    if self._baseline.updates(graph) < config.noise_steps:
      scale = config.noise * np.sqrt((logits**2).mean())
      noise = (scale * rng.normal(size=logits.shape)).astype(np.float32)
    grouping = greedy_and_samples(logits + noise, samples, rng)
    grouping[0] = logits.argmax(axis=1)
    devices = decoding_noise(
      rng, samples, logits.shape[1], self.inputs[graph].num_devices
    )
    sampled = self._decode(inputs, tf.constant(grouping), tf.constant(devices))
    return noise, (grouping, sampled.numpy())

  def _to_choices(
    self, graph: int, chosen: tuple[np.ndarray, ...]
  ) -> np.ndarray:
    grouping, devices = chosen
    return features.follow_groups(
      grouping, devices, self.inputs[graph].allowed, self._fallback[graph]
    )

  def _target(self, graph: int) -> tuple[np.ndarray, ...]:
    groups = self.policy.config.groups
    return target_groups(self._tasks[graph].target, groups)

  def _choices(
    self, inputs: Inputs, noise: tf.Tensor, chosen: Sequence[tf.Tensor]
  ) -> list[Choices]:
    grouping, devices = chosen
    by_group = (self.policy.group_logits(inputs) + noise)[None]
    by_device = self.policy.logits(inputs, grouping, devices)
    filled = tf.cast(self.policy.members(grouping) > 0, tf.float32)
    return [
      Choices(by_group, grouping, tf.ones_like(by_group[..., 0])),
      Choices(by_device, devices, filled),
    ]


def _specs(signature: Mapping[str, Tensor]) -> dict[str, tf.TensorSpec]:
  return {n: tf.TensorSpec(s, t, n) for n, (s, t) in signature.items()}


def target_groups(
  target: np.ndarray, groups: int
) -> tuple[np.ndarray, np.ndarray]:
  """Constructs groups and devices that produce a placement.

  Each device gets groups in proportion to its decisions, at least one; its
  decisions fill them in order. (HDP itself has no imitation.)

  Args:
    target: [N] devices, at most `groups` different ones.
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
