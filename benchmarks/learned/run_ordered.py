"""The policy that changes placements in order: trained, and compared.

Development graphs only; the test set of the README is not looked at here.
`train` has three tasks of each graph on each cluster: to change the two best
placements by rules, and what a short search makes of the best. It imitates a
longer search of the clusters, then goes on by PPO, resumes where it was cut
off, and exports the policy and one of random weights. `compare` sets the best
that the policy draws in some seconds (features, network, decoding and
simulations; TensorFlow is loaded before) beside every one-shot placer, random
weights and random changes. `ceiling` shows what a search finds in so many
seconds over the best one-shot placer: what a policy could win.

  python -m benchmarks.learned.run_ordered train --graphs='graphs/*.json.gz' \\
    --on=v100x4,p100x8 --work_dir=ordered
  python -m benchmarks.learned.run_ordered compare \\
      --graphs='others/*.json.gz' \\
    --on=v100x4 --work_dir=ordered
  python -m benchmarks.learned.run_ordered ceiling \\
      --graphs='graphs/*.json.gz' \\
    --on=v100x4 --searches_s=3,10,60
"""

import contextlib
import dataclasses
import glob
import math
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from absl import app, flags

import tfplace
from benchmarks.lib import saved_rows
from tfplace.core import Problem, symmetry
from tfplace.core.budget import Budget
from tfplace.core.evaluation import Result
from tfplace.core.presets import cluster_preset
from tfplace.errors import TfplaceError
from tfplace.learned import policies, training_process
from tfplace.learned.decisions import Decisions, decisions_at
from tfplace.placers import registry
from tfplace.placers.search.annealing import best_first
from tfplace.placers.tracker import Tracker
from tfplace.simulate import Simulator

STRATEGY = "ordered"
# Placers whose two best placements are changed, and how long each may take.
RULES = (*registry.MICROBATCHED, "expert", "axes", "metis", "heft")
RULE_S = 5.0
SHORT = 150  # evaluations of the search that makes the third
ARMS = ("policy", "untrained", "random")
NEVER = 1_000_000_000  # draws without a better one, after which it ends
_GRAPHS = flags.DEFINE_list(
  "graphs",
  [],
  "Graph files, or globs of them; FILE@CLUSTER+CLUSTER names their clusters.",
)
_ON = flags.DEFINE_list("on", ["v100x4"], "Clusters of all other files.")
_WORK_DIR = flags.DEFINE_string("work_dir", None, "Checkpoints and policies.")
_OUT = flags.DEFINE_string("out", None, "JSON file of rows that are known.")
_SEED = flags.DEFINE_integer("seed", 0, "Of weights, draws and searches.")
_SECONDS = flags.DEFINE_float("seconds", 3.0, "Of each arm's draws.")
_SEARCHES_S = flags.DEFINE_list("searches_s", ["3", "10", "60"], "Of `auto`.")
_SIZES = flags.DEFINE_list("sizes", ["512"], "Decisions of each task.")
_INIT_FROM = flags.DEFINE_string("init_from", None, "Policy to go on from.")
_ELITE = flags.DEFINE_float("elite", 0.25, "Share of the draws that teach.")
_AVERAGING = flags.DEFINE_float("averaging", 0.998, "See `PPOConfig`.")
_ENTROPY = flags.DEFINE_float("entropy", 0.0, "Weight, see `PPOConfig`.")
_TEMPERATURE = flags.DEFINE_float("temperature", 0.5, "See `PPOConfig`.")
_RATE = flags.DEFINE_float("learning_rate", 1e-3, "Of Adam, for PPO.")
_EXPORT_EVERY = flags.DEFINE_integer("export_every", 500, "Steps.")
_STEPS = flags.DEFINE_integer("imitation_steps", 25, "Per task.")
_ITERATIONS = flags.DEFINE_integer("iterations", 0, "Of PPO, in all.")
_SEARCHED = flags.DEFINE_integer("search_evaluations", 5000, "Per target.")
_SEARCH_MS = flags.DEFINE_float(
  "search_ms_per_op", 0.4, "Of a target, at most; at least 10 s."
)


def main(argv: list[str]) -> None:
  actions = {"train": train, "compare": compare, "ceiling": ceiling}
  if len(argv) != 2 or argv[1] not in actions:
    raise app.UsageError(f"say what to do: {', '.join(actions)}")
  actions[argv[1]]()


def problems() -> Iterator[Problem]:
  """Every graph on every cluster that is named for it."""
  for named in _GRAPHS.value:
    wild, _, on = named.partition("@")
    paths = sorted(glob.glob(wild))
    if not paths:
      raise app.UsageError(f"--graphs: {wild!r} names no file")
    for path in paths:
      graph = tfplace.load_graph(path)
      for cluster in on.split("+") if on else _ON.value:
        yield Problem(graph, cluster_preset(cluster))


