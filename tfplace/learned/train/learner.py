"""The base of learners, which make the steps of a run for `trainer.Trainer`."""

import abc
import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.errors import TrainingError
from tfplace.learned.exported import Exportable, PolicyInputs
from tfplace.learned.train.config import TrainConfig
from tfplace.learned.train.objectives import clipped
from tfplace.learned.train.tasks import Task


@dataclasses.dataclass(frozen=True)
class Step:
  """What one iteration of reinforcement learning did, for the logs.

  Attributes:
    reward: mean over the samples.
    greedy_us: step time of the most probable placement, infinite where it
      does not fit.
    sample_us: the samples' median step time.
    entropy: nats per decision, before the update.
    policy_loss: of the last epoch.
    value_loss: of the last epoch; 0 without a value network.
    clip_fraction: of decisions, in the last epoch; 0 for REINFORCE.
  """

  reward: float
  greedy_us: float
  sample_us: float
  entropy: float
  policy_loss: float
  value_loss: float = 0.0
  clip_fraction: float = 0.0


class Learner(tf.Module, abc.ABC):
  """A policy in training on a fixed list of graphs, as `Trainer` drives it.

  A subclass sets `policy` and builds every variable and every slot of its
  optimizers in its constructor, so that a checkpoint finds them. Besides the
  tracked variables and the tasks' best placements nothing may hold state, or a
  resumed run ends elsewhere than an uninterrupted one. Placements are judged by
  `Task.evaluate` or counted by `Task.keep`, which keep the best.

  Attributes:
    network_type: frozen dataclass of the network's sizes, of plain JSON values.
      An exported policy carries it, so that training can go on from there.
    method_type: frozen dataclass of how the policy learns.
    max_decisions: of a graph, None for any number.
    changes: whether the policy changes placements; others begin from nothing.
    sizes: of the network.
    inputs: what the policy sees of each graph, as its `_extract` has it.
    policy: the network; its `variables`, in order, are those of an exported
      policy.
    imitation_optimizer: Adam of the imitation.

  Args:
    tasks: the graphs.
    config: of the run.

  Raises:
    TrainingError: a graph with too many decisions.
  """

  network_type: ClassVar[type]
  method_type: ClassVar[type]
  max_decisions: ClassVar[int | None] = None
  changes: ClassVar[bool] = False
  policy: Any
  imitation_optimizer: tf.keras.optimizers.Optimizer

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(name="learner")
    self._tasks, self._config = tasks, config
    self._method = config.method or self.method_type()
    for task in tasks:
      self._check_size(task)
    self.sizes = self._complete(config.network or self.network_type())
    self.inputs: list[Any] = [self._extract(task) for task in tasks]
    tf.keras.utils.set_random_seed(config.seed)

  @abc.abstractmethod
  def _extract(self, task: Task) -> PolicyInputs:
    """What the policy sees of a graph."""

  def _complete(self, sizes: Any) -> Any:
    """Sizes of the network, with those that follow from the tasks."""
    return sizes

  @abc.abstractmethod
  def imitate(self, graph: int) -> float:
    """One gradient step towards `tasks[graph].target`; returns the loss."""

  @abc.abstractmethod
  def improve(self, graph: int, rng: np.random.Generator) -> Step:
    """One iteration of reinforcement learning on a task, by its number; `rng`,
    seeded from the step's number, is the only source of randomness."""

  @abc.abstractmethod
  def exportable(self) -> Exportable:
    """The policy as plain TensorFlow functions, with its sizes."""

  def tracked(self) -> dict[str, Any]:
    """Variables, optimizers and modules that decide what the next step does,
    by name, for a checkpoint."""
    return {
      "policy": self.policy,
      "imitation_optimizer": self.imitation_optimizer,
    }

  def set_weights(self, weights: Sequence[tf.Variable]) -> None:
    """Takes over the variables of an exported policy, in its order.

    Raises:
      TrainingError: they are of other sizes.
    """
    mine = self.policy.variables
    if [w.shape for w in weights] != [w.shape for w in mine]:
      raise TrainingError(
        f"the policy to start from has {len(weights)} weights of other sizes"
        f" than the network's {len(mine)}"
      )
    for weight, value in zip(mine, weights, strict=True):
      weight.assign(value)

  def fingerprint(self) -> dict[str, Any]:
    """Plain JSON that must be equal for a run to go on, besides the config
    and the targets."""
    digest = 0
    for seen in self.inputs:
      for array in seen.tensors().values():
        digest = zlib.crc32(np.ascontiguousarray(array).tobytes(), digest)
    return {"features": digest}

  @classmethod
  def method_of(cls, asked: Mapping[str, Any]) -> Any:
    """How the policy learns, with what the caller of a run asks for: fields of
    `method_type`, None for the strategy's own; others mean nothing to it."""
    fields = {field.name for field in dataclasses.fields(cls.method_type)}
    given = {k: v for k, v in asked.items() if v is not None and k in fields}
    return cls.method_type(**given)

  def _check_size(self, task: Task) -> None:
    count, most = task.decisions.num_decisions, self.max_decisions
    if most is not None and not 0 < count <= most:
      raise TrainingError(
        f"graph {task.decisions.problem.graph.name!r} has {count} decisions;"
        f" strategy {self._config.strategy!r}, which makes them one after the"
        f" other, takes 1 to {most}: give --max_decisions=256 or fewer"
      )

  def _adam(self, learning_rate: float) -> tf.keras.optimizers.Optimizer:
    """Adam of the policy's weights, with its slots."""
    adam = tf.keras.optimizers.Adam(learning_rate)
    adam.build(self.policy.trainable_variables)
    return adam

  def _descend(
    self,
    tape: tf.GradientTape,
    loss: tf.Tensor,
    optimizer: tf.keras.optimizers.Optimizer,
    max_norm: float,
  ) -> None:
    """One step of the policy's weights against the clipped gradient."""
    variables = self.policy.trainable_variables
    gradients = clipped(tape.gradient(loss, variables), max_norm)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
