"""One run of `learned.py`: a strategy on a graph, to so many evaluations.

A process of its own, with Keras 2. Its one argument is the job, as JSON; its
result is `result.json` in the job's folder.
"""

import dataclasses
import json
import math
import pathlib
import sys
import time
from typing import Any

PRETRAINED = "gdp_pretrained"
# Per strategy the settings that may be tried, in this order.
SETTINGS: dict[str, list[dict[str, float]]] = {
  "gdp": [{"learning_rate": r} for r in (1e-3, 3e-3, 3e-4)],
  "gdp_merged": [{"learning_rate": r} for r in (1e-3, 3e-3, 3e-4)],
  # The shipped policy, which sees the best one-shot placement, fine-tuned.
  PRETRAINED: [{"learning_rate": r} for r in (1e-3, 3e-3, 3e-4)],
  "placeto": [{"learning_rate": r} for r in (1e-3, 3e-3, 3e-4)],
  "hierarchical": [{"learning_rate": r} for r in (1e-2, 3e-3, 1e-3)],
  "rnn": [{"learning_rate": r} for r in (3e-3, 1e-2, 1e-3)],
  "annealing": [{"hot": h} for h in (0.01, 0.03, 0.003)],
  # From one device only, as little as the policies know.
  "annealing_from_single": [{"hot": h} for h in (0.01, 0.03, 0.003)],
  "random": [{}],  # nothing to tune
}
# These place at most `decisions` groups.
MERGED = ("gdp_merged", PRETRAINED, "placeto", "rnn", "random")


class _Enough(Exception):
  """All evaluations are spent."""


def run(job: dict[str, Any]) -> dict[str, Any]:
  """[evaluations, seconds, best step time] in order, and what was decided on.

  Step times are None before a placement fits.
  """
  from tfplace.bin import sources
  from tfplace.graph import Problem, load_graph
  from tfplace.policies.decisions import group_decisions

  cluster = sources.load_cluster(job["cluster"])
  problem = Problem(load_graph(job["graph"]), cluster)
  size = job["decisions"] if job["strategy"] in MERGED else None
  decisions = group_decisions(problem, size)
  settings = SETTINGS[job["strategy"]][job["trial"]]
  run_one = train
  if job["strategy"] == "random":
    run_one = draw
  elif job["strategy"].startswith("annealing"):
    run_one = anneal
  found = run_one(job, decisions, settings)
  curve = found.pop("curve")
  spent, seconds, _ = curve[-1]
  # What an iteration found past the limit does not count, unless it is the
  # first: an episode of Placeto can be longer than a short run.
  curve = [p for p in curve if p[0] <= job["evaluations"]] or curve[:1]
  return {
    "settings": settings,
    "decisions": decisions.num_decisions,
    "evaluations": spent,
    "seconds": seconds,
    "step_time_us": curve[-1][2],
    "curve": curve,
    **found,
  }


def train(job: dict[str, Any], decisions: Any, settings: dict) -> dict:
  """Trains a policy on the one graph; checkpoints make it resumable.

  `greedy_us` is the step time of the most probable placement before each
  iteration, so the first one is zero-shot.
  """
  from tfplace.policies.exported import SHIPPED
  from tfplace.rl.config import ImitationConfig, PPOConfig, TrainConfig
  from tfplace.rl.reinforce_config import ReinforceConfig
  from tfplace.rl.tasks import make_task
  from tfplace.rl.trainer import Trainer
  from tfplace.simulate import Simulator

  strategy, is_pretrained = job["strategy"], job["strategy"] == PRETRAINED
  task = make_task(
    decisions, Simulator(decisions.problem), is_hinted=is_pretrained
  )
  if not job["imitation_steps"] and not is_pretrained:
    # The best one-shot placement is the unit of rewards, and no more.
    task.best, task.best_us, task.evaluations = None, math.inf, 0
  config = TrainConfig(
    iterations=job["evaluations"],  # more than it can need
    seed=job["seed"],
    strategy="gdp" if strategy.startswith("gdp") else strategy,
    ppo=PPOConfig(**settings),
    reinforce=ReinforceConfig(**settings),
    imitation=ImitationConfig(steps=job["imitation_steps"]),
  )
  work = pathlib.Path(job["work_dir"])
  trainer = Trainer(
    [task],
    config,
    checkpoint_dir=work / "checkpoints",
    init_from=SHIPPED / "gdp" if is_pretrained else None,
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
      [evaluations, seconds, _known(best)]
      for (evaluations, best, *_), seconds in zip(
        history, timed.seconds, strict=True
      )
    ],
    "greedy_us": [_known(greedy) for _, _, greedy, _ in history],
  }


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


def anneal(job: dict[str, Any], decisions: Any, settings: dict) -> dict:
  """The placer `annealing` at every group, from the classical placements or
  from one device."""
  from tfplace.placers.annealing import AnnealingPlacer
  from tfplace.placers.base import Budget
  from tfplace.placers.search import SearchConfig
  from tfplace.simulate import Simulator

  problem = decisions.problem
  placer = AnnealingPlacer(SearchConfig(**settings))
  if job["strategy"] == "annealing_from_single":
    placer = dataclasses.replace(placer, starts=("single",))
  budget = Budget(1e9, job["evaluations"])
  found = placer.place(problem, Simulator(problem), budget, job["seed"])
  curve = [
    [point.evaluations, point.seconds, point.step_time_us]
    for point in found.history
  ]
  best_us = found.evaluation.step_time_us
  last = [found.evaluations, found.seconds, best_us]
  return {"curve": [*curve, last]}


def draw(job: dict[str, Any], decisions: Any, settings: dict) -> dict:
  """Uniformly random placements of the groups."""
  import numpy as np

  from tfplace.rl.environment import step_times
  from tfplace.simulate import Simulator

  simulator = Simulator(decisions.problem)
  rng = np.random.default_rng(job["seed"])
  began, best, done, curve = time.perf_counter(), math.inf, 0, []
  while done < job["evaluations"]:
    batch = min(64, job["evaluations"] - done)
    noise = rng.random((batch, *decisions.allowed.shape))
    choices = np.where(decisions.allowed, noise, -1.0).argmax(axis=-1)
    step_us = step_times(simulator, decisions.to_devices(choices))
    best, done = min(best, float(step_us.min())), done + batch
    curve.append([done, time.perf_counter() - began, _known(best)])
  return {"curve": curve}


def _known(step_us: float) -> float | None:
  return step_us if math.isfinite(step_us) else None


def main() -> None:
  from tfplace.graph.json_file import write_json
  from tfplace.policies import keras2

  keras2.enter_training_process()
  job = json.loads(sys.argv[1])
  write_json(pathlib.Path(job["work_dir"]) / "result.json", run(job))


if __name__ == "__main__":
  main()
