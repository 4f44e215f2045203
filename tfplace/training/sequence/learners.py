"""Learners of the policies of the literature (REINFORCE).

An agent of tf-agents maps an observation to a distribution. Here a choice
depends on the choices before it, and a hierarchical policy has two kinds.
"""

import abc
import dataclasses
import functools
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.learned.policy_format import PolicyInputs
from tfplace.learned.sequence import features, placers, placeto_features
from tfplace.training.config import TrainConfig
from tfplace.training.learner import (
  IMITATION_RATE,
  SMOOTHING,
  Learner,
  Step,
  margins,
)
from tfplace.training.sequence.networks import (
  HierarchicalConfig,
  HierarchicalNetwork,
  RnnConfig,
  RnnNetwork,
  advantages,
)
from tfplace.training.sequence.placeto_network import (
  PlacetoConfig,
  PlacetoNetwork,
)
from tfplace.training.tasks import Task, log_rewards

_STATES = 128  # States of Placeto per gradient step; bounds memory.


class SequenceLearner(Learner):
  """Base learner: samples placements, evaluates them and updates the policy."""

  policy_type: ClassVar[Any]
  sampler_type: ClassVar[type[placers.Sampler]]

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(tasks, config)
    self.policy = self.policy_type(self.sizes)
    self._optimizer = self._adam(config.learning_rate)
    self.imitation_optimizer = self._adam(IMITATION_RATE)
    self._reinforce, self._cross_entropy = (
      tf.function(
        functools.partial(self._descend_on, optimizer),
        autograph=False,
        reduce_retracing=True,
      )
      for optimizer in (self._optimizer, self.imitation_optimizer)
    )
    self._tensors = [
      {name: tf.constant(x) for name, x in seen.tensors().items()}
      for seen in self.inputs
    ]
    functions = self.policy.exported_functions()
    self._samplers: list[Any] = [
      self.sampler_type(
        functools.partial(_call, functions, tensors), task.decisions
      )
      for task, tensors in zip(tasks, self._tensors, strict=True)
    ]

  @abc.abstractmethod
  def _target(self, graph: int) -> dict[str, np.ndarray]:
    """Returns [B, ...] states and choices that produce the target."""

  def tracked(self) -> dict[str, Any]:
    return {**super().tracked(), "optimizer": self._optimizer}

  def imitate(self, graph: int) -> float:
    target = self._target(graph)
    ones = np.ones(len(next(iter(target.values()))), np.float32)
    loss, _ = self._update(
      self._cross_entropy,
      graph,
      target,
      advantages=ones,
      entropy_weight=0.0,
      smoothing=SMOOTHING,
    )
    return loss

  def improve(self, graph: int, rng: np.random.Generator) -> Step:
    """Runs one iteration: samples and evaluates placements, updates."""
    task, config = self._tasks[graph], self._config
    sampled = self._samplers[graph].sample(rng, config.samples)
    every_us = task.evaluate(sampled.choices)
    reward = log_rewards(every_us[1:], task.baseline_us)
    taught = margins(tf.constant(reward), config.elite).numpy()
    given = {name: values[1:] for name, values in sampled.given.items()}
    loss, entropy = self._improve_on(graph, given, advantages(taught))
    return _step(every_us, reward, loss, entropy)

  def _improve_on(
    self, graph: int, given: dict[str, np.ndarray], advantages: np.ndarray
  ) -> tuple[float, float]:
    """Takes a step of REINFORCE; see `_update`."""
    return self._update(
      self._reinforce,
      graph,
      given,
      advantages=advantages,
      entropy_weight=self._config.entropy,
      smoothing=0.0,
    )

  def _update(
    self, function: Any, graph: int, given: dict[str, np.ndarray], **more: Any
  ) -> tuple[float, float]:
    """Takes a gradient step; returns the policy loss and the entropy."""
    tensors = {name: tf.constant(values) for name, values in given.items()}
    loss, entropy = function(
      {**self._tensors[graph], **tensors},
      **{name: tf.constant(value) for name, value in more.items()},
    )
    return float(loss), float(entropy)

  def _descend_on(
    self,
    optimizer: tf.keras.optimizers.Optimizer,
    given: dict[str, tf.Tensor],
    *,
    advantages: tf.Tensor,
    entropy_weight: tf.Tensor,
    smoothing: tf.Tensor,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    with tf.GradientTape() as tape:
      kinds = self.policy.kinds(**given)
      policy = tf.add_n([kind.loss(advantages, smoothing) for kind in kinds])
      entropy = tf.add_n([kind.entropy() for kind in kinds]) / len(kinds)
      loss = policy - entropy_weight * entropy
    self._descend(tape, loss, optimizer)
    return policy, entropy


class RnnLearner(SequenceLearner):
  """Learner with one kind of decision: the device of each group."""

  network_type: ClassVar[type] = RnnConfig
  policy_type: ClassVar[Any] = RnnNetwork
  sampler_type: ClassVar[type[placers.Sampler]] = placers.RnnSampler
  max_decisions: ClassVar[int | None] = 512

  def _complete(self, sizes: Any) -> Any:
    """Fills in the op types of the tasks, unless types are given."""
    problems = [task.decisions.problem for task in self._tasks]
    types = sizes.types or features.commonest_types(problems)
    return dataclasses.replace(sizes, types=tuple(types))

  def _extract(self, task: Task) -> PolicyInputs:
    return features.extract(task.decisions, self.sizes.types)

  def _target(self, graph: int) -> dict[str, np.ndarray]:
    return {"choices": self._tasks[graph].target[None]}


class HierarchicalLearner(RnnLearner):
  """Learner with two kinds of decision: groups and their devices."""

  network_type: ClassVar[type] = HierarchicalConfig
  policy_type: ClassVar[Any] = HierarchicalNetwork
  sampler_type: ClassVar[type[placers.Sampler]] = placers.HierarchicalSampler
  max_decisions: ClassVar[int | None] = None

  def _complete(self, sizes: HierarchicalConfig) -> HierarchicalConfig:
    devices = max(t.decisions.problem.cluster.num_devices for t in self._tasks)
    ops = max(t.decisions.num_decisions for t in self._tasks)
    groups = sizes.groups or min(256, 20 * devices, ops)
    return dataclasses.replace(super()._complete(sizes), groups=groups)

  def _target(self, graph: int) -> dict[str, np.ndarray]:
    target = self._tasks[graph].target
    grouping, devices = target_groups(target, self.sizes.groups)
    return {"grouping": grouping[None], "choices": devices[None]}


class PlacetoLearner(SequenceLearner):
  """Learner of episodes that re-place one group after another.

  Each step is rewarded by the decrease of the step time (arXiv 1906.08879).
  """

  network_type: ClassVar[type] = PlacetoConfig
  policy_type: ClassVar[Any] = PlacetoNetwork
  sampler_type: ClassVar[type[placers.Sampler]] = placers.PlacetoSampler
  # An episode visits every group, and each visit observes all of them.
  max_decisions: ClassVar[int | None] = 512

  def _extract(self, task: Task) -> PolicyInputs:
    return placeto_features.extract(task.decisions)

  def improve(self, graph: int, rng: np.random.Generator) -> Step:
    """Runs one iteration: parallel episodes, then an update."""
    task, config = self._tasks[graph], self._config
    sampler = self._samplers[graph]
    sampler.best = task.best
    sampled = sampler.sample(rng, config.samples)
    placements = sampled.given["placements"]  # [1 + B, N + 1, N]
    times = [task.evaluate(rows) for rows in placements.swapaxes(0, 1)]
    every_us = np.stack(times, axis=1)
    reward = log_rewards(every_us[1:].ravel(), task.baseline_us)
    reward = reward.reshape(config.samples, -1)
    # The rewards of the steps ahead add up.
    returns = advantages(reward[:, -1:] - reward[:, :-1]).ravel()
    count = task.decisions.num_decisions
    state = {
      "placement": placements[1:, :-1].reshape(-1, count),
      "step": np.tile(np.arange(count, dtype=np.int32), config.samples),
      "action": sampled.choices[1:].ravel(),
    }
    order = rng.permutation(len(returns))
    parts = np.array_split(order, -(-len(order) // _STATES))
    for rows in parts:
      given = {name: values[rows] for name, values in state.items()}
      loss, entropy = self._improve_on(graph, given, returns[rows])
    return _step(every_us[:, -1], reward[:, -1], loss, entropy)

  def _target(self, graph: int) -> dict[str, np.ndarray]:
    """Returns random steps of episodes that follow the target.

    They depend only on the seed and the number of imitation steps.
    """
    task, number = self._tasks[graph], self._config.samples
    done = int(self.imitation_optimizer.iterations)
    rng = np.random.default_rng([self._config.seed, done, graph])
    count = task.decisions.num_decisions
    step = rng.integers(0, count, number).astype(np.int32)
    target = task.target.astype(np.int32)
    start = self._samplers[graph].random(number, rng)
    placement = np.where(np.arange(count) < step[:, None], target, start)
    return {"placement": placement, "step": step, "action": target[step]}


def _call(functions: Any, tensors: Any, name: str, *more: np.ndarray) -> Any:
  given = (*tensors.values(), *map(tf.constant, more))
  return functions[name](*given).numpy()


def _step(
  every_us: np.ndarray, reward: np.ndarray, loss: float, entropy: float
) -> Step:
  return Step(
    reward=float(reward.mean()),
    greedy_us=float(every_us[0]),
    sample_us=float(np.median(every_us[1:])),
    entropy=entropy,
    policy_loss=loss,
  )


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
    [N] int32 groups, [G] int32 devices (0 for an empty group).
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
  return grouping, devices
