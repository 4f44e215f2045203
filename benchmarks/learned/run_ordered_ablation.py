"""Ablation of the policy `ordered`: what each part of it is worth.

Policies are trained from random weights on the same steps for the same minutes:
by imitation, by PPO, by both (half of the time each), and by both with nothing
known of the schedule of the placement that they change. Then `auto` places
steps of the development set with each of them, without a policy, and with
random changes instead, at equal seconds on one core. Needs the extra `train`.

  python -m benchmarks.learned.run_ordered_ablation --work_dir=W
"""

import contextlib
import dataclasses
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from absl import flags

from benchmarks.learned import run_ordered
from benchmarks.lib import command, report, saved_rows
from benchmarks.lib.command import Options
from benchmarks.models import graph_sets
from tfplace.bin import cli
from tfplace.core import Problem
from tfplace.core.budget import Budget
from tfplace.learned.ordered.placer import OrderedProposer
from tfplace.placers import registry
from tfplace.placers.auto import AutoPlacer
from tfplace.placers.place import warm_up
from tfplace.plan import graph_cache
from tfplace.simulate import Simulator

IMITATE = ("--imitation_steps=1000000",)
PPO = ("--imitation_steps=0", "--iterations=1000000")
# Supervised steps go on beside PPO in a run that began with them.
PPO_AFTER = ("--imitation_steps=1", "--iterations=1000000")
HIDDEN = ("--hide_schedule",)
HIDING = "both without schedule"
# Stages of training, of equal minutes.
TRAINED: Mapping[str, Sequence[Sequence[str]]] = {
  "imitation": (IMITATE,),
  "PPO": (PPO,),
  "both": (IMITATE, PPO_AFTER),
  HIDING: ((*IMITATE, *HIDDEN), (*PPO_AFTER, *HIDDEN)),
}
RANDOM = "random changes"
ARMS = ("without", RANDOM, *TRAINED)

OPTIONS = Options("run_ordered_ablation", __doc__)
OPTIONS.add("work_dir", None, "Checkpoints and policies.")
OPTIONS.add("minutes", 10.0, "Minutes of each training.")
OPTIONS.add("train_rows", "", "Pattern of the steps to train on; all if none.")
OPTIONS.add(
  "rows", "llama|convnext|diffusion|palm|swin", "Pattern of the steps to place."
)
OPTIONS.add("budget_s", 10.0, "Seconds of auto.")
OPTIONS.add("seeds", ["0", "1"], "Seeds of the searches.")
OPTIONS.add("arms", [], f"Some of {', '.join(ARMS)}; all if none.")
OPTIONS.add("train_only", False, "Trains and places nothing.")
OPTIONS.out("ordered_ablation.json")


def main(values: flags.FlagValues) -> None:
  """Trains and measures what is missing; saves after each row."""
  if not values.work_dir:
    raise cli.UsageError("--work_dir is missing")
  command.check_names("arms", values.arms, ARMS)
  work = pathlib.Path(values.work_dir)
  # Gains are over `without`.
  wanted = tuple(dict.fromkeys(("without", *(values.arms or ARMS))))
  for arm in TRAINED:
    if arm in wanted:
      _train(arm, work, values)
  if values.train_only:
    return
  cli.load_tensorflow()
  saved_rows.pin_to_cores(1)
  settings = {
    "minutes": values.minutes,
    "train_rows": values.train_rows,
    "budget_s": values.budget_s,
  }
  saved = saved_rows.SavedRows(values.out, settings)
  found: dict[str, dict[str, list[float]]] = {}
  for row in graph_sets.DEVELOPMENT:
    if not re.search(values.rows, row.label):
      continue
    problem = row.problem(graph_cache.default_directory())
    warm_up("auto", problem.cluster.has_message_costs)
    found[row.label] = {
      arm: [
        saved.row(
          f"{row.label}/{arm}/{seed}",
          lambda p=problem, a=arm, s=int(seed): placed(p, a, s, work, values),
        )["step_time_us"]
        for seed in values.seeds
      ]
      for arm in wanted
    }
  report.write(values.out, table(found, wanted))


def _train(arm: str, work: pathlib.Path, values: flags.FlagValues) -> None:
  """Runs the stages of an arm that have not exported a policy yet."""
  before: list[str] = []
  stages = TRAINED[arm]
  for number, options in enumerate(stages):
    folder = _folder(work, arm, number)
    if not (folder / "done").exists():
      # All arms change the same placements.
      bases, mine = work / "bases", folder / "checkpoints" / "teachers"
      if bases.exists():
        shutil.copytree(bases, mine, dirs_exist_ok=True)
      subprocess.run(
        [
          *(sys.executable, "-m", "benchmarks.learned.run_ordered"),
          *(f"--work_dir={folder}", f"--rows={values.train_rows}"),
          *(f"--minutes={values.minutes / len(stages)}", *options, *before),
        ],
        check=True,
      )
      shutil.copytree(mine, bases, dirs_exist_ok=True)
      (folder / "done").touch()
    before = [f"--init_from={folder / 'policy'}"]


def _folder(work: pathlib.Path, arm: str, stage: int) -> pathlib.Path:
  return work / f"{arm.replace(' ', '_')}_{stage}"


def policy_of(arm: str, work: pathlib.Path) -> str:
  """Folder of the policy of an arm."""
  return str(_folder(work, arm, len(TRAINED[arm]) - 1) / "policy")


def placed(
  problem: Problem,
  arm: str,
  seed: int,
  work: pathlib.Path,
  values: flags.FlagValues,
) -> dict[str, Any]:
  """Result of `auto` with what an arm changes."""
  policy = policy_of(arm, work) if arm in TRAINED else None
  learned = () if arm == "without" else registry.LEARNED_IN_AUTO
  # A new one: what an arm has computed of it is not the next one's to use.
  fresh = Problem(dataclasses.replace(problem.graph), problem.cluster)
  with contextlib.ExitStack() as stack:
    if arm == RANDOM:
      stack.enter_context(random_changes())
    if arm == HIDING:
      stack.enter_context(run_ordered.hidden_schedule())
    result = AutoPlacer(learned, policy).place(
      fresh, Simulator(fresh), Budget(values.budget_s), seed
    )
  return {
    "step_time_us": result.evaluation.step_time_us,
    "evaluations": result.evaluations,
  }


@contextlib.contextmanager
def random_changes() -> Iterator[None]:
  """Replaces policies by random changes of the same groups."""

  def proposer(_: str, __: str | None, problem: Problem) -> OrderedProposer:
    return OrderedProposer(problem, None)

  with mock.patch.object(registry, "open_proposer", proposer):
    yield


def table(
  found: Mapping[str, Mapping[str, Sequence[float]]], arms: Sequence[str]
) -> str:
  """Markdown: medians in ms, and gains over `without`."""
  heads = ["graph", *(f"{arm}, ms" for arm in arms)]
  lines, gains = [], {arm: [] for arm in arms}
  for label, row in found.items():
    ms = {arm: statistics.median(row[arm]) / 1e3 for arm in arms}
    for arm in arms:
      gains[arm].append(ms["without"] / ms[arm])
    lines.append([label, *(f"{ms[arm]:.1f}" for arm in arms)])
  means = [f"{report.geometric_mean(gains[arm]):.3f}" for arm in arms]
  return report.markdown(heads, [*lines, ["*gain*", *means]])


if __name__ == "__main__":
  OPTIONS.run(main)
