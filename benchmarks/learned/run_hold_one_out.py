"""GDP's and SGDP's own experiments: a family of models that was never seen.

For each family of the published rows a policy is trained, from random weights,
on all other families, and places this one: as it is (zero-shot), and fine-tuned
on the graph for 50 iterations. Beside it GDP and the hierarchical policy (HDP)
with as many placements and no training before, and the human expert's rules
(GDP, arXiv 1910.01578). One more policy is trained on all rows at once: one
graph against batch training. `--variants` are SGDP's ablations: the same with
parts of the network left out. Writes JSON, a picture, and tables in Markdown.
What was cut off goes on. Needs the extra `train`.

  python -m benchmarks.learned.run_hold_one_out --rows='2-layer|b32' \\
      --pretraining=100
  python -m benchmarks.learned.run_hold_one_out                # nights
"""

import pathlib
from collections.abc import Sequence
from typing import Any

from absl import flags

from benchmarks.learned import hold_one_out_report, policy_jobs
from benchmarks.learned.hold_one_out_report import (
  BATCH,
  DEFAULT,
  HDP,
  SAMPLES,
  SCRATCH,
  TUNED,
)
from benchmarks.lib import command, one_gpu, published, report, saved_rows
from benchmarks.lib.command import Options
from tfplace.bin import cli
from tfplace.learned import training_process

TUNING = 50  # iterations of fine-tuning: GDP claims fewer
# Settings of the network that differ. Without attention there is no
# superposition, which multiplies the inputs of its dense layers.
VARIANTS: dict[str, dict[str, int]] = {
  DEFAULT: {},
  "no superposition": {"superposition": False},
  "no attention": {"attention_layers": 0},
  "1 attention layer": {"attention_layers": 1},
  "1 round of messages": {"sage_layers": 1},
  "segments of 8": {"segment": 8},
}
# For a policy of many graphs, as the one that ships was trained.
PRETRAINING = {"elite": 0.25, "learning_rate": 5e-4}
OPTIONS = Options("run_hold_one_out", __doc__, one_gpu.VALUES)
_VARIANTS = OPTIONS.add("variants", list(VARIANTS), "Variants of the network.")
_DECISIONS = OPTIONS.add("decisions", 48, "Groups per graph.", 2)
_PRETRAINING = OPTIONS.add(
  "pretraining", 5000, "Iterations on the other families.", 1
)
_SEEDS = OPTIONS.add("seeds", ["0", "1", "2"], "Seeds.")
_WORK = OPTIONS.add(
  "work_dir", ".papers", "Where graphs, checkpoints and policies are."
)
_OUT = OPTIONS.out("hold_one_out.json")


def main(_: flags.FlagValues) -> None:
  training_process.check_packages()
  command.check_names("variants", _VARIANTS.value, VARIANTS)
  rows = one_gpu.rows()
  families = {row.model for row in rows}
  if len(families) < 2:
    raise cli.UsageError(
      f"--rows={one_gpu.ROWS.value!r} leaves no family to train on:"
      f" {', '.join(families)} is the only one"
    )
  about = {
    "gpu": one_gpu.GPU.value,
    "pattern": one_gpu.ROWS.value,
    "decisions": _DECISIONS.value,
    "pretraining": _PRETRAINING.value,
  }
  saved = saved_rows.SavedRows(_OUT.value, about)
  jobs = policy_jobs.Jobs(_WORK.value, saved)
  found = run_rows(rows, jobs)
  report.write(_OUT.value, "\n".join(hold_one_out_report.tables(found, about)))
  hold_one_out_report.draw(found, pathlib.Path(_OUT.value).with_suffix(".png"))


def label(row: published.Row) -> str:
  return f"{row.label}/{one_gpu.cluster_of(row)}"


def run_rows(
  rows: Sequence[published.Row], jobs: policy_jobs.Jobs
) -> dict[str, dict]:
  """Label of a row -> its facts, and the runs by arm."""
  facts = {label(row): jobs.graph(row, label(row))[1] for row in rows}
  trained = jobs.run(trainings(rows, jobs))
  wanted = {}
  for row in rows:
    wanted.update(placements(row, jobs))
  runs = policy_jobs.by_arm(jobs.run(wanted))
  for seed in _SEEDS.value:
    curves = trained[policy_key("nothing", DEFAULT, seed)]["curves"]
    for row, curve in zip(rows, curves, strict=True):
      runs[label(row)].setdefault(BATCH, []).append(curve)
  return {
    name: {"graph": facts[name], "runs": mine} for name, mine in runs.items()
  }


def trainings(
  rows: Sequence[published.Row], jobs: policy_jobs.Jobs
) -> dict[str, dict]:
  """Policies of all families but one; and one of all rows, which trains on each
  for as many iterations as one from scratch."""
  found = {}
  for seed in _SEEDS.value:
    for family in dict.fromkeys(row.model for row in rows):
      others = [row for row in rows if row.model != family]
      for variant in _VARIANTS.value:
        found[policy_key(family, variant, seed)] = {
          **common(rows[0], seed),
          "settings": {**PRETRAINING, "network": VARIANTS[variant]},
          "graphs": graphs(others, jobs),
          "iterations": _PRETRAINING.value,
        }
    found[policy_key("nothing", DEFAULT, seed)] = {
      **common(rows[0], seed),
      "graphs": graphs(rows, jobs),
      "iterations": TUNING * len(rows),
    }
  return found


def placements(row: published.Row, jobs: policy_jobs.Jobs) -> dict[str, dict]:
  """All ways to place a row of a family that was held out."""
  path, _ = jobs.graph(row, label(row))
  found = {}
  for seed in _SEEDS.value:
    job = {**common(row, seed), "graph": path}
    found[f"{label(row)}/{SCRATCH}/{seed}"] = job
    found[f"{label(row)}/{HDP}/{seed}"] = {
      **job,
      "strategy": "hierarchical_merged",
    }
    for variant in _VARIANTS.value:
      policy = str(jobs.policy(policy_key(row.model, variant, seed)))
      arm = hold_one_out_report.arm(variant, TUNED)
      found[f"{label(row)}/{arm}/{seed}"] = {**job, "init_from": policy}
  return found


def policy_key(held_out: str, variant: str, seed: str) -> str:
  return f"{held_out} held out/{variant}/policy/{seed}"


def graphs(
  rows: Sequence[published.Row], jobs: policy_jobs.Jobs
) -> list[tuple[str, str]]:
  """(File, cluster) of each row."""
  return [
    (jobs.graph(row, label(row))[0], one_gpu.cluster_of(row)) for row in rows
  ]


def common(row: published.Row, seed: str) -> dict[str, Any]:
  """Returns the settings that all jobs share."""
  return {
    "cluster": one_gpu.cluster_of(row),
    "strategy": "gdp_merged",
    "decisions": _DECISIONS.value,
    "evaluations": TUNING * SAMPLES,
    "seed": int(seed),
  }


if __name__ == "__main__":
  OPTIONS.run(main)
