"""What the learners of the two recurrent policies have in common.

They draw placements, have them judged in one call, and take gradient steps of
REINFORCE (`reinforce`) or of imitation. Drawing is done with NumPy's noise,
so that a seed and a step's number say all about randomness.
"""

import abc
import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.errors import TrainingError
from tfplace.learned.gdp.environment import Task
from tfplace.learned.sequence import export, features
from tfplace.learned.sequence.reinforce import (
  Choices,
  MovingBaseline,
  policy_loss,
)
from tfplace.learned.train.config import TrainConfig
from tfplace.learned.train.objectives import clipped, margins
from tfplace.learned.train.strategies import Step
from tfplace.learned.train.tasks import root_rewards

Inputs = dict[str, tf.Tensor]


class SequenceLearner(tf.Module, abc.ABC):
  """A recurrent policy in training on a fixed list of graphs; a `Learner`.

  Attributes:
    network: the policy.
    seen: [graphs] embedding of each.
  """

  network_type: ClassVar[type]
  features_version: ClassVar[int] = features.VERSION

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(name="learner")
    self._tasks = tasks
    self._config = config.reinforce
    self._smoothing = config.imitation.smoothing
    tf.keras.utils.set_random_seed(config.seed)
    network_config = self._complete(config.network or self.network_type())
    types = network_config.types
    self.network = self._make_network(network_config)
    self.seen = [features.extract(t.decisions, types) for t in tasks]
    self._inputs = [
      {name: tf.constant(value) for name, value in seen.tensors().items()}
      for seen in self.seen
    ]
    self._baseline = MovingBaseline(len(tasks), self._config)
    adam = tf.keras.optimizers.Adam
    self._optimizer = adam(self._config.learning_rate)
    self._imitation_optimizer = adam(config.imitation.learning_rate)
    for optimizer in (self._optimizer, self._imitation_optimizer):
      optimizer.build(self.network.trainable_variables)
    seen = export.signature(len(types))
    chosen = [tf.TensorSpec([None, None], tf.int32)] * len(self._kinds)
    old = [tf.TensorSpec([None, None], tf.float32)] * len(self._kinds)
    noise = tf.TensorSpec([None, None], tf.float32)
    advantages = tf.TensorSpec([None], tf.float32)

    def function(method: Any, *more: Any) -> Any:
      specs = [seen, noise, chosen, *more]
      return tf.function(method, input_signature=specs, autograph=False)

    self._first_epoch = function(self._reinforce, advantages)
    self._next_epoch = function(self._clipped, advantages, old)
    self._imitate = function(self._imitation)

  # What the two policies differ in.

  _kinds: ClassVar[tuple[str, ...]]  # of decisions, such as groups and devices

  @abc.abstractmethod
  def _complete(self, config: Any) -> Any:
    """Fills in the sizes that follow from the tasks."""

  @abc.abstractmethod
  def _make_network(self, config: Any) -> Any:
    """The network of complete sizes."""

  @abc.abstractmethod
  def _draw(
    self, graph: int, rng: np.random.Generator, samples: int
  ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Noise on the logits, and per kind [1 + samples, K] choices, the most
    probable ones first."""

  @abc.abstractmethod
  def _to_choices(
    self, graph: int, chosen: tuple[np.ndarray, ...]
  ) -> np.ndarray:
    """Per kind [B, K] choices -> [B, num_decisions] devices."""

  @abc.abstractmethod
  def _target(self, graph: int) -> tuple[np.ndarray, ...]:
    """Per kind [1, K] choices that give the task's target."""

  @abc.abstractmethod
  def _choices(
    self, inputs: Inputs, noise: tf.Tensor, chosen: Sequence[tf.Tensor]
  ) -> list[Choices]:
    """Per kind the logits of what was chosen."""

  # The learner.

  def tracked(self) -> dict[str, Any]:
    """All that decides what the next step does, for a checkpoint."""
    return {
      "policy": self.network,
      "optimizer": self._optimizer,
      "imitation_optimizer": self._imitation_optimizer,
      "baseline": self._baseline,
    }

  def set_weights(self, weights: Sequence[tf.Variable]) -> None:
    """Takes over the weights of another policy of the same sizes.

    Raises:
      TrainingError: they do not fit.
    """
    mine = self.network.variables
    shapes = [tuple(w.shape) for w in weights], [tuple(w.shape) for w in mine]
    if shapes[0] != shapes[1]:
      raise TrainingError(
        f"the policy to start from has {len(weights)} weights of other sizes"
        f" than the network's {len(mine)}"
      )
    for weight, value in zip(mine, weights, strict=True):
      weight.assign(value)

  def fingerprint(self) -> dict[str, Any]:
    """A digest of the features."""
    digest = 0
    for seen in self.seen:
      for array in seen.tensors().values():
        digest = zlib.crc32(np.ascontiguousarray(array).tobytes(), digest)
    return {"features": digest, "types": list(self.network.config.types)}

  def imitate(self, graph: int) -> float:
    """One gradient step towards the graph's target; returns the loss."""
    chosen = [tf.constant(c) for c in self._target(graph)]
    none = tf.zeros([1, 1])
    return float(self._imitate(self._inputs[graph], none, chosen))

  def improve(self, graph: int, rng: np.random.Generator) -> Step:
    """One iteration: draw placements of a graph, judge them, update.

    Args:
      graph: number of the graph.
      rng: draws the placements.
    """
    task, config = self._tasks[graph], self._config
    noise, drawn = self._draw(graph, rng, config.samples)
    every_us = task.evaluate(self._to_choices(graph, drawn))
    step_us = every_us[1:]
    reward = root_rewards(step_us, task.baseline_us, config.infeasible_reward)
    taught = margins(tf.constant(reward), config.elite).numpy()
    advantages = tf.constant(self._baseline.advantages(graph, step_us, taught))
    given = self._inputs[graph], tf.constant(noise)
    chosen = [tf.constant(c[1:]) for c in drawn]
    loss, entropy, old = self._first_epoch(*given, chosen, advantages)
    outside = 0.0
    for _ in range(config.epochs - 1):
      loss, outside = self._next_epoch(*given, chosen, advantages, old)
    return Step(
      reward=float(reward.mean()),
      greedy_us=float(every_us[0]),
      sample_us=float(np.median(step_us)),
      entropy=float(entropy),
      clip_fraction=float(outside),
      policy_loss=float(loss),
      value_loss=0.0,
    )

  def _reinforce(
    self,
    inputs: Inputs,
    noise: tf.Tensor,
    chosen: list[tf.Tensor],
    advantages: tf.Tensor,
  ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """The loss, the entropy and the log-probabilities before the step."""
    with tf.GradientTape() as tape:
      kinds = self._choices(inputs, noise, chosen)
      policy = policy_loss(kinds, advantages)
      entropy = tf.add_n([kind.entropy() for kind in kinds]) / len(kinds)
      loss = policy - self._config.entropy * entropy
    log_probs = [kind.log_probs() for kind in kinds]
    self._apply(tape, loss, self._optimizer)
    return policy, entropy, log_probs

  def _clipped(
    self,
    inputs: Inputs,
    noise: tf.Tensor,
    chosen: list[tf.Tensor],
    advantages: tf.Tensor,
    old: list[tf.Tensor],
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """The loss and the share of decisions outside the clip's bounds."""
    clip = self._config.clip
    with tf.GradientTape() as tape:
      kinds = self._choices(inputs, noise, chosen)
      policy = policy_loss(kinds, advantages, old, clip)
      entropy = tf.add_n([kind.entropy() for kind in kinds]) / len(kinds)
      loss = policy - self._config.entropy * entropy
    outside = [
      kind.mean(
        tf.cast(
          tf.abs(tf.exp(kind.log_probs() - before) - 1.0) > clip, tf.float32
        )
      )
      for kind, before in zip(kinds, old, strict=True)
    ]
    self._apply(tape, loss, self._optimizer)
    return policy, tf.reduce_mean(tf.stack(outside))

  def _imitation(
    self, inputs: Inputs, noise: tf.Tensor, chosen: list[tf.Tensor]
  ) -> tf.Tensor:
    """The mean cross-entropy with the target, smoothed over what is allowed."""
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
    self._apply(tape, loss, self._imitation_optimizer)
    return loss

  def _apply(
    self, tape: tf.GradientTape, loss: tf.Tensor, optimizer: Any
  ) -> None:
    variables = self.network.trainable_variables
    gradients = tape.gradient(loss, variables)
    gradients = clipped(gradients, self._config.max_gradient_norm)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))


def with_types(config: Any, tasks: Sequence[Task]) -> Any:
  """A network's config whose op types are those of the tasks, if none yet."""
  if config.types:
    return dataclasses.replace(config, types=tuple(config.types))
  # Tasks of one graph, at several sizes, count once.
  problems = {id(t.decisions.problem): t.decisions.problem for t in tasks}
  types = features.commonest_types(list(problems.values()))
  return dataclasses.replace(config, types=types)
