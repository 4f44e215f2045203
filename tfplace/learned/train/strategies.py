"""Learned strategies by name, and what a strategy's learner must be able to.

The registry holds strings, as that of the placers does, so that a run imports
only the strategy that it trains. Whatever else a run needs (tasks, the loop,
checkpoints, exact resume, the export) is the same for all.
"""

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from tfplace.errors import TrainingError
from tfplace.learned.exported import Exportable

_LEARNERS: Mapping[str, str] = {
  "gdp": "tfplace.learned.gdp.learner:GdpLearner",
  "placeto": "tfplace.learned.placeto.learner:PlacetoLearner",
  "hierarchical": "tfplace.learned.sequence.methods:HierarchicalLearner",
  "rnn": "tfplace.learned.sequence.methods:RnnLearner",
}
STRATEGIES = tuple(_LEARNERS)


@dataclasses.dataclass(frozen=True)
class Step:
  """What one iteration of reinforcement learning did, for the logs.

  Attributes:
    reward: mean over the samples.
    greedy_us: step time of the most probable placement, infinite where it
      does not fit.
    sample_us: the samples' median step time.
    entropy: nats per decision, before the update.
    clip_fraction: of decisions, in the last epoch; 0 for REINFORCE.
    policy_loss: of the last epoch.
    value_loss: of the last epoch; 0 without a value network.
  """

  reward: float
  greedy_us: float
  sample_us: float
  entropy: float
  clip_fraction: float
  policy_loss: float
  value_loss: float


class Learner(Protocol):
  """A policy in training on a fixed list of graphs, as `Trainer` drives it.

  The constructor seeds TensorFlow from `config.seed`, extracts the features of
  its tasks, and builds every variable and every slot of its optimizers, so
  that a checkpoint finds them. After that a step is a function of the tracked
  state, the tasks' best placements and what it is given: nothing else may
  hold state, or a resumed run ends elsewhere than an uninterrupted one.
  Placements are judged by `Task.evaluate` only, which counts evaluations and
  keeps the best.

  Attributes:
    network_type: frozen dataclass of the network's sizes, of plain JSON values;
      `config.network` is one, or None for the defaults. An exported policy
      carries it, so that training can go on from there.
    features_version: of the features that an exported policy was trained on;
      one of another version is refused.
  """

  network_type: ClassVar[type]
  features_version: ClassVar[int]

  # tasks: list[gdp.environment.Task]; config: train.config.TrainConfig.
  def __init__(self, tasks: list[Any], config: Any) -> None: ...

  def imitate(self, graph: int) -> float:
    """One gradient step towards `tasks[graph].target`; returns the loss."""

  def improve(self, graph: int, rng: np.random.Generator) -> Step:
    """One iteration of reinforcement learning on a graph.

    Args:
      graph: number of the task.
      rng: the only source of randomness; seeded from the step's number.
    """

  def tracked(self) -> dict[str, Any]:
    """Variables, optimizers and modules that decide what the next step does,
    by name, for a checkpoint."""

  def set_weights(self, weights: Sequence[Any]) -> None:
    """Takes over the variables of an exported policy, in its order.

    Raises:
      TrainingError: they are of other sizes.
    """

  def fingerprint(self) -> dict[str, Any]:
    """Plain JSON that must be equal for a run to go on, besides the config
    and the targets: a digest of the features, above all."""

  def exportable(self) -> Exportable:
    """The policy as plain TensorFlow functions, with its sizes."""


def learner_type(strategy: str) -> type[Learner]:
  """The learner of a strategy; needs a training process.

  Raises:
    TrainingError: unknown strategy (lists the choices).
  """
  if strategy not in _LEARNERS:
    raise TrainingError(
      f"unknown strategy {strategy!r}; choose one of {', '.join(STRATEGIES)}"
    )
  module, name = _LEARNERS[strategy].split(":")
  return getattr(importlib.import_module(module), name)
