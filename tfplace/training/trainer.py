"""Training runs: tasks, imitation, reinforcement learning and export.

Checkpoints hold all state of a step, so a resumed run equals an uninterrupted
one.
"""

import dataclasses
import math
import os
import pathlib
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfplace import formats
from tfplace.errors import TrainingError
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.graph.protocols import Evaluator
from tfplace.learned import policy_format
from tfplace.learned.decisions import decisions_at
from tfplace.learned.policy_format import PolicyInputs
from tfplace.simulate import Simulator
from tfplace.training import export, targets
from tfplace.training.checkpoints import (
  Checkpoints,
  JsonState,
  restore_network,
  writing,
)
from tfplace.training.config import TrainConfig
from tfplace.training.learner import Step
from tfplace.training.methods import learner_type
from tfplace.training.tasks import Task, checksum

_IMITATION_CHECKPOINT_EVERY = 50  # Gradient steps between checkpoints.


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

  Raises:
    TrainingError: A checkpoint or policy is damaged or belongs to another run.
  """

  def __init__(self, tasks: Sequence[Task], config: TrainConfig) -> None:
    if not tasks:
      raise TrainingError("there is no graph to train on")
    tf.config.experimental.enable_op_determinism()
    self.tasks = list(tasks)
    make_learner = learner_type(config.strategy)
    weights: list[tf.Variable] = []
    network = config.network or make_learner.network_type()
    start = config.start
    if start is not None:
      network, weights = restore_network(
        start, config.strategy, make_learner.network_type
      )
    self.config = config = dataclasses.replace(config, network=network)
    self.learner = make_learner(self.tasks, config)
    if weights:
      self.learner.set_weights(weights)
    self._state = JsonState({"done": 0, "history": [[] for _ in tasks]})
    self._checkpoints = None
    self._log_dir, self._log = "", tf.summary.create_noop_writer()
    if config.checkpoint_dir is not None:
      self._checkpoints = Checkpoints(
        config.checkpoint_dir,
        self.learner.tracked(),
        self._state,
        _fingerprint(config, self.tasks, weights, self.learner.inputs),
      )
      if self._checkpoints.restore():
        self._restore_tasks()
      self._log_dir = os.path.join(config.checkpoint_dir, "logs")
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
    return self.config.imitation_steps * len(self.tasks)

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
    with writing(self._log_dir):
      self._log.flush()

  def _is_checkpoint(self, done: int) -> bool:
    every = self.config.checkpoint_every
    if done < self._imitation_steps:
      every = _IMITATION_CHECKPOINT_EVERY
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
      if self.config.imitation_steps and self.tasks[graph].best is not None:
        # Imitating the best placement so far prevents a collapse to one GPU.
        self.tasks[graph].aim_at_best()
        self.learner.imitate(graph)
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
      }
    with writing(self._log_dir), self._log.as_default(step=number):
      for name, value in scalars.items():
        tf.summary.scalar(f"{report.graph}/{name}", value)


def _fingerprint(
  config: TrainConfig,
  tasks: Sequence[Task],
  weights: list[tf.Variable],
  inputs: Sequence[PolicyInputs],
) -> dict[str, object]:
  """Returns what a resumed run must match; iterations may change."""
  return {
    "settings": config.fingerprint(),
    "graphs": [task.decisions.problem.graph.name for task in tasks],
    "targets": checksum(task.target for task in tasks),
    "first weights": checksum(weight.numpy() for weight in weights),
    "features": checksum(x for i in inputs for x in i.tensors().values()),
  }


def open_trainer(
  problems: Sequence[Problem],
  config: TrainConfig,
  make_evaluator: Callable[[Problem], Evaluator] = Simulator,
) -> Trainer:
  """Creates a trainer on `problems` and resumes from its last checkpoint.

  Raises:
    TrainingError: A directory or policy cannot be used.
    InfeasibleError: No classical placement of a problem fits in memory.
  """
  policy_format.check_export_dir(config.export_dir)
  start = config.start
  if start is not None:  # Before searches that may take minutes.
    policy_format.read_info(start, config.strategy)
  changes = learner_type(config.strategy).changes
  tasks: list[Task] = []
  for problem in problems:
    for decisions in decisions_at(problem, config.max_decisions):
      evaluator = make_evaluator(problem)
      if changes:
        tasks += targets.change_tasks(decisions, evaluator, config)
      else:
        tasks.append(targets.imitation_task(decisions, evaluator, config))
  return Trainer(tasks, config)


def finish(trainer: Trainer) -> None:
  """Exports the policy and the best placements of a completed run.

  Raises:
    TrainingError: The export directory cannot be written.
  """
  config = trainer.config
  exportable = dataclasses.replace(
    trainer.learner.exportable(), decisions=config.max_decisions
  )
  export.export_policy(
    exportable, config.export_dir, lambda folder: _save_best(trainer, folder)
  )


def _save_best(trainer: Trainer, exported_to: pathlib.Path) -> None:
  folder = exported_to / policy_format.PLACEMENTS
  folder.mkdir()
  for task in trainer.tasks:
    problem = task.decisions.problem
    least_us = min(
      other.best_us
      for other in trainer.tasks
      if other.decisions.problem is problem
    )
    # The same graph may have tasks at several numbers of decisions.
    if task.best is None or task.best_us > least_us:
      continue
    name = f"{problem.graph.name}.{problem.cluster.name}.json"
    best = Placement(problem, task.decisions.to_devices(task.best))
    formats.save_placement(best, folder / name.replace("/", "_"))
