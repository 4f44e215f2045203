"""tfplace-train: trains or fine-tunes a learned policy.

Training is imitation of searched placements (for ordered, of simulated changes
that gain), then reinforcement learning. A run with the same --checkpoint_dir
continues from the last checkpoint.
"""

import dataclasses
import functools
import math
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags
from rich import console, progress, table

from tfplace import bounds
from tfplace.bin import cli, microbatch_flags, sources, training_graphs
from tfplace.errors import shown
from tfplace.graph import Problem
from tfplace.learned import policy_format, sampling
from tfplace.measure.remote import resolvers
from tfplace.placers import LEARNED, dask_workers
from tfplace.plan import live_step
from tfplace.plan.stages import Stages
from tfplace.training import process
from tfplace.training.config import TrainConfig

if TYPE_CHECKING:
  from tfplace.training.tasks import Task
  from tfplace.training.trainer import Trainer

_REWARDS = ("simulate", "measure")
_UNLIMITED = 1_000_000_000  # iterations of a run that time ends
# Share of the time of such a run for a search for placements to change.
_SEARCH_SHARE = 0.2
# Numbers of `TrainConfig` with a flag: type, least value, help.
_NUMBERS: tuple[tuple[str, type, float, str], ...] = (
  ("iterations", int, 0, "PPO iterations, each on the next graph."),
  ("imitation_steps", int, 0, "Imitation steps per graph, before PPO."),
  ("samples", int, 2, "Placements sampled per iteration."),
  ("checkpoint_every", int, 1, "Iterations between checkpoints."),
  ("seed", int, 0, "Seed of all random choices."),
  (
    "elite",
    float,
    0.01,
    "For all but placeto: best share of an iteration's samples that is used for"
    " training. 1 is plain PPO or REINFORCE.",
  ),
  ("learning_rate", float, 0.0, "Learning rate of Adam."),
  (
    "entropy",
    float,
    0.0,
    "Weight of the entropy. A larger weight keeps samples diverse, which"
    " improves the best of many.",
  ),
)


def _define(values: flags.FlagValues) -> None:
  training_graphs.define(values)
  cli.define(
    values,
    "max_decisions",
    "Maximum number of decisions per graph; groups are merged until it is met."
    " 0 merges nothing. With several values, each graph is trained with each."
    " Default: that of the strategy.",
    kind=list,
  )
  text = "Learned strategy to train; auto asks ordered."
  cli.define(values, "strategy", text, TrainConfig.strategy, choices=LEARNED)
  text = (
    "Evaluation of the policy's placements: the simulator or the real devices"
    " of --cluster. Imitation always uses the simulator."
  )
  cli.define(values, "reward", text, "simulate", choices=_REWARDS)
  sources.define_dask_flag(
    values,
    "simulate the samples of each iteration (the numbers are the same as"
    " without it)",
  )
  cli.define_all(
    values,
    {
      "checkpoint_dir": "Directory of checkpoints and TensorBoard logs.",
      "export_dir": "Directory to write the policy and the best placements to.",
      "init_from": "Exported policy to start from; 'shipped' is the shipped"
      " one.",
    },
  )
  cli.define(
    values,
    "minutes",
    "Time limit of this run, from its start to its export, in place of"
    " --iterations. A run with the same --checkpoint_dir goes on as long.",
    kind=float,
    least=0.0,
  )
  text = "Timed steps per measured placement."
  cli.define(values, "measured_steps", text, 5, least=1)
  text = "Seconds that one measurement may take."
  cli.define(values, "timeout_s", text, 60.0, least=1.0)
  for name, kind, least, text in _NUMBERS:
    default = getattr(TrainConfig, name)
    more = " Default: that of the strategy." if default is None else ""
    cli.define(values, name, text + more, default, kind=kind, least=least)


def _check(values: flags.FlagValues) -> None:
  """Checks the flags before anything is computed.

  Raises:
    UsageError: a flag is missing or contradicts another flag.
    TrainingError: the training packages are not installed, or there is no such
      policy.
    TfplaceError: a model or cluster is unknown.
  """
  process.check_packages()
  for flag in ("cluster", "checkpoint_dir", "export_dir"):
    cli.required(values, flag)
  if not any(values[name].value for name in training_graphs.SOURCES):
    choices = ", ".join(f"--{name}" for name in training_graphs.SOURCES)
    raise cli.UsageError(f"give at least one of {choices}")
  policy_format.check_export_dir(values.export_dir)
  config = _config(values)
  training_graphs.check_microbatches(values)
  if values.elite is not None and values.strategy == "placeto":
    raise cli.UsageError(
      f"--elite={values.elite} is for other strategies, not placeto"
    )
  if values.minutes is not None and values["iterations"].present:
    raise cli.UsageError(
      f"--minutes={values.minutes:g} and --iterations={values.iterations} both"
      " limit the run: give one of them"
    )
  if values.dask is not None:
    dask_workers.check_dask(values.dask)
    if values.reward == "measure":
      raise cli.UsageError(
        f"--dask={values.dask} is for --reward=simulate: real devices measure"
        " one placement at a time"
      )
  _check_devices(values)
  training_graphs.check_names(values)
  if config.start is not None:
    policy_format.read_info(config.start, config.strategy)


def _check_devices(values: flags.FlagValues) -> None:
  """Checks that `--cluster` and `--reward` agree."""
  live = [name for name in values.cluster if sources.is_live(name)]
  resolved = [name for name in live if resolvers.is_resolver(name)]
  if resolved:
    raise cli.UsageError(
      f"--cluster={resolved[0]}: the tasks of a job do not train together; use"
      " workers:N, gpus, or a tfplace.hosts.v1 file of workers"
    )
  if values.reward == "measure":
    _check_measured(values, live)
  elif live:
    raise cli.UsageError(
      f"--cluster={live[0]} names real devices; --reward=simulate needs a"
      " preset or a cluster file"
    )


