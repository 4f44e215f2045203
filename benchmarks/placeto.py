"""Placeto from random placements, beside random search and annealing.

For each model, merged to 128 groups: a policy without imitation is trained by
PPO or REINFORCE; random search and annealing get as many evaluations. Nothing
is told where a good placement is: all start from random placements over the
GPUs. Writes JSON and learning curves; a run that was cut off goes on from its
checkpoint. Needs the extra `train`.

  python benchmarks/placeto.py --iterations=60
"""

import json
import os
import pathlib
import time
from typing import Any

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure
from rich import console, table

from tfplace.core import Problem
from tfplace.core.presets import cluster_preset
from tfplace.core.protocols import Budget
from tfplace.formats import load_graph
from tfplace.formats.json_file import write_json
from tfplace.learned import training_process
from tfplace.learned.decisions import Decisions, group_decisions
from tfplace.learned.placeto.features import fast_devices, random_choices
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.annealing import improve
from tfplace.placers.search.search import SearchConfig
from tfplace.placers.tracker import Tracker
from tfplace.simulate import Simulator

HERE = pathlib.Path(__file__).parent
_GRAPHS = flags.DEFINE_list(
  "graphs",
  None,
  "Files that tfplace-extract wrote for the cluster, one per model.",
  required=True,
)
_CLUSTER = flags.DEFINE_string("cluster", "k80x2", "Cluster preset.")
_DECISIONS = flags.DEFINE_integer("decisions", 128, "Groups per graph.")
_ITERATIONS = flags.DEFINE_integer("iterations", 60, "Of training.")
_EPISODES = flags.DEFINE_integer("episodes", 9, "Side by side, one greedy.")
_ALGORITHM = flags.DEFINE_string("algorithm", "ppo", "Or reinforce.")
_SEEDS = flags.DEFINE_list("seeds", ["0"], "Seeds.")
_WORK = flags.DEFINE_string("work_dir", ".placeto", "Keeps checkpoints.")
_OUT = flags.DEFINE_string(
  "out", str(HERE / "results" / "placeto.json"), "JSON file to write."
)


def train(decisions: Decisions, seed: int, work: pathlib.Path) -> dict:
  """Placeto's curve: evaluations, best and greedy step times, CPU seconds."""
  from tfplace.learned.placeto.agents import PlacetoConfig
  from tfplace.learned.train.config import (
    ImitationConfig,
    PPOConfig,
    TrainConfig,
  )
  from tfplace.learned.train.tasks import Task
  from tfplace.learned.train.trainer import Trainer

  simulator = Simulator(decisions.problem)
  target = fast_devices(decisions).argmax(axis=1).astype(np.int32)
  single = simulator.run(decisions.to_devices(target[None]))
  task = Task(decisions, simulator, float(single.step_time_us[0]), target)
  config = TrainConfig(
    strategy="placeto",
    iterations=_ITERATIONS.value,
    seed=seed,
    method=PlacetoConfig(
      PPOConfig(
        samples=_EPISODES.value,
        epochs=3,
        learning_rate=2e-3,
        entropy=0.02,
        max_clip_fraction=0.3,
      ),
      algorithm=_ALGORITHM.value,
      minibatch=64,
    ),
    imitation=ImitationConfig(steps=0),
  )
  trainer = Trainer([task], config, checkpoint_dir=work)
  seconds: list[float] = []
  began = time.process_time()

  def note(report: Any) -> None:
    seconds.append(time.process_time() - began)
    step = report.step
    print(
      f"{task.evaluations} evaluations: greedy {step.greedy_us / 1e3:.1f} ms,"
      f" median {step.sample_us / 1e3:.1f}, best {task.best_us / 1e3:.1f},"
      f" {step.entropy:.3f} nats, {seconds[-1]:.0f} CPU s",
      flush=True,
    )

  trainer.run(note)
  evaluations, best, greedy, _ = map(
    list, zip(*trainer.history[0], strict=True)
  )
  return {
    "evaluations": evaluations,
    "best_us": best,
    "greedy_us": greedy,
    "cpu_seconds": seconds,
    "baseline_us": task.baseline_us,
  }


