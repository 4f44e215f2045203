"""Trains the policy `ordered` on the training set of `sets.py`.

The run resumes where it was cut off, and exports the policy. Needs the extra
`train`.

  python -m benchmarks.train_ordered --work_dir=ordered
"""

import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from absl import flags

from benchmarks import sets
from benchmarks.lib import Options
from tfplace.bin import cli
from tfplace.graph import Problem
from tfplace.plan import graph_cache
from tfplace.training import process
from tfplace.training.config import TrainConfig

_EXPORT_EVERY = 500  # iterations

OPTIONS = Options("train_ordered", __doc__)
OPTIONS.add("rows", "", "Pattern of the rows' labels; all where left out.")
OPTIONS.add("work_dir", None, "Folder of checkpoints and of the policy.")
OPTIONS.add("init_from", None, "Policy to go on from, or `shipped`.")
OPTIONS.add(
  "imitation_steps",
  TrainConfig().imitation_steps,
  "Imitation steps of each task.",
  least=0,
)
OPTIONS.add("iterations", 3000, "Iterations of PPO, in all.", least=0)
OPTIONS.add(
  "learning_rate", TrainConfig().learning_rate, "Learning rate of PPO's Adam."
)
OPTIONS.add("minutes", 1e6, "Most minutes of training.", least=0)
OPTIONS.add("search_s", 10.0, "Seconds of the longest search of a task.")
OPTIONS.add("seed", 0, "Seed of weights, samples and searches.", least=0)
OPTIONS.add(
  "graph_cache_dir", graph_cache.default_directory(), "Extracted graphs."
)
OPTIONS.add("extract", False, "Only extracts the graphs.")


def problems(values: flags.FlagValues) -> Iterator[Problem]:
  """Yields the wanted rows of the training set."""
  for row in sets.TRAINING:
    if re.search(values.rows, row.label):
      yield row.problem(values.graph_cache_dir)


def main(values: flags.FlagValues) -> None:
  """Trains by imitation, then by PPO; prints progress, keeps checkpoints."""
  if values.extract:
    for problem in problems(values):
      print(f"{problem.graph.name}: {problem.graph.num_ops:,} ops", flush=True)
    return
  work = pathlib.Path(cli.required(values, "work_dir"))
  # Models are traced in a process with Keras 3.
  subprocess.run(
    [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--extract"],
    check=True,
  )
  process.enter_training_process()
  from tfplace.training import trainer as training

  config = TrainConfig(
    checkpoint_dir=str(work / "checkpoints"),
    export_dir=str(work / "policy"),
    init_from=values.init_from,
    iterations=values.iterations,
    imitation_steps=values.imitation_steps,
    search_s=values.search_s,
    learning_rate=values.learning_rate,
    seed=values.seed,
    checkpoint_every=50,
  )
  with process.only_run_in(config.checkpoint_dir):
    run = training.open_trainer(list(problems(values)), config)
    print(f"{len(run.tasks)} tasks, {run.done} of {run.total} done", flush=True)
    began = time.monotonic()

    def on_step(report: Any) -> None:
      if report.done % len(run.tasks) == 0:
        seconds = time.monotonic() - began
        reward = "" if report.step is None else f", {report.step.reward:.4f}"
        print(f"{report.done}/{report.total}, {seconds:.0f} s{reward}")
      if report.done % _EXPORT_EVERY == 0:
        training.finish(run)

    run.run(on_step, began + 60 * values.minutes)
    training.finish(run)


if __name__ == "__main__":
  OPTIONS.run(main)
