"""Trains the policy `ordered`, which changes placements in order.

Each row of the training set of `models/graph_sets.py` gives four tasks: to
change the two best placements by rules, and what two short searches make of the
best. Training imitates a longer search of the coarse groups, goes on by PPO,
resumes where it was cut off, and exports the policy. Needs the extra `train`.

  python -m benchmarks.learned.run_ordered --work_dir=ordered
"""

import contextlib
import dataclasses
import pathlib
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from absl import flags

from benchmarks.lib.command import Options
from benchmarks.models import graph_sets
from tfplace.core import Problem, symmetry
from tfplace.core.budget import Budget
from tfplace.errors import TfplaceError
from tfplace.learned import training_process
from tfplace.learned.decisions import Decisions, decisions_at
from tfplace.placers import registry
from tfplace.placers.search.annealing import best_first
from tfplace.plan import graph_cache
from tfplace.simulate import Simulator

STRATEGY = "ordered"
# Placers of whole steps whose two best placements are changed, and how long
# each may take; of microbatched steps they are `registry.MICROBATCHED`.
RULES = ("expert", "axes", "metis", "heft")
RULE_S = 5.0
SHORT = (150, 2000)  # evaluations of the searches that make the others
SHORT_S = 6.0
OPTIONS = Options("run_ordered", __doc__)
_ROWS = OPTIONS.add("rows", "", "Pattern of the rows' labels; all if left out.")
_CACHE = OPTIONS.add(
  "graph_cache_dir", graph_cache.default_directory(), "Extracted graphs."
)
_WORK_DIR = OPTIONS.add("work_dir", None, "Checkpoints and policies.")
_SEED = OPTIONS.add("seed", 0, "Of weights, samples and searches.")
_SIZES = OPTIONS.add("sizes", ["512"], "Coarse groups of each task.")
_INIT_FROM = OPTIONS.add("init_from", None, "Policy to go on from.")
_ELITE = OPTIONS.add("elite", 0.25, "Share of the samples that teach.")
_AVERAGING = OPTIONS.add("averaging", 0.998, "See `PPOConfig`.")
_ENTROPY = OPTIONS.add("entropy", 0.0, "Weight, see `PPOConfig`.")
_TEMPERATURE = OPTIONS.add("temperature", 0.5, "See `PPOConfig`.")
_RATE = OPTIONS.add("learning_rate", 1e-3, "Of Adam, for PPO.")
_EXPORT_EVERY = OPTIONS.add("export_every", 500, "Steps.")
_PREPARE = OPTIONS.add(
  "prepare", False, "Only extracts graphs and finds placements to learn from."
)
_STEPS = OPTIONS.add("imitation_steps", 25, "Per task.")
_ITERATIONS = OPTIONS.add("iterations", 0, "Of PPO, in all.")
_SEARCHED = OPTIONS.add("search_evaluations", 5000, "Per target.")
_SEARCH_MS = OPTIONS.add(
  "search_ms_per_op", 0.4, "Of a target, at most; at least 10 s."
)


def problems() -> Iterator[Problem]:
  """The wanted rows of the training set."""
  for row in graph_sets.TRAINING:
    if re.search(_ROWS.value, row.label):
      yield row.problem(_CACHE.value)


def _sizes() -> tuple[int, ...]:
  return tuple(int(size) for size in _SIZES.value)


def _every_decisions() -> Iterator[Decisions]:
  for problem in problems():
    yield from decisions_at(problem, _sizes())


