"""Runs of `run_methods.py`: a strategy on a graph, to so many evaluations.

A process of its own, with Keras 2. Its one argument is a list of jobs, as JSON;
the result of each is `result.json` in the job's folder. A job with `graphs`,
pairs of graph and cluster, trains one policy on all of them, and exports it.
"""

import dataclasses
import json
import math
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.learned.policy_training import (
  PRETRAINED,
  train,
  train_on_all,
)
from benchmarks.lib import report

ZERO_SHOT = "_zero_shot"  # after a strategy's name: its shipped policy
# Per strategy the settings that may be tried, in this order.
SETTINGS: dict[str, list[dict[str, Any]]] = {
  "gdp": [{"learning_rate": r} for r in (1e-3, 3e-3, 3e-4)],
  "gdp_merged": [{"learning_rate": r} for r in (1e-3, 3e-3, 3e-4)],
  # The shipped policy, which sees the best one-shot placement, fine-tuned.
  PRETRAINED: [{"learning_rate": r} for r in (1e-3, 3e-3, 3e-4)],
  # The shipped policies as placers: samples and most probable placements.
  **{
    name + ZERO_SHOT: [{}] for name in ("gdp", "placeto", "hierarchical", "rnn")
  },
  # An episode takes as many evaluations as there are groups: few at a time.
  "placeto": [{"learning_rate": r, "samples": 4} for r in (1e-3, 3e-3, 3e-4)],
  "hierarchical": [{"learning_rate": r} for r in (1e-2, 3e-3, 1e-3)],
  "hierarchical_merged": [{"learning_rate": r} for r in (1e-2, 3e-3, 1e-3)],
  "rnn": [{"learning_rate": r} for r in (3e-3, 1e-2, 1e-3)],
  "annealing": [{"hot": h} for h in (0.01, 0.03, 0.003)],
  # From one device only, as little as the policies know.
  "annealing_from_single": [{"hot": h} for h in (0.01, 0.03, 0.003)],
  "random": [{}],  # nothing to tune
  "random_gpus": [{}],  # on each group's fastest devices only
}
_SAMPLES = 10  # random placements per point of a curve
# These place at most `decisions` groups.
MERGED = (
  *("gdp_merged", PRETRAINED, "placeto"),
  *("hierarchical_merged", "rnn", "random", "random_gpus"),
)


def run(job: dict[str, Any]) -> dict[str, Any]:
  """[evaluations, seconds, best step time] in order, and what was decided on.

  Step times are None before a placement fits.
  """
  from tfplace.bin import sources
  from tfplace.core import Problem
  from tfplace.formats import load_graph
  from tfplace.learned.decisions import group_decisions

  size = job["decisions"] if job["strategy"] in MERGED else None
  decisions = [
    group_decisions(
      Problem(load_graph(path), sources.load_cluster(cluster)), size
    )
    for path, cluster in job.get("graphs") or [(job["graph"], job["cluster"])]
  ]
  settings = {
    **SETTINGS[job["strategy"]][job.get("trial", 0)],
    **job.get("settings", {}),
  }
  if "graphs" in job:
    return {"settings": settings, **train_on_all(job, decisions, settings)}
  found = _runner(job["strategy"])(job, decisions[0], settings)
  curve = found.pop("curve")
  spent, seconds, _ = curve[-1]
  # Points past the limit do not count, except for the first: an episode of
  # Placeto can be longer than a short run.
  curve = [p for p in curve if _is_within(p, job)] or curve[:1]
  return {
    "settings": settings,
    "decisions": decisions[0].num_decisions,
    "evaluations": spent,
    "seconds": seconds,
    "step_time_us": curve[-1][2],
    "curve": curve,
    **found,
  }


def _is_within(point: list[Any], job: dict[str, Any]) -> bool:
  """True if a point of a curve is within the job's evaluations and seconds."""
  evaluations, seconds, _ = point
  most_s = job.get("seconds") or math.inf
  return evaluations <= job["evaluations"] and seconds <= most_s


def _runner(strategy: str) -> Callable[[dict, Any, dict], dict]:
  """Returns the function that runs a strategy."""
  if strategy.startswith("random"):
    return sample
  if strategy.endswith(ZERO_SHOT):
    return zero_shot
  if strategy.startswith("annealing"):
    return anneal
  return train


def anneal(job: dict[str, Any], decisions: Any, settings: dict) -> dict:
  """The placer `annealing` at every group, from the classical placements or
  from one device."""
  from tfplace.core.budget import Budget
  from tfplace.placers.search.annealing import AnnealingPlacer
  from tfplace.placers.search.search import SearchConfig
  from tfplace.simulate import Simulator

  problem = decisions.problem
  placer = AnnealingPlacer(SearchConfig(**settings))
  if job["strategy"] == "annealing_from_single":
    placer = dataclasses.replace(placer, starts=("single",))
  budget = Budget(job.get("seconds") or 1e9, job["evaluations"])
  found = placer.place(problem, Simulator(problem), budget, job["seed"])
  return {"curve": _curve(found)}


def zero_shot(job: dict[str, Any], decisions: Any, settings: dict) -> dict:
  """A learned placer as anybody has it; `gdp` decides how many it tries."""
  from tfplace.core.budget import Budget
  from tfplace.placers import registry
  from tfplace.simulate import Simulator

  problem = decisions.problem
  placer = dataclasses.replace(
    registry.get_placer(job["strategy"].removesuffix(ZERO_SHOT)),
    policy=job.get("policy"),  # None is the one that ships
  )
  budget = Budget(job.get("seconds") or 1e9, job["evaluations"])
  found = placer.place(problem, Simulator(problem), budget, job["seed"])
  return {"curve": _curve(found)}


def _curve(found: Any) -> list[list[float]]:
  """Returns the curve of a placer's result."""
  last = [found.evaluations, found.seconds, found.evaluation.step_time_us]
  return [
    *([p.evaluations, p.seconds, p.step_time_us] for p in found.history),
    last,
  ]


def sample(job: dict[str, Any], decisions: Any, settings: dict) -> dict:
  """Uniformly random placements of the groups."""
  import numpy as np

  from tfplace.learned.placeto.features import fast_devices, random_choices
  from tfplace.learned.train.tasks import step_times
  from tfplace.simulate import Simulator

  may = decisions.allowed
  if job["strategy"] == "random_gpus":
    may = fast_devices(decisions)
  simulator = Simulator(decisions.problem)
  rng = np.random.default_rng(job["seed"])
  began, best, done, curve = time.process_time(), math.inf, 0, []
  end = began + (job.get("seconds") or math.inf)
  while done < job["evaluations"] and time.process_time() < end:
    batch = min(_SAMPLES, job["evaluations"] - done)
    choices = random_choices(may, batch, rng)
    step_us = step_times(simulator, decisions.to_devices(choices))
    best, done = min(best, float(step_us.min())), done + batch
    curve.append([done, time.process_time() - began, report.known(best)])
  return {"curve": curve}


def main() -> None:
  from tfplace.formats.json_file import write_json
  from tfplace.learned import training_process

  training_process.enter_training_process()
  for job in json.loads(sys.argv[1]):
    write_json(pathlib.Path(job["work_dir"]) / "result.json", run(job))


if __name__ == "__main__":
  main()
