"""tfplace-train: trains or fine-tunes a learned policy.

A process of its own: TF-GNN and tf-agents need Keras 2, which is chosen for a
whole process before TensorFlow is imported.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags
from rich import console, progress, table

from tfplace import bounds, core
from tfplace.bin import cli, training_flags, training_graphs
from tfplace.learned import training_process
from tfplace.plan import clusters
from tfplace.plan.planner import Stages

if TYPE_CHECKING:
  from tfplace.learned.train.trainer import Trainer

_DESCRIPTION = (
  "Trains a policy by imitation of the best classical placements, then by"
  " reinforcement learning. Started again with the same --checkpoint_dir, it"
  " goes on where it was stopped."
)


def _main(values: flags.FlagValues) -> None:
  training_flags.check(values)
  with training_process.only_run_in(values.checkpoint_dir):
    _run(values)


def _run(values: flags.FlagValues) -> None:
  if values.reward == "measure":
    training_process.enter_training_process()
    with clusters.measured_problems(
      values.models,
      values.cluster[0],
      os.path.join(values.checkpoint_dir, "graphs"),
      Stages(cli.show_stage),
      steps=values.measured_steps,
      timeout_s=values.timeout_s,
    ) as (problems, make_evaluator):
      _train(values, problems, make_evaluator=make_evaluator)
    return
  if values.families or values.training_split:
    training_process.enter_training_process()  # their lists import TensorFlow
  problems = list(training_graphs.problems(values))
  training_process.enter_training_process()
  _train(values, problems)


def _train(
  values: flags.FlagValues,
  problems: Sequence[core.Problem],
  **options: Any,
) -> None:
  from tfplace.learned.train import session  # imports TensorFlow

  request = session.Request(**training_flags.requested(values))
  trainer = session.open_trainer(problems, request, **options)
  if trainer.done:
    print(f"going on after step {trainer.done} of {trainer.total}")
  screen = console.Console(stderr=True)
  with progress.Progress(
    progress.TextColumn("{task.description}"),
    progress.BarColumn(),
    progress.MofNCompleteColumn(),
    progress.TimeRemainingColumn(),
    console=screen,
    disable=not screen.is_terminal,
  ) as bar:
    line = bar.add_task("Training", total=trainer.total, completed=trainer.done)

    def show(report: session.Report) -> None:
      phase = "Imitating" if report.step is None else "Improving"
      best = f"{report.best_us:.0f} us"
      bar.update(
        line, completed=report.done, description=f"{phase} (best {best})"
      )

    trainer.run(show)
  session.finish(trainer, request)
  _print_table(trainer, values.reward == "simulate")


def _print_table(trainer: "Trainer", is_simulated: bool) -> None:
  """Per graph: the start, the best found, and, of what is simulated, the bound
  (that of measured costs holds for no measured step)."""
  rows = table.Table("graph", "cluster", "decisions", "start", "best")
  if is_simulated:
    rows.add_column("best / bound")
  bound_us: dict[int, float] = {}  # by problem, which has several tasks
  for task in trainer.tasks:
    problem = task.decisions.problem
    cells = [
      problem.graph.name,
      problem.cluster.name,
      str(task.decisions.num_decisions),
      f"{task.baseline_us:.1f} us",
      f"{task.best_us:.1f} us",
    ]
    if is_simulated:
      if id(problem) not in bound_us:
        with cli.showing_progress(f"Bounding {problem.graph.name}"):
          bound_us[id(problem)] = bounds.tightened(problem).lower_bound_us
      cells.append(f"{task.best_us / bound_us[id(problem)]:.4f}")
    rows.add_row(*cells)
  console.Console().print(rows)


def run(argv: Sequence[str] | None = None) -> int:
  """The console script; returns its exit code."""
  return cli.run_command(
    "tfplace-train", _DESCRIPTION, training_flags.define, _main, argv
  )


if __name__ == "__main__":
  sys.exit(run())
