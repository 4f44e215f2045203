"""Compares samples of `gdp` with one-shot placers on graphs it does not know.

At each of several numbers of coarse groups: the most probable placement and 16
samples, the same with half of them at high temperature, as the placer `gdp`
takes them, and as many random placements on GPUs, each over the best one-shot
placer's step time. Writes JSON and a table in Markdown.

  python -m benchmarks.learned.run_zero_shot  # five minutes of a core
  python -m benchmarks.learned.run_zero_shot --gpu=h100 --rows='2-layer'
"""

from absl import flags

from benchmarks.learned import samples
from benchmarks.lib import one_gpu, report, saved_rows
from benchmarks.lib.command import Options
from tfplace.core import Problem
from tfplace.learned import policies
from tfplace.learned.gdp.placer import GdpPlacer
from tfplace.learned.policies import Policy
from tfplace.simulate import Simulator

SHOWN = 24  # the size whose most probable placement the table has
ARMS = ("policy_us", "half_hot_us", "random_us")
OPTIONS = Options("run_zero_shot", __doc__, one_gpu.VALUES)
_POLICY = OPTIONS.add(
  "policy", None, "Directory of an exported policy; the shipped one if none."
)
_OUT = OPTIONS.out("zero_shot.json")


def main(_: flags.FlagValues) -> None:
  rows = one_gpu.rows()
  saved = saved_rows.SavedRows(
    _OUT.value,
    {"gpu": one_gpu.GPU.value, "policy": _POLICY.value or "shipped"},
  )
  policy = policies.load_placers_policy("gdp", _POLICY.value)
  found = {}
  for row in rows:
    cluster = one_gpu.cluster_of(row)
    found[f"{row.label} ({cluster})"] = saved.row(
      f"{row.label}/{cluster}",
      lambda row=row: measure(one_gpu.problem_of(row), policy),
    )
  report.write(_OUT.value, table(found))


def measure(problem: Problem, policy: Policy) -> dict:
  """Step times of the policy's and of random samples of a row, by size."""
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
  """Step times of the most probable placement and of `ARMS` at one size."""
  best = [*found["policy_us"], found["random_us"]]
  return {
    "first_us": found["first_us"][0],
    **dict(zip(ARMS, best, strict=True)),
  }


def table(found: dict[str, dict]) -> str:
  """Markdown: ms, and ratios to the best one-shot placer."""
  heads = ["model", "ops", "one-shot ms", "best of the policy's samples"]
  heads += ["half of them hot", "of random samples"]
  lines = []
  ratios: list[list[float | None]] = []
  for label, row in found.items():
    best = [
      min((s[arm] for s in row["sizes"].values() if s[arm]), default=None)
      for arm in ARMS
    ]
    values = [*best, row["sizes"][str(SHOWN)]["first_us"]]
    ratios.append([v and v / row["one_shot_us"] for v in values])
    cells = ["OOM" if r is None else f"{r:.3f}" for r in ratios[-1]]
    one_shot_ms = f"{row['one_shot_us'] / 1e3:.1f}"
    lines.append([label, f"{row['ops']:,}", one_shot_ms, *cells])
  means = [
    f"{report.geometric_mean(filter(None, column)):.3f}"
    for column in zip(*ratios, strict=True)
  ]
  lines.append(["*geometric mean*", "", "", *means])
  return report.markdown([*heads, f"most probable at {SHOWN}"], lines)


if __name__ == "__main__":
  OPTIONS.run(main)