def main(_: flags.FlagValues) -> None:
  """Imitation and PPO; progress is printed, checkpoints are kept."""
  work = pathlib.Path(_WORK_DIR.value)
  if _PREPARE.value:
    for decisions in _every_decisions():
      _placements(decisions, work)
    return
  # Models are traced in a process with Keras 3.
  subprocess.run(
    [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--prepare"],
    check=True,
  )
  training_process.enter_training_process()
  from tfplace.learned.train import trainer as training
  from tfplace.learned.train.config import Request
  from tfplace.learned.train.tasks import Task

  request = Request(
    checkpoint_dir=str(work / "checkpoints"),
    export_dir=str(work / "policy"),
    iterations=_ITERATIONS.value,
    imitation_steps=_STEPS.value,
    max_decisions=_sizes(),
    search_evaluations=_SEARCHED.value,
    seed=_SEED.value,
    strategy=STRATEGY,
    checkpoint_every=50,
    elite=_ELITE.value,
  )
  config = request.config()
  method = dataclasses.replace(
    config.method,
    averaging=_AVERAGING.value,
    entropy=_ENTROPY.value,
    temperature=_TEMPERATURE.value,
    learning_rate=_RATE.value,
  )
  config = dataclasses.replace(config, method=method)
  with training_process.only_run_in(request.checkpoint_dir):
    tasks = [
      task
      for decisions in _every_decisions()
      for task in _tasks(Task, decisions, work)
    ]
    run = training.Trainer(
      tasks, config, request.checkpoint_dir, init_from=_INIT_FROM.value
    )
    print(f"{len(run.tasks)} tasks, {run.done} of {run.total} done", flush=True)
    told = _Printer(len(run.tasks))

    def on_step(report: Any) -> None:
      told(report)
      if report.done % _EXPORT_EVERY.value == 0:
        training.finish(run, request)

    run.run(on_step)
    training.finish(run, request)


def _tasks(
  make: Any, decisions: Decisions, work: pathlib.Path
) -> Iterator[Any]:
  """Tasks of changing each base to the target."""
  problem = decisions.problem
  bases, found = _placements(decisions, work)
  classes = symmetry.device_classes(problem.cluster)
  simulator = Simulator(problem)
  for base in bases:
    based = dataclasses.replace(decisions, base=base)
    target = based.base_choices
    if found is not None:
      target = symmetry.named_like(found, target, classes)
    rows = np.stack((based.base_choices, target))
    step_us = simulator.run(based.to_devices(rows)).step_time_us
    task = make(based, simulator, float(step_us[0]), target)
    task.keep(rows, step_us)
    yield task


def _placements(
  decisions: Decisions, work: pathlib.Path
) -> tuple[np.ndarray, np.ndarray | None]:
  """[3, num_ops] placements to change, and [N] choices of a longer search.

  Both are kept in files. Without imitation there is no longer search.
  """
  problem = decisions.problem
  name = (
    f"{problem.graph.name}_{problem.graph.num_ops}_{problem.cluster.name}"
    f"_{decisions.num_decisions}_{_SEARCHED.value}_{_SEED.value}"
  )
  folder = work / "targets"
  folder.mkdir(parents=True, exist_ok=True)
  bases = _kept(folder / f"{name}.bases.npy", lambda: _bases(problem))
  if not _STEPS.value:
    return bases, None
  return bases, _kept(folder / f"{name}.npy", lambda: _searched(decisions))


def _kept(path: pathlib.Path, find: Callable[[], np.ndarray]) -> np.ndarray:
  """What the file has, or what is found, which it has then."""
  if not path.exists():
    began = time.perf_counter()
    np.save(path, find())
    print(f"{path.name}: {time.perf_counter() - began:.0f} s", flush=True)
  return np.load(path)


def _searched(decisions: Decisions) -> np.ndarray:
  """[N] the best choices that a search of the decisions finds."""
  grouped = decisions.as_groups
  most_s = max(10.0, 1e-3 * _SEARCH_MS.value * grouped.graph.num_ops)
  budget = Budget(most_s, _SEARCHED.value)
  placer = registry.get_placer("annealing")
  found = placer.place(grouped, Simulator(grouped), budget, _SEED.value)
  return decisions.to_choices(found.placement.devices)


def _bases(problem: Problem) -> np.ndarray:
  """[4, num_ops] the two best placements by rules, and two short searches'."""
  simulator, results = Simulator(problem), []
  is_split = problem.graph.num_microbatches > 1
  for name in registry.MICROBATCHED if is_split else RULES:
    with contextlib.suppress(TfplaceError):
      placer = registry.get_placer(name)
      results.append(placer.place(problem, simulator, Budget(RULE_S), 0))
  best = [r.placement.devices for r in best_first(results)[:2]]
  for evaluations in SHORT:
    placer = registry.get_placer("annealing", start=best[0][None])
    budget = Budget(SHORT_S, evaluations)
    found = placer.place(problem, simulator, budget, 0)
    best.append(found.placement.devices)
  return np.stack(best)


class _Printer:
  """Prints means over so many steps."""

  def __init__(self, every: int) -> None:
    self._every = every
    self._seen: list[Any] = []
    self._began = time.perf_counter()

  def __call__(self, report: Any) -> None:
    self._seen.append(report)
    if len(self._seen) < self._every:
      return
    seconds = time.perf_counter() - self._began
    told = f"{report.done}/{report.total} {seconds:.0f} s"
    losses = [r.loss for r in self._seen if r.loss is not None]
    steps = [r.step for r in self._seen if r.step is not None]
    if losses:
      told += f" loss {statistics.fmean(losses):.3f}"
    if steps:
      told += f" reward {statistics.fmean(s.reward for s in steps):.4f}"
      told += f" entropy {statistics.fmean(s.entropy for s in steps):.3f}"
      clips = statistics.fmean(s.clip_fraction for s in steps)
      told += f" clipped {clips:.3f}"
    print(told, flush=True)
    self._seen = []


if __name__ == "__main__":
  OPTIONS.run(main)
