"""Does credit from the critical path teach GDP faster than a shared advantage?

For each graph and seed: the same imitation start, then PPO with the same
number of evaluations, once with one advantage for all decisions of a placement
and once with `PPOConfig.credit` "critical_path". Writes JSON and prints a
table; what is in the JSON already is kept. Needs the extra `train`.

  python benchmarks/credit.py
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from absl import app, flags
from rich import console, table

from tfplace.core import Problem
from tfplace.core.presets import cluster_preset
from tfplace.formats import load_graph
from tfplace.formats.json_file import write_json
from tfplace.learned import training_process

HERE = pathlib.Path(__file__).parent
# Label -> model of the zoo, its further sizes, decisions.
CASES = {
  "inception_v3": ("inception_v3", "", 128),
  "ptb 0": ("ptb", "index=0", 256),
  "cifar10 0": ("cifar10", "index=0", 512),
}
CREDITS = ("shared", "critical_path")
_CASES = flags.DEFINE_list("cases", list(CASES), "Which graphs.")
_CLUSTER = flags.DEFINE_string("cluster", "k80x2", "Cluster preset.")
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds.")
_ITERATIONS = flags.DEFINE_integer(
  "iterations", 30, "PPO iterations, of 17 evaluations each."
)
_OUT = flags.DEFINE_string(
  "out", str(HERE / "results" / "credit.json"), "JSON file to write."
)


def load_problem(case: str) -> Problem:
  """A training step; a process with Keras 3 extracts the graph."""
  model, sizes, _ = CASES[case]
  command = [sys.executable, "-m", "tfplace.bin.extract", f"--model={model}"]
  command += [f"--model_sizes={sizes}", f"--cluster={_CLUSTER.value}"]
  environment = {
    k: v for k, v in os.environ.items() if k != training_process.SWITCH
  }
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "graph.json")
    subprocess.run([*command, f"--output={path}"], check=True, env=environment)
    return Problem(load_graph(path), cluster_preset(_CLUSTER.value))


def train(problem: Problem, decisions: int, seed: int, credit: str) -> dict:
  """One run; curves over its iterations."""
  from tfplace.learned.decisions import group_decisions
  from tfplace.learned.train.config import (
    ImitationConfig,
    PPOConfig,
    TrainConfig,
  )
  from tfplace.learned.train.tasks import make_task
  from tfplace.learned.train.trainer import Trainer
  from tfplace.simulate import Simulator

  task = make_task(group_decisions(problem, decisions), Simulator(problem))
  config = TrainConfig(
    iterations=_ITERATIONS.value,
    seed=seed,
    ppo=PPOConfig(samples=16, epochs=4, entropy=0.02, credit=credit),
    imitation=ImitationConfig(steps=60),
  )
  trainer = Trainer([task], config)
  trainer.run()
  history = trainer.history[0]
  return {
    "decisions": task.decisions.num_decisions,
    "start_us": task.baseline_us,
    "evaluations": [row[0] for row in history],
    "best_us": [row[1] for row in history],
    "mean_reward": [row[3] for row in history],
  }


def print_table(rows: dict[str, dict]) -> None:
  """Best step times over the start's, by seed, and their geometric mean."""
  shown = table.Table("graph", "credit", "evaluations", "best / start", "mean")
  for case in _CASES.value:
    for credit in CREDITS:
      keys = [f"{case}/{seed}/{credit}" for seed in _SEEDS.value]
      runs = [rows[key] for key in keys if key in rows]
      if not runs:
        continue
      ratios = [min(run["best_us"]) / run["start_us"] for run in runs]
      shown.add_row(
        case,
        credit,
        str(runs[0]["evaluations"][-1]),
        ", ".join(f"{ratio:.4f}" for ratio in ratios),
        f"{statistics.geometric_mean(ratios):.4f}",
      )
  console.Console(width=100).print(shown)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected argument {argv[1]!r}")
  training_process.enter_training_process()
  path = pathlib.Path(_OUT.value)
  rows = json.loads(path.read_text())["rows"] if path.exists() else {}
  for case in _CASES.value:
    problem = None
    for seed in _SEEDS.value:
      for credit in CREDITS:
        key = f"{case}/{seed}/{credit}"
        if key not in rows:
          problem = problem or load_problem(case)
          rows[key] = train(problem, CASES[case][2], int(seed), credit)
          write_json(path, {"rows": rows})
  print_table(rows)


if __name__ == "__main__":
  app.run(main)
