"""A whole training run: its tasks, the training, what it leaves behind."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence

from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator
from tfplace.learned import export, exported
from tfplace.learned.decisions import decisions_at
from tfplace.learned.train.config import ImitationConfig, TrainConfig
from tfplace.learned.train.demonstrations import DemonstrationConfig
from tfplace.learned.train.learner import learner_type
from tfplace.learned.train.tasks import make_task
from tfplace.learned.train.trainer import Report, Trainer
from tfplace.simulate import Simulator


@dataclasses.dataclass(frozen=True)
class Request:
  """What the caller of a run decides; the flags of tfplace-train.

  Attributes:
    checkpoint_dir: checkpoints and, in `logs`, TensorBoard's scalars.
    export_dir: receives the policy and, in `placements`, what was found.
    init_from: exported policy to start from; "shipped" is the package's own.
    iterations: see `TrainConfig`.
    imitation_steps: see `ImitationConfig.steps`.
    samples: placements per iteration.
    max_decisions: each graph is a task at each of these numbers of decisions;
      None keeps all groups.
    search_evaluations: see `DemonstrationConfig`.
    checkpoint_every: see `TrainConfig`.
    learning_rate: of the strategy's Adam; None for the strategy's own.
    entropy: weight of the entropy; None for the strategy's own.
    seed: see `TrainConfig`.
    strategy: see `TrainConfig`.
    algorithm: of Placeto, see `PlacetoConfig`.
    elite: of all but Placeto, see `PPOConfig`.
  """

  checkpoint_dir: str
  export_dir: str
  init_from: str | None = None
  iterations: int = 200
  imitation_steps: int = 100
  samples: int = 16
  max_decisions: tuple[int | None, ...] = (None,)
  search_evaluations: int = 0
  checkpoint_every: int = 10
  learning_rate: float | None = None
  entropy: float | None = None
  seed: int = 0
  strategy: str = "gdp"
  algorithm: str = "ppo"
  elite: float = 1.0

  def config(self) -> TrainConfig:
    """The training run that is asked for."""
    learner = learner_type(self.strategy)
    return TrainConfig(
      iterations=self.iterations,
      seed=self.seed,
      strategy=self.strategy,
      checkpoint_every=self.checkpoint_every,
      method=learner.method_of(dataclasses.asdict(self)),
      imitation=ImitationConfig(steps=self.imitation_steps),
    )


def open_trainer(
  problems: Sequence[Problem],
  request: Request,
  make_evaluator: Callable[[Problem], Evaluator] = Simulator,
) -> Trainer:
  """A trainer on `problems`, from its last checkpoint if there is one.

  Args:
    problems: what to train on.
    request: what is asked for.
    make_evaluator: judges the placements of a problem.

  Raises:
    TrainingError: a directory or policy that cannot be used.
    InfeasibleError: no classical placement of a problem fits in memory.
  """
  export.check_export_dir(request.export_dir)
  shown = DemonstrationConfig(
    search_evaluations=request.search_evaluations,
    seed=request.seed,
    folder=os.path.join(request.checkpoint_dir, "teachers"),
  )
  tasks = [
    make_task(decisions, make_evaluator(problem), shown)
    for problem in problems
    for decisions in decisions_at(problem, request.max_decisions)
  ]
  start = request.init_from
  if start == "shipped":
    start = os.fspath(exported.SHIPPED / request.strategy)
  return Trainer(
    tasks,
    request.config(),
    checkpoint_dir=request.checkpoint_dir,
    log_dir=pathlib.Path(request.checkpoint_dir) / "logs",
    init_from=start,
  )


def finish(trainer: Trainer, request: Request) -> None:
  """Exports the policy and the best placements of a run that is done.

  Raises:
    TrainingError: the export directory cannot be written.
  """
  exportable = dataclasses.replace(
    trainer.learner.exportable(), decisions=request.max_decisions
  )
  export.export_policy(
    exportable, request.export_dir, lambda folder: _save_best(trainer, folder)
  )


def _save_best(trainer: Trainer, exported_to: pathlib.Path) -> None:
  """Writes the best placements, in a folder of their own."""
  folder = exported_to / "placements"
  folder.mkdir()
  for task in trainer.tasks:
    problem = task.decisions.problem
    if task.best is None or task.best_us > best_us(trainer, problem):
      continue
    name = f"{problem.graph.name}.{problem.cluster.name}.json"
    Placement(problem, task.decisions.to_devices(task.best)).save(
      folder / name.replace("/", "_")
    )


def best_us(trainer: Trainer, problem: Problem) -> float:
  """The best step time found for a problem at any number of decisions."""
  return min(
    task.best_us for task in trainer.tasks if task.decisions.problem is problem
  )


__all__ = ["Report", "Request", "finish", "open_trainer"]
