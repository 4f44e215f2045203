"""What a policy's draws are worth on graphs that it was not trained on.

The most probable placement and 16 draws at each of several sizes of merged
clusters, the best of them over the best one-shot placer's step time; beside it
as many random draws, each cluster on any GPU: what the clusters alone are
worth. On the published rows; writes JSON and a table in Markdown.

  python benchmarks/zero_shot.py                        # five minutes of a core
  python benchmarks/zero_shot.py --gpu=h100 --rows='2-layer'
"""

import math
import pathlib
import sys

import numpy as np
from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import published
import saved_rows

from tfplace import cache, extraction
from tfplace.errors import TfplaceError
from tfplace.graph import Problem
from tfplace.graph.presets import cluster_preset
from tfplace.placers.base import Budget
from tfplace.placers.registry import get_placer
from tfplace.policies import exported, features, placer
from tfplace.policies.decisions import Decisions, group_decisions
from tfplace.policies.exported import Policy
from tfplace.simulate import Simulator

HERE = pathlib.Path(__file__).parent
ONE_SHOT = ("expert", "axes", "blocks", "m_topo", "m_etf", "heft")
SIZES = (12, 16, 24, 32, 48, 64)
SHOWN = 24  # the size whose most probable placement the table has
DRAWS = 16
_ROWS = flags.DEFINE_string("rows", "", "Pattern of the rows' labels.")
_GPU = flags.DEFINE_string("gpu", "p100", "GPU of the presets.")
_POLICY = flags.DEFINE_string(
  "policy", None, "Directory of an exported policy; the shipped one if none."
)
_CACHE = flags.DEFINE_string(
  "graph_cache_dir", cache.default_directory(), "Extracted graphs, or empty."
)
_RESULT = flags.DEFINE_string(
  "result", str(HERE / "results" / "zero_shot.json"), "JSON file to write."
)


def main(argv: list[str]) -> None:
  del argv
  rows = published.chosen(_ROWS.value, _GPU.value)
  saved = saved_rows.SavedRows(
    _RESULT.value, {"gpu": _GPU.value, "policy": _POLICY.value or "shipped"}
  )
  policy = exported.load_placers_policy("gdp", _POLICY.value, features.VERSION)
  found = {}
  for row in rows:
    cluster = row.cluster(_GPU.value)
    found[f"{row.label} ({cluster})"] = saved.row(
      f"{row.label}/{cluster}",
      lambda row=row, cluster=cluster: measure(
        Problem(graph_of(row, cluster), cluster_preset(cluster)), policy
      ),
    )
  report = "\n".join(table(found)) + "\n"
  path = pathlib.Path(_RESULT.value).with_suffix(".md")
  path.write_text(report, encoding="utf-8")
  print(report)


def graph_of(row: published.Row, cluster: str) -> object:
  return extraction.extract(
    row.model,
    cluster,
    batch_size=row.batch_size,
    sizes=row.sizes,
    cache_dir=_CACHE.value,
  )


def measure(problem: Problem, policy: Policy) -> dict:
  """Step times in microseconds: per size the policy's most probable placement
  (None where it does not fit), its best, and the best random one."""
  simulator = Simulator(problem)
  sizes = {}
  for size in SIZES:
    decisions = group_decisions(problem, size)
    logits = policy.logits(features.extract(decisions, axes=policy.axes))
    mine = step_times(simulator, decisions, logits)
    random = step_times(simulator, decisions, uniform(problem, decisions))
    sizes[str(size)] = {
      "first_us": known(mine[0]),
      "policy_us": known(mine.min()),
      "random_us": known(random.min()),
    }
  return {
    "ops": problem.graph.num_ops,
    "one_shot_us": one_shot(problem, simulator),
    "sizes": sizes,
  }


def uniform(problem: Problem, decisions: Decisions) -> np.ndarray:
  """[N, D] logits: any GPU, and a CPU where no GPU can run the cluster."""
  is_gpu = np.array([d.kind != "CPU" for d in problem.cluster.devices])
  some = decisions.allowed & is_gpu
  may = np.where(some.any(axis=1, keepdims=True), some, decisions.allowed)
  return np.where(may, 0.0, -1e9).astype(np.float32)


def step_times(
  simulator: Simulator, decisions: Decisions, logits: np.ndarray
) -> np.ndarray:
  """[1 + DRAWS] step times, infinite where a placement does not fit."""
  rng = np.random.default_rng(0)
  devices = placer.candidates(decisions, logits, DRAWS, rng)
  batch = simulator.run(np.stack(devices))
  return np.where(batch.feasible, batch.step_time_us, np.inf)


def one_shot(problem: Problem, simulator: Simulator) -> float:
  """Of the best one-shot placer; None fits nowhere on a published row."""
  found = []
  for name in ONE_SHOT:
    try:
      result = get_placer(name).place(problem, simulator, Budget(60.0), 0)
    except TfplaceError:
      continue
    found.append(result.evaluation.step_time_us)
  return min(found)


def known(step_us: float) -> float | None:
  """JSON has no infinity."""
  return float(step_us) if math.isfinite(step_us) else None


def table(found: dict[str, dict]) -> list[str]:
  """Markdown: ms, and ratios to the best one-shot placer."""
  lines = [
    "| model | ops | one-shot ms | best of the policy's draws | of random draws"
    f" | most probable at {SHOWN} |",
    "| --- | --- | --- | --- | --- | --- |",
  ]
  ratios: list[list[float | None]] = []
  for label, row in found.items():
    best = [
      min((s[arm] for s in row["sizes"].values() if s[arm]), default=None)
      for arm in ("policy_us", "random_us")
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