def train() -> None:
  """Imitation and PPO; progress is printed, checkpoints are kept."""
  training_process.enter_training_process()
  from tfplace.learned import export
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
    if not run.done:
      export.export_policy(run.learner.exportable(), work / "untrained")
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


def search(
  placer: Any, problem: Problem, seconds: float, policy: Any, sizes: list[int]
) -> Result:
  """Searches by a policy, or by random changes for None."""
  budget = Budget(seconds)
  tracker = Tracker(STRATEGY, problem, Simulator(problem), budget)
  rng = np.random.default_rng(_SEED.value)
  placer.search(tracker, rng, policy, sizes)
  return tracker.result()


def compare() -> None:
  """One row per problem; then the geometric means."""
  from tfplace.learned.ordered import placer as ordered_placer

  work = pathlib.Path(_WORK_DIR.value)
  arms = {
    name: policies.load_policy(work / folder, STRATEGY)
    for name, folder in (("policy", "policy"), ("untrained", "untrained"))
  }
  saved = saved_rows.SavedRows(
    _OUT.value or str(work / "compare.json"),
    {"seconds": _SECONDS.value, "seed": _SEED.value},
    "--out",
  )
  sizes = [int(size) for size in _SIZES.value]

  def measure(problem: Problem) -> dict:
    row = one_shots(problem)
    for arm in ARMS:
      policy = arms.get(arm)
      placer = ordered_placer.OrderedPlacer(patience=NEVER)
      began = time.perf_counter()
      found = search(placer, problem, _SECONDS.value, policy, sizes)
      row[arm] = {
        "step_time_us": found.evaluation.step_time_us,
        "seconds": time.perf_counter() - began,
        "evaluations": found.evaluations,
        "first_us": found.history[0].step_time_us,
      }
    return row

  rows = {}
  for problem in problems():
    for policy in (*arms.values(), None):  # compiled before the clock starts
      placer = ordered_placer.OrderedPlacer(samples=1)
      search(placer, problem, 60.0, policy, sizes)
    key = f"{problem.graph.name}/{problem.cluster.name}"
    key += f"/{problem.graph.num_microbatches}"
    rows[key] = saved.row(key, lambda problem=problem: measure(problem))
  heads = ["graph", "ops", "best one-shot (ms)", "by", *ARMS]
  print("| " + " | ".join(heads) + " |\n" + "| --- " * len(heads) + "|")
  for key, row in rows.items():
    cells = [key, f"{row['ops']:,}", f"{row['one_shot_us'] / 1e3:.1f}"]
    cells += [row["by"], *(f"{_ratio(row, arm):.3f}" for arm in ARMS)]
    print("| " + " | ".join(cells) + " |")
  means = [
    math.exp(statistics.fmean(math.log(_ratio(r, arm)) for r in rows.values()))
    for arm in ARMS
  ]
  print("geometric means", dict(zip(ARMS, np.round(means, 4), strict=True)))


def _ratio(row: dict, arm: str) -> float:
  """Step time over that of the best one-shot placer."""
  return row[arm]["step_time_us"] / row["one_shot_us"]


def one_shots(problem: Problem) -> dict:
  """The best of all placers that neither search nor learn."""
  simulator = Simulator(problem)
  found = {}
  for name in registry.classical(problem):
    try:
      placer = registry.get_placer(name)
      result = placer.place(problem, simulator, Budget(60.0), _SEED.value)
    except TfplaceError:
      continue
    found[name] = result.evaluation.step_time_us
  best = min(found, key=found.__getitem__)
  return {
    "ops": problem.graph.num_ops,
    "one_shot_us": found[best],
    "by": best,
    "one_shots": found,
  }


def ceiling() -> None:
  """`auto` without a policy at each of so many seconds."""
  from tfplace.placers.auto import AutoPlacer

  saved = saved_rows.SavedRows(_OUT.value, {"seed": _SEED.value}, "--out")

  def measure(problem: Problem) -> dict:
    row = one_shots(problem)
    for seconds in _SEARCHES_S.value:
      found = AutoPlacer(learned=()).place(
        problem, Simulator(problem), Budget(float(seconds)), _SEED.value
      )
      row[f"auto_{seconds}_s"] = found.evaluation.step_time_us
    return row

  for problem in problems():
    key = f"{problem.graph.name}/{problem.cluster.name}"
    key += f"/{problem.graph.num_microbatches}"
    saved.row(key, lambda problem=problem: measure(problem))


if __name__ == "__main__":
  app.run(main)
