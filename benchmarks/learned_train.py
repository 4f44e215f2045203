"""Training one policy on one graph, to so many evaluations, for `learned.py`.

Imports the training packages where they are needed: a process must have chosen
Keras 2 before.
"""

import json
import math
import pathlib
import time
from typing import Any

PRETRAINED = "gdp_pretrained"  # the shipped policy, fine-tuned


class _Enough(Exception):
  """All evaluations are spent."""


def train(job: dict[str, Any], decisions: Any, settings: dict) -> dict:
  """Trains a policy on the one graph; checkpoints make it resumable.

  `greedy_us` is the step time of the most probable placement before each
  iteration, so the first one is zero-shot.
  """
  from tfplace.learned.exported import SHIPPED
  from tfplace.learned.train.trainer import Trainer

  task = _task(job, decisions)
  work = pathlib.Path(job["work_dir"])
  trainer = Trainer(
    [task],
    _config(job, settings),
    checkpoint_dir=work / "checkpoints",
    init_from=SHIPPED / "gdp" if job["strategy"] == PRETRAINED else None,
  )
  timed = _Clock(work / "seconds.json", len(trainer.history[0]))

  def on_step(report: Any) -> None:
    if report.step is not None:
      timed.tick()
    if task.evaluations >= job["evaluations"]:
      raise _Enough

  if task.evaluations < job["evaluations"]:
    try:
      trainer.run(on_step)
    except _Enough:
      trainer.save()
  history = trainer.history[0]
  return {
    "curve": [
      [evaluations, seconds, known(best)]
      for (evaluations, best, *_), seconds in zip(
        history, timed.seconds, strict=True
      )
    ],
    "greedy_us": [known(greedy) for _, _, greedy, _ in history],
  }


def _task(job: dict[str, Any], decisions: Any) -> Any:
  """The graph as a task; only a pretrained policy knows its best before."""
  from tfplace.learned.train.tasks import make_task
  from tfplace.simulate import Simulator

  task = make_task(decisions, Simulator(decisions.problem))
  if not job["imitation_steps"] and job["strategy"] != PRETRAINED:
    # The best one-shot placement is the unit of rewards, and no more.
    task.best, task.best_us, task.evaluations = None, math.inf, 0
  return task


def _config(job: dict[str, Any], settings: dict[str, float]) -> Any:
  from tfplace.learned import learner_type
  from tfplace.learned.train.config import ImitationConfig, TrainConfig

  strategy = job["strategy"].split("_")[0]  # without "_merged" and the like
  return TrainConfig(
    iterations=job["evaluations"],  # more than it can need
    seed=job["seed"],
    strategy=strategy,
    method=learner_type(strategy).method_of(settings),
    imitation=ImitationConfig(steps=job["imitation_steps"]),
  )


class _Clock:
  """Seconds of training up to each iteration, over all processes of a run."""

  def __init__(self, path: pathlib.Path, done: int) -> None:
    self._path = path
    self.seconds: list[float] = []
    if done:
      self.seconds = json.loads(path.read_text(encoding="utf-8"))[:done]
      # A process that ended between a checkpoint and its last note.
      self.seconds += self.seconds[-1:] * (done - len(self.seconds))
    before = self.seconds[-1] if self.seconds else 0.0
    self._began = time.perf_counter() - before

  def tick(self) -> None:
    """Notes the end of an iteration, on disk before a checkpoint needs it."""
    self.seconds.append(time.perf_counter() - self._began)
    self._path.write_text(json.dumps(self.seconds), encoding="utf-8")


def known(step_us: float) -> float | None:
  """None for infinite: JSON has no infinity."""
  return step_us if math.isfinite(step_us) else None
