"""Trains the policy `ordered`, which changes placements in order.

Each graph on each cluster gives three tasks: to change the two best placements
by rules, and what a short search makes of the best. Training imitates a longer
search of the coarse groups, goes on by PPO, resumes where it was cut off, and
exports the policy. Needs the extra `train`.

  python -m benchmarks.learned.run_ordered --graphs='graphs/*.json.gz' \\
      --on=v100x4,p100x8 --work_dir=ordered
"""

import contextlib
import dataclasses
import glob
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from absl import flags

import tfplace
from benchmarks.lib.command import Options
from tfplace.bin import cli
from tfplace.core import Problem, symmetry
from tfplace.core.budget import Budget
from tfplace.core.presets import cluster_preset
from tfplace.errors import TfplaceError
from tfplace.learned import training_process
from tfplace.learned.decisions import Decisions, decisions_at
from tfplace.placers import registry
from tfplace.placers.search.annealing import best_first
from tfplace.simulate import Simulator

STRATEGY = "ordered"
# Placers whose two best placements are changed, and how long each may take.
RULES = (*registry.MICROBATCHED, "expert", "axes", "metis", "heft")
RULE_S = 5.0
SHORT = 150  # evaluations of the search that makes the third
OPTIONS = Options("run_ordered", __doc__)
_GRAPHS = OPTIONS.add(
  "graphs",
  [],
  "Graph files, or globs of them; FILE@CLUSTER+CLUSTER names their clusters.",
)
_ON = OPTIONS.add("on", ["v100x4"], "Clusters of all other files.")
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
_STEPS = OPTIONS.add("imitation_steps", 25, "Per task.")
_ITERATIONS = OPTIONS.add("iterations", 0, "Of PPO, in all.")
_SEARCHED = OPTIONS.add("search_evaluations", 5000, "Per target.")
_SEARCH_MS = OPTIONS.add(
  "search_ms_per_op", 0.4, "Of a target, at most; at least 10 s."
)


def problems() -> Iterator[Problem]:
  """Every graph on every cluster that is named for it."""
  for named in _GRAPHS.value:
    wild, _, on = named.partition("@")
    paths = sorted(glob.glob(wild))
    if not paths:
      raise cli.UsageError(f"--graphs: {wild!r} names no file")
    for path in paths:
      graph = tfplace.load_graph(path)
      for cluster in on.split("+") if on else _ON.value:
        yield Problem(graph, cluster_preset(cluster))


def main(_: flags.FlagValues) -> None:
  """Imitation and PPO; progress is printed, checkpoints are kept."""
  training_process.enter_training_process()
  from tfplace.learned.train import trainer as training
  from tfplace.learned.train.config import Request
  from tfplace.learned.train.tasks import Task

  work = pathlib.Path(_WORK_DIR.value)
  request = Request(
    checkpoint_dir=str(work / "checkpoints"),
    export_dir=str(work / "policy"),
    iterations=_ITERATIONS.value,
    imitation_steps=_STEPS.value,
    max_decisions=tuple(int(size) for size in _SIZES.value),
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
      for problem in problems()
      for decisions in decisions_at(problem, request.max_decisions)
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
  """Tasks of changing each of a few placements; their target a search of the
  decisions has found. All are kept in files."""
  problem = decisions.problem
  name = (
    f"{problem.graph.name}_{problem.graph.num_ops}_{problem.cluster.name}"
    f"_{decisions.num_decisions}_{_SEARCHED.value}_{_SEED.value}"
  )
  folder = work / "targets"
  folder.mkdir(parents=True, exist_ok=True)
  bases = _kept(folder / f"{name}.bases.npy", lambda: _bases(problem))
  found = None
  if _STEPS.value:
    found = _kept(folder / f"{name}.npy", lambda: _searched(decisions))
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
  """[3, num_ops] the two best placements by rules, and a short search's."""
  simulator, results = Simulator(problem), []
  for name in RULES:
    with contextlib.suppress(TfplaceError):
      placer = registry.get_placer(name)
      results.append(placer.place(problem, simulator, Budget(RULE_S), 0))
  best = [r.placement.devices for r in best_first(results)[:2]]
  placer = registry.get_placer("annealing", start=best[0][None])
  short = placer.place(problem, simulator, Budget(60.0, SHORT), 0)
  return np.stack([*best, short.placement.devices])


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