def _check_measured(values: flags.FlagValues, live: Sequence[str]) -> None:
  if len(values.cluster) != 1 or not live:
    raise cli.UsageError(
      "--reward=measure needs one cluster of real devices (workers:N or gpus),"
      f" not --cluster={','.join(values.cluster)}"
    )
  if values.graphs:
    raise cli.UsageError(
      "--reward=measure runs --models; --graphs have costs only"
    )
  step = microbatch_flags.config(values)
  if not (step.is_whole and step.recompute.is_none):
    given = " ".join(microbatch_flags.arguments(values))
    raise cli.UsageError(
      f"{given} needs --reward=simulate: --reward=measure runs whole steps as"
      " they are"
    )


def _levels(values: flags.FlagValues) -> tuple[int | None, ...] | None:
  """Returns the values of `--max_decisions`; 0 is None.

  Raises:
    UsageError: a value is not a number.
  """
  if values.max_decisions is None:
    return None
  result: list[int | None] = []
  for text in values.max_decisions:
    if not cli.is_count(text):
      raise cli.UsageError(f"--max_decisions: {shown(text)} is not a number")
    result.append(int(text) or None)
  return tuple(result)


def _config(values: flags.FlagValues) -> TrainConfig:
  names = [field.name for field in dataclasses.fields(TrainConfig)]
  given: dict[str, Any] = {
    name: values[name].value for name in names if name in values
  }
  return TrainConfig(**{**given, "max_decisions": _levels(values)})


def _main(values: flags.FlagValues) -> None:
  until = math.inf
  if values.minutes is not None:
    until = time.monotonic() + 60.0 * values.minutes
  _check(values)
  with process.only_run_in(values.checkpoint_dir):
    _run(values, until)


def _run(values: flags.FlagValues, until: float) -> None:
  # TF-GNN and tf-agents need Keras 2, which is selected for a whole process
  # before TensorFlow is imported.
  if values.reward == "measure":
    process.enter_training_process()
    with live_step.measured_problems(
      values.models,
      values.cluster[0],
      os.path.join(values.checkpoint_dir, "graphs"),
      Stages(cli.show_stage),
      steps=values.measured_steps,
      timeout_s=values.timeout_s,
    ) as (problems, make_evaluator):
      _train(values, problems, until, make_evaluator=make_evaluator)
    return
  problems = list(training_graphs.problems(values))
  process.enter_training_process()
  if values.dask is None:
    _train(values, problems, until)
    return
  with dask_workers.opened_workers(values.dask) as opened:
    make = functools.partial(sampling.WorkerSimulator, workers=opened)
    _train(values, problems, until, make_evaluator=make)


def _train(
  values: flags.FlagValues,
  problems: Sequence[Problem],
  until: float,
  **options: Any,
) -> None:
  from tfplace.training import trainer  # Imports TensorFlow.

  config = _config(values)
  if values.minutes is not None:
    left_s = max(0.0, until - time.monotonic())
    config = dataclasses.replace(
      config,
      iterations=_UNLIMITED,
      search_s=_SEARCH_SHARE * left_s / max(1, len(problems)),
    )
  run = trainer.open_trainer(problems, config, **options)
  if run.done:
    print(f"continuing after step {run.done} of {run.total}")
  screen = console.Console(stderr=True)
  with progress.Progress(
    progress.TextColumn("{task.description}"),
    progress.BarColumn(),
    progress.MofNCompleteColumn(),
    progress.TimeRemainingColumn(),
    console=screen,
    disable=not screen.is_terminal,
  ) as bar:
    total = None if values.minutes is not None else run.total
    line = bar.add_task("Training", total=total, completed=run.done)

    def show(report: trainer.Report) -> None:
      phase = "Imitating" if report.step is None else "Improving"
      best = f"{report.best_us:.0f} us"
      bar.update(
        line, completed=report.done, description=f"{phase} (best {best})"
      )

    run.run(show, until)
  trainer.finish(run)
  _print_table(run, values.reward == "simulate")


def _print_table(trainer: "Trainer", is_simulated: bool) -> None:
  """Prints the first and the best step time of each graph, of all starts.

  The ratio to the bound is printed for simulated rewards only, because no bound
  holds for measured steps.
  """
  rows = table.Table("graph", "cluster", "decisions", "start", "best")
  if is_simulated:
    rows.add_column("best / bound")
  bound_us: dict[int, float] = {}  # By problem, which has several sizes.
  starts: dict[tuple[int, int], list[Task]] = {}
  for task in trainer.tasks:
    key = id(task.decisions.problem), task.decisions.num_decisions
    starts.setdefault(key, []).append(task)
  for (_, num_decisions), tasks in starts.items():
    problem = tasks[0].decisions.problem
    best_us = min(task.best_us for task in tasks)
    cells = [
      problem.graph.name,
      problem.cluster.name,
      str(num_decisions),
      f"{min(task.baseline_us for task in tasks):.1f} us",
      f"{best_us:.1f} us",
    ]
    if is_simulated:
      if id(problem) not in bound_us:
        with cli.showing_progress(f"Bounding {problem.graph.name}"):
          bound_us[id(problem)] = bounds.tightened(problem).lower_bound_us
      cells.append(f"{best_us / bound_us[id(problem)]:.4f}")
    rows.add_row(*cells)
  console.Console().print(rows)


run = cli.command(__doc__, _define, _main)

if __name__ == "__main__":
  sys.exit(run())
