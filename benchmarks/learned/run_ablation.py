"""Which parts of the pre-training earn their place: each left out, by seeds.

Every arm trains a policy from random weights, with as many iterations on the
same graphs; what counts is how good its draws are on the published rows, none
of which it trains on: the best at six sizes of merged clusters, over the best
one-shot placer. Writes JSON and a table in Markdown. Needs the extra `train`.

  python -m benchmarks.learned.run_ablation            # an hour of a core
  python -m benchmarks.learned.run_ablation --arms='shipped,all draws teach' \\
      --seeds=0
"""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping

from absl import app, flags

from benchmarks.learned import ablation_report, samples
from benchmarks.learned.ablation_training import ARMS, policy_dir
from benchmarks.lib import gpu_flags, saved_rows
from tfplace.core import Problem
from tfplace.learned import policies, training_process
from tfplace.learned.policies import Policy
from tfplace.simulate import Simulator

HERE = pathlib.Path(__file__).parents[1]
_ARMS = flags.DEFINE_list("arms", list(ARMS), "What to train.")
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds.")
_ITERATIONS = flags.DEFINE_integer("iterations", 2500, "Of each policy.", 1)
_MEMBERS = flags.DEFINE_integer(
  "members", 8, "Training members of each of the families nmt and ptb.", 1
)
_DEVICES = flags.DEFINE_list("devices", ["2", "4", "8"], "GPUs to train on.")
_WORK = flags.DEFINE_string(
  "work_dir", ".ablation", "Where graphs, checkpoints and policies are."
)
_RESULT = flags.DEFINE_string(
  "result", str(HERE / "results" / "ablation.json"), "JSON file to write."
)


def main(argv: list[str]) -> None:
  del argv
  training_process.check_packages()
  unknown = sorted(set(_ARMS.value) - set(ARMS))
  if unknown:
    raise app.UsageError(f"--arms: {unknown[0]!r} is none of {', '.join(ARMS)}")
  about = {
    "arms": _ARMS.value,
    "seeds": _SEEDS.value,
    "iterations": _ITERATIONS.value,
    "members": _MEMBERS.value,
    "clusters": [
      f"{gpu_flags.GPU.value}x{number}" for number in _DEVICES.value
    ],
  }
  saved = saved_rows.SavedRows(_RESULT.value, about)
  subprocess.run(
    [
      *(sys.executable, "-m", "benchmarks.learned.ablation_training"),
      json.dumps({**about, "work_dir": _WORK.value}),
    ],
    check=True,
    env={**os.environ, training_process.SWITCH: "1"},
  )
  loaded = {
    f"{arm}/{seed}": policies.load_policy(policy_dir(_WORK.value, arm, seed))
    for arm in _ARMS.value
    for seed in _SEEDS.value
  }
  rows = {
    row.label: saved.row(
      f"{row.label}/{gpu_flags.cluster_of(row)}",
      lambda row=row: measure(gpu_flags.problem_of(row), loaded),
    )
    for row in gpu_flags.rows()
  }
  report = (
    "\n".join(ablation_report.table(rows, _ARMS.value, _SEEDS.value)) + "\n"
  )
  path = pathlib.Path(_RESULT.value).with_suffix(".md")
  path.write_text(report, encoding="utf-8")
  print(report)


def measure(problem: Problem, policies: Mapping[str, Policy]) -> dict:
  """Of one row: the best step time of each policy's draws over all sizes, of
  random ones, and of the one-shot placers, us; None where nothing fits."""
  simulator = Simulator(problem)
  found = samples.at_each_size(problem, simulator, list(policies.values()))
  each = zip(*(size["policy_us"] for size in found), strict=True)
  return {
    "ops": problem.graph.num_ops,
    "one_shot_us": samples.one_shot(problem, simulator),
    "random_us": least([size["random_us"] for size in found]),
    "policy_us": dict(zip(policies, map(least, each), strict=True)),
  }


def least(times_us: list[float | None]) -> float | None:
  """Of those that fit."""
  return min((time for time in times_us if time is not None), default=None)


if __name__ == "__main__":
  app.run(main)
