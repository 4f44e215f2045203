"""Compares PPO and annealing from the same imitation start.

For Inception-V3 and NMT merged to 256 decisions, for NMT at every one of its
10,000 groups, and for each seed: a policy imitates the best one-shot
placement, PPO improves it, and annealing starts from the same placement with
the same number of evaluations. Writes JSON and learning curves. What is in the
JSON already is kept, and a run that was cut off goes on from its checkpoint;
`--fresh` starts again. Needs the extra `train`.

  python -m benchmarks.learned.run_learning
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from absl import flags
from matplotlib.figure import Figure
from rich import console, table

from benchmarks.lib.command import Options
from tfplace import bounds
from tfplace.core import Problem
from tfplace.core.presets import cluster_preset
from tfplace.formats import load_graph
from tfplace.formats.json_file import write_json
from tfplace.learned import training_process

OPTIONS = Options("run_learning", __doc__)
_MODELS = OPTIONS.add("models", ["inception_v3", "nmt"], "Zoo models.")
_CLUSTER = OPTIONS.add("cluster", "k80x2", "Cluster preset.")
_DECISIONS = OPTIONS.add("decisions", 256, "Decisions per graph.")
_WHOLE = OPTIONS.add(
  "whole", ["nmt"], "Models of which every group is a decision, too."
)
_SEEDS = OPTIONS.add("seeds", ["0", "1", "2"], "Seeds.")
_EVALUATIONS = OPTIONS.add(
  "evaluations", 1000, "Placements that PPO and annealing may try, about."
)
_WORK = OPTIONS.add(
  "work_dir", ".learning", "Where runs keep their checkpoints."
)
_OUT = OPTIONS.out("learning.json")
_QUICK = OPTIONS.add("quick", False, "A minute: 64 decisions, one seed.")
_FRESH = OPTIONS.add("fresh", False, "Train every policy again.")


def load_problem(model: str, cluster: str) -> Problem:
  """A model's training step; a process with Keras 3 extracts the graph."""
  environment = {
    k: v for k, v in os.environ.items() if k != training_process.SWITCH
  }
  command = [sys.executable, "-m", "tfplace.bin.extract", f"--model={model}"]
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "graph.json")
    subprocess.run(
      [*command, f"--cluster={cluster}", f"--output={path}"],
      check=True,
      env=environment,
    )
    return bounds.tightened(Problem(load_graph(path), cluster_preset(cluster)))


def train(task: Any, seed: int, evaluations: int, work: pathlib.Path) -> dict:
  """Imitation, then PPO; the curve of best step time against evaluations."""
  from tfplace.learned.train.config import (
    ImitationConfig,
    PPOConfig,
    TrainConfig,
  )
  from tfplace.learned.train.trainer import Trainer

  ppo = PPOConfig(samples=8, epochs=8, entropy=0.02)
  config = TrainConfig(
    iterations=evaluations // (ppo.samples + 1),
    seed=seed,
    method=ppo,
    imitation=ImitationConfig(steps=60),
  )
  trainer = Trainer([task], config, checkpoint_dir=work)
  trainer.run()
  history = trainer.history[0]
  return {
    "evaluations": [row[0] for row in history],
    "best_us": [row[1] for row in history],
    "greedy_us": [row[2] for row in history],
    "mean_reward": [row[3] for row in history],
  }


def anneal(task: Any, seed: int, evaluations: int) -> dict:
  """The same start and number of evaluations, spent by annealing."""
  from tfplace.core.budget import Budget
  from tfplace.placers.groups import GroupGraph
  from tfplace.placers.search.annealing import improve
  from tfplace.placers.search.search import SearchConfig
  from tfplace.placers.tracker import Tracker

  problem = task.decisions.problem
  budget = Budget(1e9, evaluations)
  result = improve(
    Tracker("annealing", problem, task.evaluator, budget),
    GroupGraph(problem),
    [task.decisions.to_devices(task.target)],
    seed,
    SearchConfig(),
  )
  return {
    "evaluations": [point.evaluations for point in result.history],
    "best_us": [point.step_time_us for point in result.history],
    "all_evaluations": result.evaluations,
  }


