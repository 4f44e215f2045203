"""Trains the policies of `run_ablation.py`; a process of its own, with Keras 2.

Its one argument is the job, as JSON. Each policy is trained from checkpoints,
and exported when it is done: what was cut off goes on.
"""

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

COARSE, FINE = (12, 24, 48, 128), (64, 256)
SHIPPED, LAST = "shipped", "last weights"


@dataclasses.dataclass(frozen=True)
class Arm:
  """How a policy is trained; by default as the shipped one.

  Attributes:
    sizes: merged clusters of the tasks.
    elite: share of the draws that teach.
    in_order: every pass takes the tasks in the same order, those of one graph
      one after the other.
  """

  sizes: Sequence[int] = COARSE
  elite: float = 0.25
  in_order: bool = False


ARMS = {
  SHIPPED: Arm(),
  "all draws teach": Arm(elite=1.0),
  "tasks in one order": Arm(in_order=True),
  "fine clusters": Arm(FINE),
  LAST: Arm(),  # not the average: exported with the first one
}


def policy_dir(work_dir: str, arm: str, seed: str) -> pathlib.Path:
  """Where a policy is exported to."""
  return pathlib.Path(work_dir) / "policies" / f"{arm} {seed}"


def train_all(job: dict[str, Any]) -> None:
  """Trains what is missing."""
  trained = [arm for arm in job["arms"] if arm != LAST]
  if LAST in job["arms"] and SHIPPED not in trained:
    trained.append(SHIPPED)
  wanted = [
    (arm, seed)
    for seed in job["seeds"]
    for arm in trained
    if not policy_dir(job["work_dir"], arm, seed).exists()
  ]
  if not wanted:
    return
  problems = load_problems(job)
  tasks: dict[int, list] = {}
  for arm, seed in wanted:
    for size in ARMS[arm].sizes:
      if size not in tasks:
        tasks[size] = make_tasks(problems, size, job["work_dir"])
    mine = [tasks[size] for size in ARMS[arm].sizes]
    # Sizes of one graph are neighbours, as tfplace-train has them.
    train([task for group in zip(*mine, strict=True) for task in group],
          arm, seed, job)  # fmt: skip


def load_problems(job: dict[str, Any]) -> list:
  """Every graph on every cluster, as tfplace-train has them."""
  from absl import flags

  from tfplace.bin import training_graphs

  values = flags.FlagValues()
  training_graphs.define(values)
  flags.DEFINE_string("checkpoint_dir", None, "Graphs.", flag_values=values)
  given = ["--families=nmt,ptb", "--training_split"]
  given += [
    f"--members={job['members']}",
    f"--checkpoint_dir={job['work_dir']}",
  ]
  values(["ablation", *given, f"--cluster={','.join(job['clusters'])}"])
  return list(training_graphs.problems(values))


def make_tasks(problems: Sequence[Any], size: int, work_dir: str) -> list:
  """A task of each problem at one size."""
  from tfplace.learned.decisions import group_decisions
  from tfplace.learned.train.demonstrations import DemonstrationConfig
  from tfplace.learned.train.tasks import make_task
  from tfplace.simulate import Simulator

  searched = DemonstrationConfig(folder=os.path.join(work_dir, "teachers"))
  return [
    make_task(group_decisions(problem, size), Simulator(problem), searched)
    for problem in problems
  ]


def train(
  tasks: Sequence[Any], arm: str, seed: str, job: dict[str, Any]
) -> None:
  """One policy, on copies of the tasks: they keep the best that was found."""
  from tfplace.learned import export
  from tfplace.learned.gdp.network import exportable
  from tfplace.learned.train import config, trainer

  class InOrder(trainer.Trainer):
    def _graph(self, number: int) -> int:
      return number % len(self.tasks)

  target = policy_dir(job["work_dir"], arm, seed)
  request = config.Request(
    checkpoint_dir=os.path.join(job["work_dir"], f"{arm} {seed}"),
    export_dir=str(target),
    iterations=job["iterations"],
    imitation_steps=0,
    checkpoint_every=100,
    learning_rate=5e-4,
    seed=int(seed),
    elite=ARMS[arm].elite,
  )
  kind = InOrder if ARMS[arm].in_order else trainer.Trainer
  run = kind(
    [dataclasses.replace(task) for task in tasks],
    request.config(),
    checkpoint_dir=request.checkpoint_dir,
  )
  run.run()
  if arm == SHIPPED:
    last = exportable(run.learner.policy)
    export.export_policy(last, policy_dir(job["work_dir"], LAST, seed))
  export.export_policy(run.learner.exportable(), target)
  print(f"{arm}, seed {seed}: trained", flush=True)


def main() -> None:
  from tfplace.learned import training_process

  training_process.enter_training_process()
  train_all(json.loads(sys.argv[1]))


if __name__ == "__main__":
  main()
