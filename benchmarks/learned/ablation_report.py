"""Sums up what `run_ablation.py` has measured."""

import math
import statistics
from collections.abc import Mapping

from benchmarks.learned.ablation_training import SHIPPED


def table(
  rows: Mapping[str, dict], arms: list[str], seeds: list[str]
) -> list[str]:
  """Markdown: per arm geometric means over the rows, by seed and of all."""
  lines = [
    f"| trained | {' | '.join(f'seed {seed}' for seed in seeds)} | mean |"
    f" against {SHIPPED} |",
    "| --- " * (len(seeds) + 3) + "|",
  ]
  means = {
    arm: [ratio(rows, f"{arm}/{seed}") for seed in seeds] for arm in arms
  }
  for arm in arms:
    cells = [f"{mean:.3f}" for mean in means[arm]]
    cells.append(f"{statistics.geometric_mean(means[arm]):.3f}")
    cells.append(against(means, arm))
    lines.append(f"| {arm} | {' | '.join(cells)} |")
  logs = [
    math.log(row["random_us"] / row["one_shot_us"])
    for row in rows.values()
    if row["random_us"]
  ]
  blank = " |" * len(seeds)
  lines.append(
    f"| *random draws* |{blank} {math.exp(statistics.fmean(logs)):.3f} | |"
  )
  return lines


def ratio(rows: Mapping[str, dict], policy: str) -> float:
  """Geometric mean over the rows of the best draw over the one-shot placers;
  on a row where nothing fits the policy counts as twice as slow as those."""
  ratios = [
    (row["policy_us"][policy] or 2 * row["one_shot_us"]) / row["one_shot_us"]
    for row in rows.values()
  ]
  return statistics.geometric_mean(ratios)


def against(means: Mapping[str, list[float]], arm: str) -> str:
  """The ratios to what is shipped, seed by seed."""
  if arm == SHIPPED or SHIPPED not in means:
    return ""
  pairs = zip(means[arm], means[SHIPPED], strict=True)
  return ", ".join(f"{mine / shipped:.3f}" for mine, shipped in pairs)