def search_at_random(decisions: Decisions, seed: int, evaluations: int) -> dict:
  """The best of so many random placements, after each hundred."""
  rng, simulator = np.random.default_rng(seed), Simulator(decisions.problem)
  fast, best, curve = fast_devices(decisions), np.inf, []
  for done in range(0, evaluations, 100):
    number = min(100, evaluations - done)
    batch = simulator.run(
      decisions.to_devices(random_choices(fast, number, rng))
    )
    best = min(best, *np.where(batch.feasible, batch.step_time_us, np.inf))
    curve.append([done + number, float(best)])
  counts, times = map(list, zip(*curve, strict=True))
  return {"evaluations": counts, "best_us": times}


def anneal(decisions: Decisions, seed: int, evaluations: int) -> dict:
  """Annealing from one random placement."""
  problem = decisions.problem
  rng = np.random.default_rng(seed)
  start = random_choices(fast_devices(decisions), 1, rng)[0]
  tracker = Tracker(
    "annealing", problem, Simulator(problem), Budget(1e9, evaluations)
  )
  result = improve(
    tracker,
    GroupGraph(problem),
    [decisions.to_devices(start)],
    seed,
    SearchConfig(),
  )
  return {
    "evaluations": [point.evaluations for point in result.history],
    "best_us": [point.step_time_us for point in result.history],
  }


def run_row(graph: str, seed: int, work: pathlib.Path) -> dict:
  """All three on one graph."""
  problem = Problem(load_graph(graph), cluster_preset(_CLUSTER.value))
  decisions = group_decisions(problem, _DECISIONS.value)
  placeto = train(decisions, seed, work)
  evaluations = placeto["evaluations"][-1]
  return {
    "decisions": decisions.num_decisions,
    "placeto": placeto,
    "random": search_at_random(decisions, seed, evaluations),
    "annealing": anneal(decisions, seed, evaluations),
  }


def draw(rows: dict[str, dict], path: pathlib.Path) -> None:
  """Best step time against evaluations, a panel per row."""
  figure = Figure(figsize=(5 * len(rows), 4), layout="constrained")
  axes = figure.subplots(1, len(rows), squeeze=False)[0]
  for ax, (key, row) in zip(axes, rows.items(), strict=True):
    end = row["placeto"]["evaluations"][-1]
    for name in ("placeto", "random", "annealing"):
      x, y = row[name]["evaluations"], row[name]["best_us"]
      milliseconds = [value / 1e3 for value in [*y, y[-1]]]
      ax.step([*x, end], milliseconds, where="post", label=name)
    greedy = [value / 1e3 for value in row["placeto"]["greedy_us"]]
    ax.plot(row["placeto"]["evaluations"], greedy, ":", label="its argmax")
    ax.set(title=key, xlabel="evaluations", ylabel="step time (ms)")
    ax.set_ylim(0, 1.5 * row["placeto"]["baseline_us"] / 1e3)
    ax.legend()
  figure.savefig(path, dpi=120)


def print_table(rows: dict[str, dict]) -> None:
  """Milliseconds at the end, one line per run."""
  shown = table.Table(
    "run", "evaluations", "one GPU", "random", "placeto", "annealing"
  )
  for key, row in rows.items():
    ends = [row[n]["best_us"][-1] for n in ("random", "placeto", "annealing")]
    shown.add_row(
      key,
      str(row["placeto"]["evaluations"][-1]),
      *(f"{v / 1e3:.1f}" for v in [row["placeto"]["baseline_us"], *ends]),
    )
  console.Console(width=110).print(shown)


def main(argv: list[str]) -> None:
  del argv
  training_process.enter_training_process()
  out = pathlib.Path(_OUT.value)
  rows = json.loads(out.read_text())["rows"] if out.exists() else {}
  for graph in _GRAPHS.value:
    name = os.path.basename(graph).split(".")[0]
    for seed in _SEEDS.value:
      key = f"{name}/{_CLUSTER.value}/{_DECISIONS.value}/{seed}"
      if key not in rows:
        work = pathlib.Path(_WORK.value) / key
        rows[key] = run_row(graph, int(seed), work)
        write_json(str(out), {"rows": rows})
  print_table(rows)
  draw(rows, out.with_suffix(".png"))


if __name__ == "__main__":
  app.run(main)