def run_row(problem: Problem, size: int, seed: int, work: pathlib.Path) -> dict:
  """PPO and annealing from one start."""
  from tfplace.learned.decisions import group_decisions
  from tfplace.learned.train.tasks import make_task
  from tfplace.simulate import Simulator

  decisions = group_decisions(problem, size or None)
  task = make_task(decisions, Simulator(problem))
  evaluations = 150 if _QUICK.value else _EVALUATIONS.value
  ppo = train(task, seed, evaluations, work)
  return {
    "decisions": decisions.num_decisions,
    "lower_bound_us": problem.lower_bound_us,
    "start_us": task.baseline_us,
    "ppo": ppo,
    "annealing": anneal(task, seed, ppo["evaluations"][-1]),
  }


def all_rows(rows: dict[str, dict]) -> dict[str, dict]:
  """Fills in the rows that are missing, saving after each."""
  cases = [(model, _DECISIONS.value) for model in _MODELS.value]
  cases += [(model, 0) for model in _WHOLE.value]
  seeds = _SEEDS.value
  if _QUICK.value:
    cases, seeds = [(_MODELS.value[0], 64)], seeds[:1]
  cluster = _CLUSTER.value
  for model, size in cases:
    problem = None
    for seed in seeds:
      key = f"{model}/{cluster}/{size or 'all'}/{seed}"
      if key in rows:
        continue
      problem = problem or load_problem(model, cluster)
      work = pathlib.Path(_WORK.value) / key
      rows[key] = run_row(problem, size, int(seed), work)
      write_json(_OUT.value, {"rows": rows})
      shutil.rmtree(work)
      print(key, *summary(rows[key]), flush=True)
  return rows


def summary(row: dict) -> list[str]:
  """Start and both ends as multiples of the lower bound, and the gains."""
  start, bound = row["start_us"], row["lower_bound_us"]
  ppo = min(row["ppo"]["best_us"])
  annealing = min([start, *row["annealing"]["best_us"]])
  return [
    str(row["decisions"]),
    str(row["ppo"]["evaluations"][-1]),
    f"{start / bound:.3f}",
    f"{ppo / bound:.3f} ({100 * (ppo / start - 1):+.1f}%)",
    f"{annealing / bound:.3f} ({100 * (annealing / start - 1):+.1f}%)",
  ]


def print_table(rows: dict[str, dict]) -> None:
  """One line per run, in multiples of the lower bound."""
  shown = table.Table(
    "run", "decisions", "evaluations", "start", "PPO", "annealing"
  )
  for key, row in rows.items():
    shown.add_row(key, *summary(row))
  console.Console(width=110).print(shown)


def draw(rows: dict[str, dict], path: pathlib.Path) -> None:
  """Best step time against evaluations, a panel per model and size."""
  panels = sorted({key.rsplit("/", 1)[0] for key in rows})
  figure = Figure(figsize=(5 * len(panels), 4), layout="constrained")
  axes = figure.subplots(1, len(panels), squeeze=False)[0]
  for ax, panel in zip(axes, panels, strict=True):
    for key, row in rows.items():
      if key.rsplit("/", 1)[0] != panel:
        continue
      bound, end = row["lower_bound_us"], row["ppo"]["evaluations"][-1]
      for name, color in (("ppo", "C0"), ("annealing", "C1")):
        curve = row[name]
        x = [0, *curve["evaluations"], end]
        y = [row["start_us"], *curve["best_us"]]
        y = [v / bound for v in [*y, y[-1]]]
        is_first = key.endswith(f"/{_SEEDS.value[0]}")
        ax.step(
          x, y, where="post", color=color, label=name if is_first else None
        )
    ax.set(title=panel, xlabel="evaluations", ylabel="best step time / bound")
    ax.legend()
  figure.savefig(path, dpi=120)


def main(_: flags.FlagValues) -> None:
  training_process.enter_training_process()
  out = pathlib.Path(_OUT.value)
  if _QUICK.value and not OPTIONS.values["out"].present:
    out = out.with_name("learning_quick.json")
    OPTIONS.values.out = str(out)
  rows = {}
  if out.exists() and not _FRESH.value:
    rows = json.loads(out.read_text())["rows"]
  if _FRESH.value:
    shutil.rmtree(_WORK.value, ignore_errors=True)
  os.makedirs(out.parent, exist_ok=True)
  rows = all_rows(rows)
  print_table(rows)
  draw(rows, out.with_suffix(".png"))


if __name__ == "__main__":
  OPTIONS.run(main)
