"""Placeto's own experiments (arXiv 1906.08879): placing graphs it has not seen.

Of each synthetic family some members train a policy of Placeto and one of the
RNN-based placer, from random weights; others, which neither has seen, are
placed by them as they are (zero-shot), by policies that are trained on the
graph itself, and at random. Writes JSON, the CDFs of the step times as a
picture, and tables in Markdown: the step times, the placements needed, and
Placeto without parts of it (`--variants`). What was cut off goes on. Needs the
extra `train`.

  python -m benchmarks.learned.run_placeto --members=3 --tests=2 \\
      --pretraining=30 --seeds=0
  python -m benchmarks.learned.run_placeto                     # nights
"""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from benchmarks.learned import placeto_report, policy_jobs
from benchmarks.learned.placeto_report import (
  DEFAULT,
  PLACETO,
  RANDOM,
  RNN,
  TRAINED,
  ZERO_SHOT,
)
from benchmarks.lib import command, one_gpu, published, report, saved_rows
from benchmarks.lib.command import Options
from tfplace.learned import training_process
from tfplace.models import families

# Settings of the method and the network that differ from our Placeto.
VARIANTS: dict[str, dict[str, Any]] = {
  DEFAULT: {},
  "no messages": {"network": {"rounds": 0}},
  "2 rounds of messages": {"network": {"rounds": 2}},
  "reward at the end only": {"intermediate_rewards": False},
  "2 visits of each group": {"visits": 2},
}
# For a policy of many graphs (README.md says what they do there).
PRETRAINING = {
  PLACETO: {"entropy": 0.1, "learning_rate": 5e-4},
  RNN: {"elite": 0.25, "entropy": 0.03, "learning_rate": 1e-3},
}
OPTIONS = Options("run_placeto", __doc__, one_gpu.VALUES)
_FAMILIES = OPTIONS.add("families", list(families.FAMILIES), "Families.")
_VARIANTS = OPTIONS.add("variants", list(VARIANTS), "Variants of Placeto.")
_MEMBERS = OPTIONS.add(
  "members", 24, "Most members of a family to train on.", 1
)
_TESTS = OPTIONS.add("tests", 8, "Members of a family to test on.", 1, 8)
_DECISIONS = OPTIONS.add("decisions", 24, "Groups per graph.", 2)
_PRETRAINING = OPTIONS.add(
  "pretraining", 5000, "Iterations of a family's policies.", 1
)
_EVALUATIONS = OPTIONS.add(
  "evaluations", 5000, "Placements for training on a graph itself.", 1
)
_ZERO_SHOT = OPTIONS.add(
  "zero_shot", 300, "Placements for a policy that is not trained further.", 1
)
_SEEDS = OPTIONS.add("seeds", ["0", "1", "2"], "Seeds.")
_WORK = OPTIONS.add(
  "work_dir", ".papers", "Where graphs, checkpoints and policies are."
)
_OUT = OPTIONS.out("placeto.json")


def main(_: flags.FlagValues) -> None:
  training_process.check_packages()
  command.check_names("variants", _VARIANTS.value, VARIANTS)
  about = {
    "gpu": one_gpu.GPU.value,
    "members": _MEMBERS.value,
    "decisions": _DECISIONS.value,
    "pretraining": _PRETRAINING.value,
    "evaluations": _EVALUATIONS.value,
    "zero_shot": _ZERO_SHOT.value,
  }
  saved = saved_rows.SavedRows(_OUT.value, about)
  jobs = policy_jobs.Jobs(_WORK.value, saved)
  found = {}
  for family in _FAMILIES.value:
    found[family] = run_family(family, jobs)
  report.write(_OUT.value, "\n".join(placeto_report.tables(found, about)))
  placeto_report.draw(found, pathlib.Path(_OUT.value).with_suffix(".png"))


def run_family(family: str, jobs: policy_jobs.Jobs) -> dict[str, dict]:
  """Label of a test member -> its facts, and the runs by arm."""
  train, test = (
    one_gpu.members_of(family, indices)
    for indices in one_gpu.unseen_split(family)
  )
  train_policies(family, train[: _MEMBERS.value], jobs)
  test = test[: _TESTS.value]
  graphs = {row.label: jobs.graph(row, row.label) for row in test}
  wanted = {}
  for row in test:
    path, _ = graphs[row.label]
    wanted.update(placements(family, row, path, jobs))
  runs = policy_jobs.by_arm(jobs.run(wanted))
  return {
    name: {"graph": facts, "runs": runs[name]}
    for name, (_, facts) in graphs.items()
  }


def train_policies(
  family: str, seen: Sequence[published.Row], jobs: policy_jobs.Jobs
) -> None:
  """Trains each policy of a family on all the members that it may see."""
  graphs = [
    (jobs.graph(row, row.label)[0], one_gpu.cluster_of(row)) for row in seen
  ]
  jobs.run(
    {
      policy_key(family, strategy, variant, seed): {
        **common(seen[0], strategy, variant, seed),
        "settings": {**PRETRAINING[strategy], **VARIANTS[variant]},
        "graphs": graphs,
        "iterations": _PRETRAINING.value,
      }
      for strategy, variant, seed in policies()
    }
  )


def placements(
  family: str, row: published.Row, path: str, jobs: policy_jobs.Jobs
) -> dict[str, dict]:
  """All ways to place a graph that no policy of the family has seen."""
  found = {}
  for strategy, variant, seed in policies():
    job = {**common(row, strategy, variant, seed), "graph": path}
    arm = placeto_report.arm(strategy, variant, TRAINED)
    found[f"{row.label}/{arm}/{seed}"] = {
      **job,
      "evaluations": _EVALUATIONS.value,
    }
    arm = placeto_report.arm(strategy, variant, ZERO_SHOT)
    policy = jobs.policy(policy_key(family, strategy, variant, seed))
    found[f"{row.label}/{arm}/{seed}"] = {
      **job,
      "strategy": f"{strategy}_zero_shot",
      "settings": {},
      "policy": str(policy),
      "evaluations": _ZERO_SHOT.value,
    }
  for seed in _SEEDS.value:
    found[f"{row.label}/{RANDOM}/{seed}"] = {
      **common(row, "random_gpus", DEFAULT, seed),
      "graph": path,
      "evaluations": _EVALUATIONS.value,
    }
  return found


def policies() -> Iterator[tuple[str, str, str]]:
  """(strategy, variant, seed) of each policy."""
  for seed in _SEEDS.value:
    for variant in _VARIANTS.value:
      yield PLACETO, variant, seed
    yield RNN, DEFAULT, seed


def policy_key(family: str, strategy: str, variant: str, seed: str) -> str:
  return f"{family}/{strategy}, {variant}/policy/{seed}"


def common(
  row: published.Row, strategy: str, variant: str, seed: str
) -> dict[str, Any]:
  """Returns the settings that the jobs of a policy share."""
  return {
    "cluster": one_gpu.cluster_of(row),
    "strategy": strategy,
    "settings": VARIANTS[variant],
    "decisions": _DECISIONS.value,
    "seed": int(seed),
  }


if __name__ == "__main__":
  OPTIONS.run(main)
