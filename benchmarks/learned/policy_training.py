"""Training one policy, for `run_methods.py` and the papers' experiments: on one
graph to so many evaluations or seconds, or on several.

Imports the training packages where they are needed: a process must have chosen
Keras 2 before.
"""

import json
import math
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.lib import report

PRETRAINED = "gdp_pretrained"  # the shipped policy, fine-tuned


class _Enough(Exception):
  """All evaluations or seconds are spent."""


def train(job: dict[str, Any], decisions: Any, settings: dict) -> dict:
  """Trains a policy on the one graph; checkpoints make it resumable.

  `greedy_us` is the step time of the most probable placement before each
  iteration, so the first one is zero-shot.
  """
  trainer = _trainer(job, [decisions], settings)
  task, most_s = trainer.tasks[0], job.get("seconds") or math.inf
  timed = _Clock(
    pathlib.Path(job["work_dir"]) / "seconds.json", len(trainer.history[0])
  )

  def is_enough() -> bool:
    return task.evaluations >= job["evaluations"] or timed.now >= most_s

  def on_step(progress: Any) -> None:
    if progress.step is not None:
      timed.tick()
    if is_enough():
      raise _Enough

  if not is_enough():
    try:
      trainer.run(on_step)
    except _Enough:
      trainer.save()
  history = trainer.history[0]
  return {
    "curve": _curve(history, timed.seconds),
    "greedy_us": [report.known(greedy) for _, _, greedy, _ in history],
  }


def train_on_all(
  job: dict[str, Any], every: Sequence[Any], settings: dict
) -> dict:
  """Trains one policy on all graphs in turn, for the job's iterations.

  It is exported to `policy` in the job's folder. Points of the graphs' curves
  have no seconds.
  """
  import dataclasses

  from tfplace.learned import export

  trainer = _trainer(job, every, settings)
  began = time.process_time()
  trainer.run()
  export.export_policy(
    dataclasses.replace(
      trainer.learner.exportable(), decisions=(job["decisions"],)
    ),
    pathlib.Path(job["work_dir"]) / "policy",
  )
  return {
    "seconds": time.process_time() - began,
    "curves": [
      {"curve": _curve(history, [None] * len(history))}
      for history in trainer.history
    ],
  }


def _trainer(
  job: dict[str, Any], every: Sequence[Any], settings: dict[str, Any]
) -> Any:
  from tfplace.learned.policies import SHIPPED
  from tfplace.learned.train.trainer import Trainer

  init_from = job.get("init_from")
  if job["strategy"] == PRETRAINED:
    init_from = SHIPPED / "gdp"
  return Trainer(
    [_task(job, decisions) for decisions in every],
    _config(job, settings),
    checkpoint_dir=pathlib.Path(job["work_dir"]) / "checkpoints",
    init_from=init_from,
  )


def _curve(
  history: Sequence[Sequence[float]], seconds: Sequence[float | None]
) -> list[list[float | None]]:
  """[evaluations, seconds, best step time] after each iteration."""
  return [
    [evaluations, spent, report.known(best)]
    for (evaluations, best, *_), spent in zip(history, seconds, strict=True)
  ]


def _task(job: dict[str, Any], decisions: Any) -> Any:
  """The graph as a task; only a pretrained policy knows its best before."""
  from tfplace.learned.train.tasks import make_task
  from tfplace.simulate import Simulator

  task = make_task(decisions, Simulator(decisions.problem))
  if not job.get("imitation_steps") and job["strategy"] != PRETRAINED:
    # The best one-shot placement is the unit of rewards, and no more.
    task.best, task.best_us, task.evaluations = None, math.inf, 0
  return task


def _config(job: dict[str, Any], settings: dict[str, Any]) -> Any:
  """Settings are of the method, but `network`: sizes of the policy's."""
  from tfplace.learned import learner_type
  from tfplace.learned.train.config import ImitationConfig, TrainConfig

  strategy = job["strategy"].split("_")[0]  # without "_merged" and the like
  learner = learner_type(strategy)
  return TrainConfig(
    # Else more than it can need.
    iterations=job.get("iterations") or job["evaluations"],
    seed=job["seed"],
    strategy=strategy,
    network=learner.network_type(**settings.get("network", {})),
    method=learner.method_of(settings),
    imitation=ImitationConfig(steps=job.get("imitation_steps", 0)),
  )


class _Clock:
  """Seconds of the processor that training took up to each iteration, over all
  processes of a run."""

  def __init__(self, path: pathlib.Path, done: int) -> None:
    self._path = path
    self.seconds: list[float] = []
    if done:
      self.seconds = json.loads(path.read_text(encoding="utf-8"))[:done]
      # A process that ended between a checkpoint and its last note.
      self.seconds += self.seconds[-1:] * (done - len(self.seconds))
    before = self.seconds[-1] if self.seconds else 0.0
    self._began = time.process_time() - before

  @property
  def now(self) -> float:
    """Seconds so far."""
    return time.process_time() - self._began

  def tick(self) -> None:
    """Notes the end of an iteration, on disk before a checkpoint needs it."""
    self.seconds.append(self.now)
    self._path.write_text(json.dumps(self.seconds), encoding="utf-8")
