"""Training runs: tasks, imitation, reinforcement learning and export.

Checkpoints hold all state of a step, so a resumed run equals an uninterrupted
one.
"""

import dataclasses
import math
import os
import pathlib
import time
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator
from tfplace.errors import TrainingError
from tfplace.learned import (
  export,
  found,
  learner_type,
  policies,
  policy_format,
)
from tfplace.learned.decisions import Decisions, decisions_at
from tfplace.learned.train.changes import ChangeConfig, change_tasks
from tfplace.learned.train.checkpoints import (
  Checkpoints,
  JsonState,
  restore_network,
  writing,
)
from tfplace.learned.train.config import Request, TrainConfig
from tfplace.learned.train.demonstrations import DemonstrationConfig
from tfplace.learned.train.learner import Step
from tfplace.learned.train.tasks import Task, make_task
from tfplace.placers.dask_workers import Workers
from tfplace.simulate import Simulator


@dataclasses.dataclass(frozen=True)
class Report:
  """Progress after one step of a run.

  Attributes:
    done: Completed steps.
    total: Steps of the whole run.
    graph: Name of the task.
    loss: Imitation loss, or None in reinforcement learning.
    step: Result of reinforcement learning, or None in imitation.
    best_us: Best step time of the graph so far.
  """

  done: int
  total: int
  graph: str
  loss: float | None
  step: Step | None
  best_us: float


class Trainer:
  """Training run on a list of graphs.

  Args:
    tasks: At least one graph. The trainer sets their `best`.
    checkpoint_dir: Directory from which the run resumes; None disables
      checkpoints.
    log_dir: Directory of TensorBoard scalars; None disables them.
    init_from: Exported policy to start from. Its sizes override `config`.

  Raises:
    TrainingError: A checkpoint or policy is damaged or belongs to another run.
  """

  def __init__(
    self,
    tasks: Sequence[Task],
    config: TrainConfig,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    init_from: str | os.PathLike[str] | None = None,
  ) -> None:
    if not tasks:
      raise TrainingError("there is no graph to train on")
    tf.config.experimental.enable_op_determinism()
    self.tasks = list(tasks)
    make_learner = learner_type(config.strategy)
    weights = None
    network = config.network or make_learner.network_type()
    if init_from is not None:
      network, weights = restore_network(
        init_from, config.strategy, make_learner.network_type
      )
    method = config.method or make_learner.method_type()
    config = dataclasses.replace(config, network=network, method=method)
    self.config = config
    self.learner = make_learner(self.tasks, config)
    if weights is not None:
      self.learner.set_weights(weights)
    self._state = JsonState({"done": 0, "history": [[] for _ in tasks]})
    self._checkpoints = None
    if checkpoint_dir is not None:
      self._checkpoints = Checkpoints(
        checkpoint_dir,
        self.learner.tracked(),
        self._state,
        _fingerprint(config, self.tasks, weights) | self.learner.fingerprint(),
      )
      if self._checkpoints.restore():
        self._restore_tasks()
    self._log_dir = None if log_dir is None else os.fspath(log_dir)
    self._log = None
    if self._log_dir is not None:
      with writing(self._log_dir):
        self._log = tf.summary.create_file_writer(self._log_dir)

  @property
  def done(self) -> int:
    """Number of completed steps, including those before a resume."""
    return self._state.value["done"]

  @property
  def total(self) -> int:
    """Number of steps of the run, including imitation."""
    return self._imitation_steps + self.config.iterations

  @property
  def history(self) -> list[list[list[float]]]:
    """[evaluations, best, greedy, mean reward] per graph and iteration."""
    return self._state.value["history"]

  @property
  def _imitation_steps(self) -> int:
    return self.config.imitation.steps * len(self.tasks)

  def run(
    self,
    on_step: Callable[[Report], None] | None = None,
    until: float = math.inf,
  ) -> None:
    """Runs the remaining steps; calls `on_step` after each.

    Args:
      until: `time.monotonic()` after which no step begins.
    """
    while self.done < self.total and time.monotonic() < until:
      report = self._one_step(self.done)
      self._state.value["done"] += 1
      if self._is_checkpoint(self.done):
        self.save()
      if on_step is not None:
        on_step(report)
    if self.done < self.total:
      self.save()
    if self._log is not None:
      with writing(str(self._log_dir)):
        self._log.flush()

  def _is_checkpoint(self, done: int) -> bool:
    every = self.config.checkpoint_every
    if done < self._imitation_steps:
      every = self.config.imitation.checkpoint_every
    return done % every == 0 or done in (self._imitation_steps, self.total)

  def _graph(self, number: int) -> int:
    """Returns the graph of a step; each pass is a random permutation."""
    passes, at = divmod(number, len(self.tasks))
    rng = np.random.default_rng([self.config.seed, passes])
    return int(rng.permutation(len(self.tasks))[at])

  def _one_step(self, number: int) -> Report:
    graph = self._graph(number)
    loss, step = None, None
    if number < self._imitation_steps:
      loss = self.learner.imitate(graph)
    else:
      self._rehearse(graph)
      rng = np.random.default_rng([self.config.seed, number])
      step = self.learner.improve(graph, rng)
      task = self.tasks[graph]
      self.history[graph].append(
        [task.evaluations, task.best_us, step.greedy_us, step.reward]
      )
    task = self.tasks[graph]
    report = Report(number + 1, self.total, task.name, loss, step, task.best_us)
    self._write_scalars(report, number)
    return report

  def _rehearse(self, graph: int) -> None:
    """Imitates the best placement so far if the run began with imitation."""
    task, imitation = self.tasks[graph], self.config.imitation
    if not imitation.steps or task.best is None:
      return
    task.target = task.named(task.best)
    for _ in range(imitation.rehearsals):
      self.learner.imitate(graph)

  def save(self) -> None:
    """Writes a checkpoint if the run has a checkpoint directory."""
    if self._checkpoints is None:
      return
    self._state.value["tasks"] = [
      {
        "baseline_us": task.baseline_us,
        "best_us": task.best_us if math.isfinite(task.best_us) else None,
        "best": None if task.best is None else task.best.tolist(),
        "evaluations": task.evaluations,
      }
      for task in self.tasks
    ]
    self._checkpoints.save(self.done)

  def _restore_tasks(self) -> None:
    for task, saved in zip(self.tasks, self._state.value["tasks"], strict=True):
      if saved["best"] is not None:
        task.best_us = saved["best_us"]
        task.best = np.array(saved["best"], np.int32)
      task.evaluations = saved["evaluations"]
      # Measured times are not reproducible.
      task.baseline_us = saved["baseline_us"]

  def _write_scalars(self, report: Report, number: int) -> None:
    if self._log is None:
      return
    scalars = {"imitation_loss": report.loss}
    step = report.step
    if step is not None:
      scalars = {
        "reward": step.reward,
        "best_step_time_us": report.best_us,
        "greedy_step_time_us": step.greedy_us,
        "entropy": step.entropy,
        "clip_fraction": step.clip_fraction,
        "policy_loss": step.policy_loss,
        "value_loss": step.value_loss,
      }
    with writing(str(self._log_dir)), self._log.as_default(step=number):
      for name, value in scalars.items():
        tf.summary.scalar(f"{report.graph}/{name}", value)


