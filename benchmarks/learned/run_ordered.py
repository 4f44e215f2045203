"""Trains the policy `ordered` on the training set of `models/graph_sets.py`.

Its steps are whole and in microbatches, on equal and unequal devices and on
several hosts. The run resumes where it was cut off, and exports the policy.
Needs the extra `train`.

  python -m benchmarks.learned.run_ordered --work_dir=ordered
"""

import contextlib
import pathlib
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
from absl import flags

from benchmarks.lib.command import Options
from tfplace.core import Problem
from tfplace.learned import training_process
from tfplace.learned.ordered import tables
from tfplace.plan import graph_cache

OPTIONS = Options("run_ordered", __doc__)
_ROWS = OPTIONS.add("rows", "", "Pattern of the rows' labels; all if left out.")
_CACHE = OPTIONS.add(
  "graph_cache_dir", graph_cache.default_directory(), "Extracted graphs."
)
_WORK_DIR = OPTIONS.add("work_dir", None, "Checkpoints and policies.")
_SEED = OPTIONS.add("seed", 0, "Seed of weights, samples and searches.")
_INIT_FROM = OPTIONS.add("init_from", None, "Policy to go on from.")
_RATE = OPTIONS.add("learning_rate", 1e-3, "Learning rate of Adam for PPO.")
_EXPORT_EVERY = OPTIONS.add("export_every", 500, "Steps.")
_SEARCH_S = OPTIONS.add(
  "search_s", 10.0, "Seconds of the longest search for a placement to change."
)
_STEPS = OPTIONS.add("imitation_steps", 10, "Per task.")
_ITERATIONS = OPTIONS.add("iterations", 3000, "Iterations of PPO, in all.")
_MINUTES = OPTIONS.add("minutes", 1e6, "Most minutes of training.")
_HIDE = OPTIONS.add(
  "hide_schedule", False, "Trains without `base_schedule`: see the ablation."
)
_EXTRACT = OPTIONS.add("extract", False, "Only extracts the graphs.")


def problems() -> Iterator[Problem]:
  """The wanted rows of the training set."""
  from benchmarks.models import graph_sets  # Imports TensorFlow.

  for row in graph_sets.TRAINING:
    if re.search(_ROWS.value, row.label):
      yield row.problem(_CACHE.value)


def main(_: flags.FlagValues) -> None:
  """Imitation and PPO; progress is printed, checkpoints are kept."""
  if _EXTRACT.value:
    for problem in problems():
      print(f"{problem.graph.name}: {problem.graph.num_ops:,} ops", flush=True)
    return
  # Models are traced in a process with Keras 3.
  subprocess.run(
    [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--extract"],
    check=True,
  )
  training_process.enter_training_process()
  from tfplace.learned.train import trainer as training
  from tfplace.learned.train.config import Request

  work = pathlib.Path(_WORK_DIR.value)
  request = Request(
    checkpoint_dir=str(work / "checkpoints"),
    export_dir=str(work / "policy"),
    init_from=_INIT_FROM.value,
    iterations=_ITERATIONS.value,
    imitation_steps=_STEPS.value,
    search_s=_SEARCH_S.value,
    learning_rate=_RATE.value,
    seed=_SEED.value,
    strategy="ordered",
    checkpoint_every=50,
  )
  hides = hidden_schedule() if _HIDE.value else contextlib.nullcontext()
  with training_process.only_run_in(request.checkpoint_dir), hides:
    run = training.open_trainer(list(problems()), request)
    print(f"{len(run.tasks)} tasks, {run.done} of {run.total} done", flush=True)
    told = _Printer(len(run.tasks))

    def on_step(report: Any) -> None:
      told(report)
      if report.done % _EXPORT_EVERY.value == 0:
        training.finish(run, request)

    run.run(on_step, time.monotonic() + 60 * _MINUTES.value)
    training.finish(run, request)


@contextlib.contextmanager
def hidden_schedule() -> Iterator[None]:
  """Hides the features of the schedule of a base, see `base_schedule`."""
  describe = tables.describe

  def nothing(*args: Any) -> np.ndarray:
    return np.zeros_like(describe(*args))

  with mock.patch.object(tables, "describe", nothing):
    yield


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
