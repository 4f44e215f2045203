"""What a policy's draws are worth on graphs that it was not trained on.

The most probable placement and 16 draws at each of several sizes of merged
clusters, the best of them over the best one-shot placer's step time; the same
with half of the draws hot, as the placer `gdp` draws them; and as many random
samples, each cluster on any GPU: what the clusters alone are worth. On the
published rows; writes JSON and a table in Markdown.

  python -m benchmarks.learned.run_zero_shot  # five minutes of a core
  python -m benchmarks.learned.run_zero_shot --gpu=h100 --rows='2-layer'
"""

import math
import pathlib

import numpy as np
from absl import app, flags

from benchmarks.learned import samples
from benchmarks.lib import gpu_flags, saved_rows
from tfplace.core import Problem
from tfplace.learned import policies
from tfplace.learned.gdp.placer import GdpPlacer
from tfplace.learned.policies import Policy
from tfplace.simulate import Simulator

HERE = pathlib.Path(__file__).parents[1]
SHOWN = 24  # the size whose most probable placement the table has
ARMS = ("policy_us", "half_hot_us", "random_us")
_POLICY = flags.DEFINE_string(
  "policy", None, "Directory of an exported policy; the shipped one if none."
)
_RESULT = flags.DEFINE_string(
  "result", str(HERE / "results" / "zero_shot.json"), "JSON file to write."
)


def main(argv: list[str]) -> None:
  del argv
  rows = gpu_flags.rows()
  saved = saved_rows.SavedRows(
    _RESULT.value,
    {"gpu": gpu_flags.GPU.value, "policy": _POLICY.value or "shipped"},
  )
  policy = policies.load_placers_policy("gdp", _POLICY.value)
  found = {}
  for row in rows:
    cluster = gpu_flags.cluster_of(row)
    found[f"{row.label} ({cluster})"] = saved.row(
      f"{row.label}/{cluster}",
      lambda row=row: measure(gpu_flags.problem_of(row), policy),
    )
  report = "\n".join(table(found)) + "\n"
  path = pathlib.Path(_RESULT.value).with_suffix(".md")
  path.write_text(report, encoding="utf-8")
  print(report)


def measure(problem: Problem, policy: Policy) -> dict:
  """Of one row: by size, step times of the policy's draws and random ones."""
  simulator = Simulator(problem)
  arms = (1.0,), GdpPlacer.temperatures
  return {
    "ops": problem.graph.num_ops,
    "one_shot_us": samples.one_shot(problem, simulator),
    "sizes": {
      str(found["size"]): of_size(found)
      for found in samples.at_each_size(problem, simulator, [policy], arms)
    },
  }


def of_size(found: dict) -> dict:
  """Of one size: the step time of the most probable placement and of `ARMS`."""
  best = [*found["policy_us"], found["random_us"]]
  return {
    "first_us": found["first_us"][0],
    **dict(zip(ARMS, best, strict=True)),
  }


def table(found: dict[str, dict]) -> list[str]:
  """Markdown: ms, and ratios to the best one-shot placer."""
  lines = [
    "| model | ops | one-shot ms | best of the policy's draws | half of them"
    f" hot | of random draws | most probable at {SHOWN} |",
    "| --- | --- | --- | --- | --- | --- | --- |",
  ]
  ratios: list[list[float | None]] = []
  for label, row in found.items():
    best = [
      min((s[arm] for s in row["sizes"].values() if s[arm]), default=None)
      for arm in ARMS
    ]
    values = [*best, row["sizes"][str(SHOWN)]["first_us"]]
    ratios.append([v and v / row["one_shot_us"] for v in values])
    shown = " | ".join("OOM" if r is None else f"{r:.3f}" for r in ratios[-1])
    one_shot_ms = row["one_shot_us"] / 1e3
    lines.append(f"| {label} | {row['ops']:,} | {one_shot_ms:.1f} | {shown} |")
  means = [
    math.exp(np.mean([math.log(r) for r in column if r]))
    for column in zip(*ratios, strict=True)
  ]
  shown = " | ".join(f"{mean:.3f}" for mean in means)
  return [*lines, f"| *geometric mean* |  |  | {shown} |"]


if __name__ == "__main__":
  app.run(main)
