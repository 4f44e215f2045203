"""Base class of learners, which `trainer.Trainer` drives."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.errors import TrainingError
from tfplace.learned.policy_format import Exportable, PolicyInputs
from tfplace.training.config import TrainConfig
from tfplace.training.tasks import Task


def clipped(gradients: Sequence[tf.Tensor], max_norm: float) -> list[tf.Tensor]:
  """Clips gradients to a global norm of `max_norm`.

  Unlike `tf.clip_by_global_norm`, finite gradients whose squares overflow yield
  no NaNs; an LSTM over 48 steps can produce such gradients. If a gradient is
  infinite or NaN, all are set to zero. Sparse gradients become dense.
  """
  dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
  largest = tf.reduce_max([tf.reduce_max(tf.abs(g)) for g in dense])
  is_finite = tf.math.is_finite(largest)
  unit = tf.where(is_finite & (largest > 0), largest, 1.0)
  scaled = [tf.where(is_finite, g / unit, 0.0) for g in dense]
  norm = tf.maximum(tf.linalg.global_norm(scaled), 1e-9)
  factor = tf.minimum(unit, max_norm / norm)
  return [g * factor for g in scaled]


def margins(rewards: tf.Tensor, share: float) -> tf.Tensor:
  """Computes the rewards of the elite above the best of the others.

  The others get 0. This is the risk-seeking policy gradient (Petersen et al.,
  "Deep symbolic regression", ICLR 2021): a placer keeps its best sample, so the
  mean does not matter.

  Args:
    rewards: [B] or [B, 1] rewards of samples of one graph.
    share: Elite fraction of the samples, in (0, 1]; 1 returns the rewards.
  """
  if share >= 1.0:
    return rewards
  ranked = tf.sort(tf.reshape(rewards, [-1]), direction="DESCENDING")
  count = tf.cast(tf.size(ranked), tf.float32)
  kept = tf.cast(tf.round(share * count), tf.int32)
  rest = ranked[tf.clip_by_value(kept, 1, tf.size(ranked) - 1)]
  return tf.maximum(rewards - rest, 0.0)


def imitation_loss(
  logits: tf.Tensor, allowed: tf.Tensor, target: tf.Tensor, smoothing: float
) -> tf.Tensor:
  """Computes the mean cross-entropy of [N, D] logits and [N] targets.

  Smoothing distributes probability evenly over the other allowed devices.
  """
  exact = tf.one_hot(target, tf.shape(logits)[1])
  others = tf.cast(allowed, tf.float32) - exact
  number = tf.reduce_sum(others, axis=1, keepdims=True)
  kept = tf.where(number > 0, smoothing, 0.0)
  wanted = (1.0 - kept) * exact + kept * others / tf.maximum(number, 1.0)
  log_probs = tf.nn.log_softmax(logits)
  terms = tf.where(allowed, wanted * log_probs, 0.0)
  return -tf.reduce_mean(tf.reduce_sum(terms, axis=1))


def mean_entropy(logits: np.ndarray) -> float:
  """Computes the mean entropy of [N, D] masked logits in nats."""
  shifted = logits - logits.max(axis=1, keepdims=True)
  weight = np.exp(shifted)
  probs = weight / weight.sum(axis=1, keepdims=True)
  log_probs = np.log(np.maximum(probs, 1e-30))
  return float(-(probs * log_probs).sum(axis=1).mean())


IMITATION_RATE = 2e-3  # Learning rate of Adam in imitation.
# Probability of devices other than the target in imitation, so that exploration
# remains possible.
SMOOTHING = 0.01
MAX_GRADIENT_NORM = 1.0  # TensorFlow's hierarchical_controller: 1


@dataclasses.dataclass(frozen=True)
class Step:
  """Metrics of one iteration of reinforcement learning.

  Attributes:
    reward: Mean over the samples.
    greedy_us: Step time of the most probable placement, infinite if infeasible.
    sample_us: Median step time of the samples.
    entropy: Nats per decision, before the update.
    policy_loss: Policy loss of the last epoch.
    clip_fraction: Clipped fraction of decisions in the last epoch; 0 for
      REINFORCE.
  """

  reward: float
  greedy_us: float
  sample_us: float
  entropy: float
  policy_loss: float
  clip_fraction: float = 0.0


class Learner(tf.Module, abc.ABC):
  """Policy and optimizers for a fixed list of graphs.

  A subclass sets `policy` and creates all variables and optimizer slots in its
  constructor, so that a checkpoint finds them. All state is in the tracked
  variables and the tasks' best placements; otherwise a resumed run would differ
  from an uninterrupted one. Placements are evaluated by `Task.evaluate`, which
  keeps the best.

  Attributes:
    network_type: Frozen dataclass of network sizes (plain JSON values). An
      exported policy contains it, so that training can continue.
    max_decisions: Maximum number of decisions of a graph, None for no limit.
    changes: True if the policy modifies existing placements.
    sizes: Sizes of the network.
    inputs: Policy inputs of each graph, from `_extract`.
    policy: Network whose `variables` are those of an exported policy, in order.
      Placers call its `exported_functions()`, see `export.as_function`.
    imitation_optimizer: Adam optimizer of the imitation.

  Raises:
    TrainingError: A graph has too many decisions.
  """

  network_type: ClassVar[type]
  max_decisions: ClassVar[int | None] = None
  changes: ClassVar[bool] = False
  policy: Any
  imitation_optimizer: tf.keras.optimizers.Optimizer

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(name="learner")
    self._tasks, self._config = tasks, config
    for task in tasks:
      self._check_size(task)
    self.sizes = self._complete(config.network or self.network_type())
    self.inputs: list[Any] = [self._extract(task) for task in tasks]
    tf.keras.utils.set_random_seed(config.seed)

  @abc.abstractmethod
  def _extract(self, task: Task) -> PolicyInputs:
    """Extracts the policy inputs of a graph."""

  def _complete(self, sizes: Any) -> Any:
    """Completes the network sizes that depend on the tasks."""
    return sizes

  @abc.abstractmethod
  def imitate(self, graph: int) -> float:
    """Takes a supervised gradient step on `tasks[graph]`; returns the loss.

    Most learners imitate the task's `target`.
    """

  @abc.abstractmethod
  def improve(self, graph: int, rng: np.random.Generator) -> Step:
    """Runs one iteration of reinforcement learning on `tasks[graph]`.

    `rng`, seeded by the step number, is the only source of randomness.
    """

  def exportable(self) -> Exportable:
    """Returns the policy as plain TensorFlow functions, with its sizes."""
    return self._exported(self.policy)

  def _exported(self, network: Any) -> Exportable:
    return Exportable(
      strategy=self._config.strategy,
      network=dataclasses.asdict(self.sizes),
      variables=list(network.variables),
      functions=network.exported_functions(),
    )

  def tracked(self) -> dict[str, Any]:
    """Returns the variables, optimizers and modules to checkpoint."""
    return {
      "policy": self.policy,
      "imitation_optimizer": self.imitation_optimizer,
    }

  def set_weights(self, weights: Sequence[tf.Variable]) -> None:
    """Assigns the variables of an exported policy, in order.

    Raises:
      TrainingError: The variables have other shapes.
    """
    present = self.policy.variables
    if [w.shape for w in weights] != [w.shape for w in present]:
      raise TrainingError(
        f"the policy to start from has {len(weights)} weights of other sizes"
        f" than the network's {len(present)}"
      )
    for weight, value in zip(present, weights, strict=True):
      weight.assign(value)

  def _check_size(self, task: Task) -> None:
    count, most = task.decisions.num_decisions, self.max_decisions
    if most is not None and not 0 < count <= most:
      raise TrainingError(
        f"graph {task.decisions.problem.graph.name!r} has {count} decisions;"
        f" strategy {self._config.strategy!r}, which makes them one after the"
        f" other, takes 1 to {most}: give --max_decisions=256 or fewer"
      )

  def _adam(self, learning_rate: float) -> tf.keras.optimizers.Optimizer:
    adam = tf.keras.optimizers.Adam(learning_rate)
    adam.build(self.policy.trainable_variables)
    return adam

  def _descend(
    self,
    tape: tf.GradientTape,
    loss: tf.Tensor,
    optimizer: tf.keras.optimizers.Optimizer,
  ) -> None:
    variables = self.policy.trainable_variables
    gradients = clipped(tape.gradient(loss, variables), MAX_GRADIENT_NORM)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