def _fingerprint(
  config: TrainConfig, tasks: Sequence[Task], weights: list | None
) -> dict[str, object]:
  """Returns what a resumed run must match; iterations may change."""
  settings = dataclasses.asdict(config)
  del settings["iterations"], settings["checkpoint_every"]
  digest = 0
  for task in tasks:
    digest = zlib.crc32(np.ascontiguousarray(task.target).tobytes(), digest)
  start = 0
  for weight in weights or []:
    start = zlib.crc32(weight.numpy().tobytes(), start)
  return {
    "settings": settings,
    "graphs": [task.decisions.problem.graph.name for task in tasks],
    "targets": digest,
    "first weights": start,
  }


def open_trainer(
  problems: Sequence[Problem],
  request: Request,
  make_evaluator: Callable[[Problem], Evaluator] = Simulator,
  workers: Workers | None = None,
) -> Trainer:
  """Creates a trainer on `problems` and resumes from its last checkpoint.

  Args:
    workers: Workers that draw and simulate samples; the numbers are the same
      without them.

  Raises:
    TrainingError: A directory or policy cannot be used.
    InfeasibleError: No classical placement of a problem fits in memory.
  """
  policy_format.check_export_dir(request.export_dir)
  start = request.init_from
  if start == policies.SHIPPED_NAME:
    start = os.fspath(policies.SHIPPED / request.strategy)
  if start is not None:  # Before searches that may take minutes.
    policy_format.read_info(start, request.strategy)
  folder = os.path.join(request.checkpoint_dir, "teachers")
  tasks = [
    task
    for problem in problems
    for decisions in decisions_at(problem, request.decisions)
    for task in _tasks(
      request, decisions, make_evaluator(problem), folder, workers
    )
  ]
  return Trainer(
    tasks,
    request.config(),
    checkpoint_dir=request.checkpoint_dir,
    log_dir=pathlib.Path(request.checkpoint_dir) / "logs",
    init_from=start,
  )


def _tasks(
  request: Request,
  decisions: Decisions,
  evaluator: Evaluator,
  folder: str,
  workers: Workers | None,
) -> list[Task]:
  if learner_type(request.strategy).changes:
    changed = ChangeConfig(
      seed=request.seed,
      folder=folder,
      long_s=request.search_s,
      policy=request.init_from,
    )
    return change_tasks(decisions, evaluator, changed, workers)
  searched = request.search_evaluations
  shown = DemonstrationConfig(
    search_evaluations=searched, seed=request.seed, folder=folder
  )
  return [make_task(decisions, evaluator, shown, workers)]


def finish(trainer: Trainer, request: Request) -> None:
  """Exports the policy and the best placements of a completed run.

  Raises:
    TrainingError: The export directory cannot be written.
  """
  exportable = dataclasses.replace(
    trainer.learner.exportable(), decisions=request.decisions
  )
  export.export_policy(
    exportable, request.export_dir, lambda folder: _save_best(trainer, folder)
  )


def _save_best(trainer: Trainer, exported_to: pathlib.Path) -> None:
  folder = exported_to / found.FOLDER
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
  """Returns the best step time of a problem at any number of decisions."""
  return min(
    task.best_us for task in trainer.tasks if task.decisions.problem is problem
  )
